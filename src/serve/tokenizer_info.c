/* GET /tokenizer_info, as in vLLM: facts about the tokenizer for programs that build prompts themselves. */
#include "base/json.h"
#include "run/session.h"
#include "serve/request.h"
#include "serve/text.h"

#include <string.h>

/* The class of transformers that reads such a vocabulary. */
static const char *info_class(const struct tokenizer *t)
{
    static const char *const kinds[][2] = {
        {"gpt2", "PreTrainedTokenizerFast"}, {"llama", "LlamaTokenizerFast"},
        {"t5", "T5TokenizerFast"},           {"bert", "BertTokenizerFast"},
        {"rwkv", "RwkvTokenizer"},           {"tiktoken", "TikTokenTokenizer"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(tokenizer_kind(t), kinds[i][0]))
            return kinds[i][1];
    return "PreTrainedTokenizerFast";
}

void tokenizer_info(struct request *a)
{
    static const struct {
        const char *key;
        enum tok_role role;
    } tokens[] = {{"bos_token", TOK_BOS},  {"eos_token", TOK_EOS}, {"unk_token", TOK_UNK},
                  {"sep_token", TOK_SEP},  {"pad_token", TOK_PAD}, {"cls_token", TOK_CLS},
                  {"mask_token", TOK_MASK}};
    const struct session *l = a->model->session;
    const struct tokenizer *t = l->tokenizer;
    struct json j = {.out = &a->reply};
    json_begin(&j, '{');
    json_key(&j, "tokenizer_class");
    json_str(&j, info_class(t));
    json_key(&j, "model");
    json_str(&j, a->called);
    json_key(&j, "vocab_size");
    json_int(&j, tokenizer_vocab(t));
    json_key(&j, "model_max_length");
    json_uint(&j, l->runner->ctx);
    json_key(&j, "add_bos_token");
    json_bool(&j, tokenizer_adds_bos(t));
    json_key(&j, "add_eos_token");
    json_bool(&j, tokenizer_adds_eos(t));
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        size_t n = 0;
        int32_t id = tokenizer_id(t, tokens[i].role);
        const char *piece = id >= 0 ? tokenizer_piece(t, id, &n) : NULL;
        json_key(&j, tokens[i].key);
        if (piece)
            json_strn(&j, piece, n);
        else
            json_nil(&j);
    }
    json_key(&j, "chat_template");
    json_str(&j, l->chat ? chat_text(l->chat) : NULL);
    json_end(&j, '}');
}
