/* The pre-tokenizers by name: the patterns that tokenizer.ggml.pre stands for, and the regular
 * expressions of tokenizer.json files that mean the same. */
#include "lang/token/pretok_scan.h"

#include "lang/token/unicode.h"

#include <string.h>

#define END                                                                                                  \
    {                                                                                                        \
        .min = -1                                                                                            \
    }
#define ALTS(...) ((const struct scan_alt[]){__VA_ARGS__, END})

/* sets */
#define S_LETTERS                                                                                            \
    {                                                                                                        \
        .any = UC_L                                                                                          \
    }
#define S_NUMBERS                                                                                            \
    {                                                                                                        \
        .any = UC_N                                                                                          \
    }
#define S_SPACE                                                                                              \
    {                                                                                                        \
        .extra = " "                                                                                         \
    }
#define S_WHITE                                                                                              \
    {                                                                                                        \
        .any = UC_SPACE                                                                                      \
    }
#define S_EOL                                                                                                \
    {                                                                                                        \
        .any = UC_NEWLINE                                                                                    \
    }
#define S_NOT_WORD                                                                                           \
    {                                                                                                        \
        .any = UC_NEWLINE | UC_L | UC_N, .neg = true                                                         \
    }
#define S_SYMBOLS                                                                                            \
    {                                                                                                        \
        .any = UC_SPACE | UC_L | UC_N, .neg = true                                                           \
    }
#define S_UPPER                                                                                              \
    {                                                                                                        \
        .any = UC_LU | UC_LT | UC_LM | UC_LO | UC_M                                                          \
    }
#define S_LOWER                                                                                              \
    {                                                                                                        \
        .any = UC_LL | UC_LM | UC_LO | UC_M                                                                  \
    }
#define S_UPPER_NOHAN                                                                                        \
    {                                                                                                        \
        .any = UC_LU | UC_LT | UC_LM | UC_LO | UC_M, .han = -1                                               \
    }
#define S_LOWER_NOHAN                                                                                        \
    {                                                                                                        \
        .any = UC_LL | UC_LM | UC_LO | UC_M, .han = -1                                                       \
    }
#define ASCII_PUNCT   "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
#define ASCII_LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

/* alternatives */
#define A_CONTRACTION(any_case)                                                                              \
    {                                                                                                        \
        .shape = SCAN_CONTRACTION, .ci = any_case                                                            \
    }
#define A_WORD                                                                                               \
    {                                                                                                        \
        .shape = SCAN_PREFIXED, .a = S_NOT_WORD, .b = S_LETTERS                                              \
    }
#define A_SPACE_WORD                                                                                         \
    {                                                                                                        \
        .shape = SCAN_PREFIXED, .a = S_SPACE, .b = S_LETTERS                                                 \
    }
#define A_SPACE_NUMBER                                                                                       \
    {                                                                                                        \
        .shape = SCAN_PREFIXED, .a = S_SPACE, .b = S_NUMBERS                                                 \
    }
#define A_SPACE_SYMBOLS                                                                                      \
    {                                                                                                        \
        .shape = SCAN_PREFIXED, .a = S_SPACE, .b = S_SYMBOLS                                                 \
    }
#define A_SYMBOLS_EOL                                                                                        \
    {                                                                                                        \
        .shape = SCAN_TAILED, .a = S_SPACE, .b = S_SYMBOLS, .c = S_EOL                                       \
    }
#define A_SYMBOLS_EOL_SLASH                                                                                  \
    {                                                                                                        \
        .shape = SCAN_TAILED, .a = S_SPACE, .b = S_SYMBOLS, .c = {.any = UC_NEWLINE, .extra = "/" }          \
    }
#define A_NUMBERS(least, most)                                                                               \
    {                                                                                                        \
        .shape = SCAN_RUN, .b = S_NUMBERS, .min = least, .max = most                                         \
    }
#define A_SPACES                                                                                             \
    {.shape = SCAN_NEWLINES}, {.shape = SCAN_SPACES_KEEP},                                                   \
    {                                                                                                        \
        .shape = SCAN_SPACES                                                                                 \
    }
#define A_CAMEL(with)                                                                                        \
    {.shape = SCAN_CAMEL_LOW, .a = S_NOT_WORD, .b = S_UPPER, .c = S_LOWER, .ci = with},                      \
    {                                                                                                        \
        .shape = SCAN_CAMEL_UP, .a = S_NOT_WORD, .b = S_UPPER, .c = S_LOWER, .ci = with                      \
    }

