"""Text to tokenize: many scripts, emoji with joiners, code, runs of blanks, digits, apostrophes, controls,
special-token text and any code point at all. The same seed gives the same text."""
import random

WORDS = """the quick brown Fox's can't WE'LL don't I'M you're they've he'd it'Ll O'Reilly naïve café Straße ŒUVRE
señor Ελλάδα σίγμας мир Привет Ёлка שלום עִבְרִית مرحبا بِسْمِ اللّٰه हिन्दी नमस्ते বাংলা தமிழ் తెలుగు ไทยแลนด์ ພາສາລາວ မြန်မာ
ខ្មែរ 中文字符 日本語テキスト カタカナ ひらがな 한국어 텍스트 ភាសា ქართული հայերեն አማርኛ ᏣᎳᎩ ᠮᠣᠩᠭᠣᠯ Ǆungla ǈubav ﬁne ﬃ Ⅷ ½ ² ㎏ ＦＵＬＬ ｗｉｄｅ ｶﾀｶﾅ
camelCaseWord HTTPServer snake_case_name SCREAMING_SNAKE kebab-case x86_64 utf8 İstanbul ıI ǅ ʼn ª º µ Å Ω K 'ſ ſ's
don’t “quoted” «guillemets» naïvetés Übergrößenträger résumé e\u0301a\u0308o\u0302 n\u0303 ế ṩ s\u0323\u0307 \u1112\u1161\u11ab
𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚 𐐀𐐨 𓀀𓂀 𠀀𠀁 𝒜 𞤀𞤢 ① ⓐ Ⓐ 🄰 ៛ ৳ ₹ € £ ¥ ¢ ₿ ٠١٢٣ १२३४ ๑๒๓ 一二三 ４５６""".split()
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "☃", "🧑🏿‍🚀", "1️⃣", "🫠", "🪿", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "✊🏻", "♀️", "🦜🔥"]
CODE = ["def f(x: int) -> str:", "    return x**2 + y_1", "if (a && b || !c) { i++; }", "<div class=\"x\">&nbsp;</div>", "#include <stdio.h>",
        "SELECT * FROM t WHERE a='b';", "std::vector<std::pair<int,int>> v{{1,2}};", "\t\tfor i in range(10):", "$x = @{$y}->[0];",
        "https://example.com/a?b=c&d=%20#frag", "C:\\Users\\me\\file.txt", "///////", "=====", "----------", "/* ** */", "!@#$%^&*()_+", "...",
        "!!!???", "\\u00e9\\n", "{{ var }} {% if %}", "`code` **bold** _it_", "[link](url)", "x=1;y=2;", "0x1F 1e-10 3.14159", "a//b", "\"'\"'\"", "~/.bashrc"]
BLANKS = [" ", "  ", "   ", "    ", "        ", "\t", "\t\t", " \t ", "\u00a0", "\u3000", "\u2003", "\u200b", "\ufeff", "\u2028", "\x85", "\x0b",
          "\x0c", "\u180e", "\u202f", "\u1680", " \u00a0 ", "                                 "]
DIGITS = ["0", "7", "42", "123", "1234", "12345", "123456", "1234567890", "3.14", "1,000,000", "2024-11-15", "12:34:56", "007", "1e9", "½", "²³", "४२",
          "12a34", "9876543210123"]
CONTROLS = ["\x00", "\x01", "\x07", "\x08", "\x1b[31m", "\x7f", "\x80", "\x9f", "\u200d", "\u200e", "\u202e", "\ue000", "\ufffd", "\ufffe", "\U000e0001", "\U0010ffff"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<pad>", "<|begin_of_text|>", "<|eot_id|>", "[INST]", "[/INST]", "[CLS]",
           "[SEP]", "[MASK]", "<think>", "</think>", "<tool_call>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<0x0A>", "<|", "|>", "<|im_",
           "<|start_header_id|>user<|end_header_id|>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "▁", "▁▁the", "Ġthe", "##ing", "</w>", "<mask>", "<|fim_prefix|>"]
PUNCT = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["…", "—", "–", "。", "，", "、", "！", "？", "¿", "¡", "·", "‘", "’", "“", "”", "।", "۔", "،", "؟", "※", "→", "±"]
ENDS = ["\n", "\n\n", "\r\n", "\n \n", " \n", "\n\n\n", "\n\t", "\r", "\n    "]


def any_char(rng):
    top = rng.choice([0x100, 0x800, 0x3000, 0x10000, 0x20000, 0x110000])
    while True:
        cp = rng.randrange(top)
        if not 0xD800 <= cp < 0xE000 and cp != 10:
            return chr(cp)


def piece(rng):
    kind = rng.random()
    if kind < 0.40:
        return rng.choice(WORDS)
    if kind < 0.47:
        return rng.choice(EMOJI)
    if kind < 0.55:
        return rng.choice(CODE)
    if kind < 0.68:
        return rng.choice(BLANKS)
    if kind < 0.75:
        return rng.choice(DIGITS)
    if kind < 0.78:
        return rng.choice(CONTROLS)
    if kind < 0.82:
        return rng.choice(SPECIAL)
    if kind < 0.90:
        return rng.choice(PUNCT)
    if kind < 0.93:
        return rng.choice("aeio'sXZ -") * rng.randrange(1, 12)
    return "".join(any_char(rng) for _ in range(rng.randrange(1, 5)))


def line(rng):
    """A text without a newline."""
    parts = []
    for _ in range(rng.randrange(1, 14)):
        parts.append(piece(rng))
        if rng.random() < 0.5:
            parts.append(" ")
    return "".join(parts)


def lines(count, seed=1):
    rng = random.Random(seed)
    return [line(rng) for _ in range(count)]


def document(count, seed=2):
    """One text of many lines, with all kinds of line ends."""
    rng = random.Random(seed)
    return "".join(line(rng) + rng.choice(ENDS) for _ in range(count))
