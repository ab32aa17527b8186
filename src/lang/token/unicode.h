/* Unicode as tokenizers need it: a class mask for every code point (general category, \s, and the few
 * single characters that pre-tokenizers name), lower case, and the four normal forms. Text is valid UTF-8
 * (see unicode_repair). */
#pragma once

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern const uint16_t unicode_index[8704];
extern const uint8_t unicode_blocks[][128];

/* One bit a category, in the order of the table, then properties. */
enum {
    UC_CN = 1u << 0,
    UC_LU = 1u << 1,
    UC_LL = 1u << 2,
    UC_LT = 1u << 3,
    UC_LM = 1u << 4,
    UC_LO = 1u << 5,
    UC_MN = 1u << 6,
    UC_MC = 1u << 7,
    UC_ME = 1u << 8,
    UC_ND = 1u << 9,
    UC_NL = 1u << 10,
    UC_NO = 1u << 11,
    UC_PC = 1u << 12,
    UC_CC = 1u << 26,
    UC_CF = 1u << 27,
    UC_CO = 1u << 29,
    UC_SPACE = 1u << 30,   /* \s, the property White_Space */
    UC_NEWLINE = 1u << 31, /* \r or \n */
    UC_L = UC_LU | UC_LL | UC_LT | UC_LM | UC_LO,
    UC_M = UC_MN | UC_MC | UC_ME,
    UC_N = UC_ND | UC_NL | UC_NO,
    UC_P = 0x7fu << 12,
    UC_S = 0xfu << 19
};

extern const uint32_t unicode_ascii[128];

bool unicode_is_space(uint32_t cp);
static inline uint32_t unicode_class(uint32_t cp)
{
    if (cp < 128)
        return unicode_ascii[cp];
    return 1u << (unicode_blocks[unicode_index[cp >> 7]][cp & 127] & 31) |
           (unicode_is_space(cp) ? UC_SPACE : 0);
}
bool unicode_is_word(uint32_t cp); /* \w of regular expressions */
bool unicode_is_han(uint32_t cp);  /* the script */
/* As the older tables of BERT tokenizers have it (Unicode 8): punctuation, non-spacing marks. */
bool unicode_is_bert_punct(uint32_t cp);
bool unicode_is_bert_mark(uint32_t cp);
bool unicode_is_old(uint32_t cp); /* assigned in Unicode 8 */
bool unicode_after_14(uint32_t cp);
bool unicode_is_accent(uint32_t cp); /* a mark of Unicode 9, what StripAccents takes away */

/* Lower case; one character becomes up to two. Returns how many. */
int unicode_lower(uint32_t cp, uint32_t out[2]);

/* The character at s, which is valid UTF-8, and its length. */
static inline uint32_t unicode_next(const char *text, size_t *len)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80)
        return *len = 1, s[0];
    if (s[0] < 0xe0)
        return *len = 2, (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
    if (s[0] < 0xf0)
        return *len = 3, (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    return *len = 4, (s[0] & 7u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
}

/* Appends the text with each maximal broken sequence as one U+FFFD. */
void unicode_repair(struct buf *out, const char *s, size_t n);

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };
/* Appends the normal form of s, as Unicode 9 has it: what was assigned later stays as it is, as it does in
 * Hugging Face's tokenizers. Linear, except for very long runs of combining marks, which are cut at 512. */
void unicode_normalize(struct buf *out, enum unicode_form form, const char *s, size_t n);

/* End of the extended grapheme cluster that starts at `at` (< n). */
size_t unicode_grapheme(const char *s, size_t n, size_t at);