const struct scan_pass scan_gpt2 = {ALTS(A_CONTRACTION(false), A_SPACE_WORD, A_SPACE_NUMBER, A_SPACE_SYMBOLS,
                                         {.shape = SCAN_SPACES_KEEP}, {.shape = SCAN_SPACES})};
/* cl100k and its like; they differ in how many digits stay together */
#define CL100K(least, most) ALTS(A_CONTRACTION(true), A_WORD, A_NUMBERS(least, most), A_SYMBOLS_EOL, A_SPACES)
static const struct scan_pass llama3 = {CL100K(1, 3)};
static const struct scan_pass qwen2 = {CL100K(1, 1)};
static const struct scan_pass cl100k_numbers = {CL100K(1, 0)};
static const struct scan_pass qwen35 = {
    ALTS(A_CONTRACTION(true), {.shape = SCAN_PREFIXED, .a = S_NOT_WORD, .b = {.any = UC_L | UC_M}},
         A_NUMBERS(1, 1),
         {.shape = SCAN_TAILED,
          .a = S_SPACE,
          .b = {.any = UC_SPACE | UC_L | UC_M | UC_N, .neg = true},
          .c = S_EOL},
         A_SPACES)};
static const struct scan_pass seed_coder = {
    ALTS(A_CONTRACTION(true), A_WORD, A_NUMBERS(1, 1), A_SPACE_SYMBOLS, A_SPACES)};
static const struct scan_pass o200k = {ALTS(A_CAMEL(true), A_NUMBERS(1, 3), A_SYMBOLS_EOL_SLASH, A_SPACES)};
static const struct scan_pass o200k_digit = {
    ALTS(A_CAMEL(true), A_NUMBERS(1, 1), A_SYMBOLS_EOL_SLASH, A_SPACES)};
static const struct scan_pass tekken = {ALTS(A_CAMEL(false), A_NUMBERS(1, 1), A_SYMBOLS_EOL_SLASH, A_SPACES)};

static const struct scan_pass digit = {ALTS(A_NUMBERS(1, 1))};
static const struct scan_pass digits3 = {ALTS(A_NUMBERS(1, 3))};
static const struct scan_pass digits = {ALTS(A_NUMBERS(1, 0))};
static const struct scan_pass ascii3 = {
    ALTS({.shape = SCAN_RUN, .b = {.extra = "0123456789"}, .min = 3, .max = 3})};
static const struct scan_pass newline = {ALTS({.shape = SCAN_RUN, .b = S_EOL, .min = 1, .max = 1})};
static const struct scan_pass lines = {ALTS({.shape = SCAN_RUN, .b = {.extra = "\n", .neg = true}, .min = 1},
                                            {.shape = SCAN_RUN, .b = {.extra = "\n"}, .min = 1})};
static const struct scan_pass triples = {ALTS({.shape = SCAN_TRIPLES, .b = {.any = UC_ND}})};
static const struct scan_pass triples_n = {ALTS({.shape = SCAN_TRIPLES, .b = S_NUMBERS})};
static const struct scan_pass triples_word = {ALTS({.shape = SCAN_TRIPLES, .b = {.any = UC_ND}, .ci = true})};

