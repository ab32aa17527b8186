/* Tokenizer and template on their own. Runs on a worker. */
#pragma once

struct request;

void text_tokenize(struct request *a);
void text_detokenize(struct request *a);
void text_template(struct request *a);
/* -1 and a failure: the model has no chat template. */
int text_can_chat(struct request *a);
void tokenizer_info(struct request *a); /* tokenizer_info.c */