/* deepseek */
static const uint32_t ds_letters[][2] = {
    {0x41, 0x5a},       {0x61, 0x7a},       {0xb5, 0xb5},       {0xc0, 0xd6},       {0xd8, 0xf6},
    {0xf8, 0x1ba},      {0x1bc, 0x1bf},     {0x1c4, 0x293},     {0x295, 0x2af},     {0x370, 0x373},
    {0x376, 0x377},     {0x37b, 0x37d},     {0x37f, 0x37f},     {0x386, 0x386},     {0x388, 0x38a},
    {0x38c, 0x38c},     {0x38e, 0x3a1},     {0x3a3, 0x3f5},     {0x3f7, 0x481},     {0x48a, 0x52f},
    {0x531, 0x556},     {0x10a0, 0x10c5},   {0x13a0, 0x13f5},   {0x13f8, 0x13fd},   {0x1c90, 0x1cba},
    {0x1cbd, 0x1cbf},   {0x1d00, 0x1d2b},   {0x1d6b, 0x1d77},   {0x1d79, 0x1d9a},   {0x1e00, 0x1f15},
    {0x1f18, 0x1f1d},   {0x1f20, 0x1f45},   {0x1f48, 0x1f4d},   {0x1f50, 0x1f57},   {0x1f59, 0x1f59},
    {0x1f5b, 0x1f5b},   {0x1f5d, 0x1f5d},   {0x1f5f, 0x1f7d},   {0x1f80, 0x1fb4},   {0x1fb6, 0x1fbc},
    {0x1fbe, 0x1fbe},   {0x1fc2, 0x1fc4},   {0x1fc6, 0x1fcc},   {0x1fd0, 0x1fd3},   {0x1fd6, 0x1fdb},
    {0x1fe0, 0x1fec},   {0x1ff2, 0x1ff4},   {0x1ff6, 0x1ffc},   {0x2102, 0x2102},   {0x2107, 0x2107},
    {0x210a, 0x2113},   {0x2115, 0x2115},   {0x2119, 0x211d},   {0x2124, 0x2124},   {0x2126, 0x2126},
    {0x2128, 0x2128},   {0x212a, 0x212d},   {0x212f, 0x2134},   {0x2139, 0x2139},   {0x213c, 0x213f},
    {0x2145, 0x2149},   {0x214e, 0x214e},   {0x2183, 0x2184},   {0x2c00, 0x2c7b},   {0x2c7e, 0x2ce4},
    {0x2ceb, 0x2cee},   {0x2cf2, 0x2cf3},   {0xa640, 0xa66d},   {0xa680, 0xa69b},   {0xa722, 0xa76f},
    {0xa771, 0xa787},   {0xa78b, 0xa78e},   {0xab70, 0xabbf},   {0xfb00, 0xfb06},   {0xfb13, 0xfb17},
    {0xff21, 0xff3a},   {0xff41, 0xff5a},   {0x10400, 0x1044f}, {0x104b0, 0x104d3}, {0x104d8, 0x104fb},
    {0x10c80, 0x10cb2}, {0x10cc0, 0x10cf2}, {0x118a0, 0x118df}, {0x1e900, 0x1e943}, {0, 0}};
static const uint32_t ds_punct[][2] = {
    {0x21, 0x2f},     {0x3a, 0x7e}, {0x2018, 0x201f}, {0x3000, 0x3002}, {0xff01, 0xff0f},
    {0xff1a, 0xff5e}, {0, 0}};
static const uint32_t ds_cjk[][2] = {{0x800, 0x4e00}, {0x4e00, 0x9fa5}, {0xac00, 0xd7ff}, {0, 0}};
static const uint32_t ds_cjk3[][2] = {{0x3040, 0x309f}, {0x30a0, 0x30ff}, {0x4e00, 0x9fa5}, {0, 0}};
static const struct scan_pass ds_letter_run = {
    ALTS({.shape = SCAN_PREFIXED, .a = S_WHITE, .b = {.ranges = ds_letters}})};
static const struct scan_pass ds_punct_run = {
    ALTS({.shape = SCAN_PREFIXED, .a = S_WHITE, .b = {.ranges = ds_punct}})};
static const struct scan_pass ds_end = {ALTS({.shape = SCAN_SPACES_END})};
static const struct scan_pass ds_cjk_run = {ALTS({.shape = SCAN_RUN, .b = {.ranges = ds_cjk}, .min = 1})};
static const struct scan_pass ds_cjk3_run = {ALTS({.shape = SCAN_RUN, .b = {.ranges = ds_cjk3}, .min = 1})};
static const struct scan_pass ds_word = {ALTS({.shape = SCAN_PREFIXED, .a = S_WHITE, .b = S_LETTERS})};
static const struct scan_pass ds_p = {ALTS({.shape = SCAN_PREFIXED, .a = S_WHITE, .b = {.any = UC_P}})};
static const struct scan_pass deepseek3 = {
    ALTS({.shape = SCAN_PAIR, .a = {.extra = ASCII_PUNCT}, .b = {.extra = ASCII_LETTERS}},
         {.shape = SCAN_PREFIXED,
          .a = {.any = UC_NEWLINE | UC_L | UC_P | UC_S, .neg = true},
          .b = {.any = UC_L | UC_M}},
         {.shape = SCAN_TAILED, .a = S_SPACE, .b = {.any = UC_P | UC_S}, .c = S_EOL}, A_SPACES)};

/* the rest */
static const struct scan_pass falcon_punct = {
    ALTS({.shape = SCAN_RUN, .b = {.any = UC_P, .extra = "$+<=>^~|`"}, .min = 1})};
static const struct scan_pass default_punct = {
    ALTS({.shape = SCAN_RUN, .b = {.any = UC_P, .extra = "$+<=>^~|"}, .min = 1})};
static const uint32_t bloom_stops[][2] = {
    {0x60c, 0x60c},   {0x6d4, 0x6d4},   {0x964, 0x964}, {0x2026, 0x2026},
    {0x3001, 0x3002}, {0xff0c, 0xff0c}, {0, 0}};
static const struct scan_pass bloom = {
    ALTS({.shape = SCAN_PREFIXED,
          .a = S_SPACE,
          .b = {.any = UC_SPACE, .extra = "(|.,!?)", .ranges = bloom_stops, .neg = true}})};
static const uint32_t afmoe_cjk[][2] = {
    {0xe40, 0xe7f},   {0xe80, 0xeff},   {0x1000, 0x109f}, {0x1100, 0x11ff},
    {0x1780, 0x17ff}, {0x2f00, 0x2fdf}, {0x3040, 0x309f}, {0x30a0, 0x30ff},
    {0x3400, 0x4dbf}, {0x4e00, 0x9fff}, {0xa9e0, 0xa9ff}, {0xaa60, 0xaa7f},
    {0xac00, 0xd7af}, {0xf900, 0xfaff}, {0xff65, 0xff9f}, {0, 0}};
static const struct scan_pass afmoe_run = {ALTS({.shape = SCAN_RUN, .b = {.ranges = afmoe_cjk}, .min = 1})};
static const uint32_t youtu_hangul[][2] = {{0x3131, 0x318e}, {0xac00, 0xd7a3}, {0, 0}};
static const uint32_t youtu_punct[][2] = {
    {0x2014, 0x2014}, {0x2018, 0x2019}, {0x201c, 0x201d}, {0x2026, 0x2026}, {0x3001, 0x303f},
    {0xfe30, 0xfe4f}, {0xff01, 0xff01}, {0xff0c, 0xff0c}, {0xff1a, 0xff1b}, {0, 0}};
static const uint32_t youtu_bopomofo[][2] = {{0x3105, 0x312f}, {0, 0}};
static const struct scan_pass youtu = {ALTS({.shape = SCAN_RUN, .b = {.ranges = youtu_hangul}, .min = 1},
                                            {.shape = SCAN_RUN, .b = {.ranges = youtu_punct}, .min = 1},
                                            {.shape = SCAN_RUN, .b = {.ranges = youtu_bopomofo}, .min = 1},
                                            {.shape = SCAN_RUN, .b = {.ranges = ds_cjk3}, .min = 1})};
static const struct scan_pass kimi = {
    ALTS({.shape = SCAN_RUN, .b = {.neg = true, .han = 1}, .min = 1},
         {.shape = SCAN_CAMEL_LOW, .a = S_NOT_WORD, .b = S_UPPER_NOHAN, .c = S_LOWER_NOHAN, .ci = true},
         {.shape = SCAN_CAMEL_UP, .a = S_NOT_WORD, .b = S_UPPER_NOHAN, .c = S_LOWER_NOHAN, .ci = true},
         A_NUMBERS(1, 3), A_SYMBOLS_EOL, A_SPACES)};

/* patterns that stay regular expressions */
#define CHAMELEON "<sentinel:[0-9]+>|IMGIMG[A-I]{1,4}Z|[\\t\\n]|    |  |\\p{N}|[\\p{P}!-/:-@\\[-`{-~]"
#define EXAONE_MOE                                                                                           \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}"        \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define JAIS2                                                                                                \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"  \
    "|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)"           \
    "|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"

#define LLAMA3_FLAGS (SCAN_IGNORE_MERGES | SCAN_ADD_BOS)
/* clang-format off */
static const struct scan_model models[] = {
    {"default", {&default_punct, &scan_gpt2, &digits, &ascii3}, NULL, 0},
    {"llama3", {&llama3}, NULL, LLAMA3_FLAGS},
    {"llama-v3", {&llama3}, NULL, LLAMA3_FLAGS},
    {"llama-bpe", {&llama3}, NULL, LLAMA3_FLAGS},
    {"falcon3", {&llama3}, NULL, LLAMA3_FLAGS},
    {"falcon-h1", {&llama3}, NULL, LLAMA3_FLAGS},
    {"pixtral", {&llama3}, NULL, LLAMA3_FLAGS},
    {"midm-2.0", {&llama3}, NULL, LLAMA3_FLAGS},
    {"lfm2", {&llama3}, NULL, LLAMA3_FLAGS},
    {"jina-v5-nano", {&llama3}, NULL, LLAMA3_FLAGS},
    {"minicpm5", {&digits3, &cl100k_numbers}, NULL, SCAN_IGNORE_MERGES},
    {"deepseek-llm", {&newline, &ds_letter_run, &ds_punct_run, &ds_end, &ds_cjk_run, &digits}, NULL, 0},
    {"deepseek-coder", {&newline, &ds_word, &ds_p, &ds_cjk_run, &digit}, NULL, 0},
    {"deepseek-v3", {&digits3, &ds_cjk3_run, &deepseek3}, NULL, 0},
    {"hunyuan-dense", {&digits3, &ds_cjk3_run, &deepseek3}, NULL, 0},
    {"joyai-llm", {&digits3, &ds_cjk3_run, &deepseek3}, NULL, 0},
    {"youtu", {&youtu, &o200k_digit}, NULL, SCAN_IGNORE_MERGES},
    {"falcon", {&falcon_punct, &scan_gpt2, &ascii3}, NULL, 0},
    {"mpt", {&scan_gpt2}, NULL, 0},
    {"starcoder", {&digit, &scan_gpt2}, NULL, 0},
    {"gpt-2", {&scan_gpt2}, NULL, 0},
    {"gpt2", {&scan_gpt2}, NULL, 0},
    {"phi-2", {&scan_gpt2}, NULL, 0},
    {"jina-es", {&scan_gpt2}, NULL, 0},
    {"jina-de", {&scan_gpt2}, NULL, 0},
    {"gigachat", {&scan_gpt2}, NULL, 0},
    {"jina-v2-es", {&scan_gpt2}, NULL, 0},
    {"jina-v2-de", {&scan_gpt2}, NULL, 0},
    {"a.x-4.0", {&scan_gpt2}, NULL, 0},
    {"mellum", {&scan_gpt2}, NULL, 0},
    {"modern-bert", {&scan_gpt2}, NULL, 0},
    {"jina-v1-en", {&scan_gpt2}, NULL, 0},
    {"jina-v2-code", {&scan_gpt2}, NULL, 0},
    {"roberta-bpe", {&scan_gpt2}, NULL, 0},
    {"jais-2", {0}, JAIS2, 0},
    {"gemma4", {&lines}, NULL, SCAN_CHARS | SCAN_ADD_BOS},
    {"granite-embed-multi-311m", {&lines}, NULL, SCAN_CHARS | SCAN_ADD_BOS},
    {"mmbert", {&lines}, NULL, SCAN_CHARS | SCAN_ADD_BOS},
    {"sarvam-moe", {&lines}, NULL, SCAN_CHARS},
    {"whitespace", {0}, NULL, SCAN_WORDS},
    {"refact", {&digit, &scan_gpt2}, NULL, 0},
    {"command-r", {&digit, &scan_gpt2}, NULL, 0},
    {"qwen2", {&qwen2}, NULL, SCAN_NFC},
    {"deepseek-r1-qwen", {&qwen2}, NULL, 0},
    {"kormo", {&qwen2}, NULL, 0},
    {"f2llmv2", {&qwen2}, NULL, 0},
    {"megrez", {&qwen2}, NULL, 0},
    {"ufakzeka", {&qwen2}, NULL, 0},
    {"qwen35", {&qwen35}, NULL, SCAN_NFC},
    {"stablelm2", {&qwen2}, NULL, 0},
    {"hunyuan", {&qwen2}, NULL, 0},
    {"solar-open", {&qwen2}, NULL, 0},
    {"grok-2", {&qwen2}, NULL, 0},
    {"olmo", {&scan_gpt2}, NULL, 0},
    {"dbrx", {&llama3}, NULL, 0},
    {"smaug-bpe", {&llama3}, NULL, 0},
    {"poro-chat", {&bloom}, NULL, 0},
    {"bloom", {&bloom}, NULL, 0},
    {"gpt3-finnish", {&bloom}, NULL, 0},
    {"viking", {&bloom, &digit}, NULL, 0},
    {"glm4", {&llama3}, NULL, SCAN_NO_BOS},
    {"chatglm-bpe", {&llama3}, NULL, SCAN_NO_BOS},
    {"glm5", {&llama3}, NULL, SCAN_NO_BOS},
    {"jais", {&scan_gpt2}, NULL, 0},
    {"tekken", {&tekken}, NULL, LLAMA3_FLAGS},
    {"smollm", {&digit, &scan_gpt2}, NULL, 0},
    {"codeshell", {&digit, &scan_gpt2}, NULL, 0},
    {"exaone", {&digit, &scan_gpt2}, NULL, 0},
    {"exaone4", {&scan_gpt2}, NULL, 0},
    {"exaone-moe", {0}, EXAONE_MOE, 0},
    {"chameleon", {&scan_gpt2}, CHAMELEON, SCAN_ADD_BOS},
    {"minerva-7b", {&digit, &scan_gpt2}, NULL, 0},
    {"mellum2", {&digit, &scan_gpt2}, NULL, 0},
    {"gpt-4o", {&o200k}, NULL, 0},
    {"llama4", {&o200k}, NULL, 0},
    {"kanana2", {&o200k}, NULL, 0},
    {"talkie", {&o200k}, NULL, 0},
    {"minimax-m2", {&o200k}, NULL, 0},
    {"granite-embed-multi-97m", {&o200k}, NULL, SCAN_IGNORE_MERGES},
    {"tiny_aya", {&triples_word, &o200k}, NULL, 0},
    {"cohere2moe", {&triples_word, &o200k}, NULL, 0},
    {"superbpe", {&digits, &triples}, NULL, 0},
    {"trillion", {&scan_gpt2}, NULL, 0},
    {"granite-docling", {&scan_gpt2}, NULL, 0},
    {"bailingmoe", {&qwen2}, NULL, 0},
    {"bailingmoe2", {&qwen2}, NULL, 0},
    {"llada-moe", {&qwen2}, NULL, 0},
    {"seed-coder", {&seed_coder}, NULL, 0},
    {"kimi-k2", {&kimi}, NULL, SCAN_IGNORE_MERGES},
    {"afmoe", {&triples_n, &afmoe_run, &deepseek3}, NULL, 0},
    {"laguna", {&lines, &qwen2}, NULL, 0},
};

#define CONTRACTIONS_I "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACE_TAIL     "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CAMEL_LOW      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
#define CAMEL_UP       "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
#define CAMEL_REST     "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACE_TAIL
static const struct {
    const char *regex;
    const struct scan_pass *pass;
} regexes[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", &scan_gpt2},
    {CONTRACTIONS_I "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACE_TAIL, &llama3},
    {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*"
     "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+", &llama3},
    {CONTRACTIONS_I "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACE_TAIL, &qwen2},
    {CONTRACTIONS_I "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}+"
     "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACE_TAIL, &cl100k_numbers},
    {CONTRACTIONS_I "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
     "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SPACE_TAIL, &qwen35},
    {CAMEL_LOW CONTRACTIONS_I "?" CAMEL_UP CONTRACTIONS_I "?|\\p{N}{1,3}" CAMEL_REST, &o200k},
    {CAMEL_LOW CAMEL_UP "|\\p{N}" CAMEL_REST, &tekken},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
     "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+", &deepseek3},
    {"[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+", &ds_cjk3_run},
    {"\\p{N}{1,3}", &digits3},
    {"\\p{N}", &digit},
    {"\\p{N}+", &digits},
    {"[\r\n]", &newline},
    {" ?[^(\\s|.,!?\xe2\x80\xa6\xe3\x80\x82\xef\xbc\x8c\xe3\x80\x81\xe0\xa5\xa4\xdb\x94\xd8\x8c)]+", &bloom},
    {" ?[^(\\s|[.,!?\xe2\x80\xa6\xe3\x80\x82\xef\xbc\x8c\xe3\x80\x81\xe0\xa5\xa4\xdb\x94\xd8\x8c])]+", &bloom},
};
/* clang-format on */

const struct scan_pass *scan_for_regex(const char *regex, size_t n)
{
    for (size_t i = 0; i < sizeof regexes / sizeof *regexes; i++)
        if (strlen(regexes[i].regex) == n && !memcmp(regexes[i].regex, regex, n))
            return regexes[i].pass;
    return NULL;
}

const struct scan_model *scan_for_name(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strlen(models[i].name) == n && !memcmp(models[i].name, name, n))
            return &models[i];
    return NULL;
}

const char *scan_name_for(const struct scan_pass *const passes[6], bool ignore_merges)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct scan_model *m = &models[i];
        if (!m->regex && !(m->flags & (SCAN_CHARS | SCAN_WORDS)) &&
            !memcmp(m->passes, passes, sizeof m->passes) &&
            !(m->flags & SCAN_IGNORE_MERGES) == !ignore_merges)
            return m->name;
    }
    return NULL;
}
