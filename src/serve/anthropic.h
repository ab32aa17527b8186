/* Anthropic's API. A request becomes one of OpenAI's chats on a worker; the list of models is answered in the loop. */
#pragma once

struct conn;
struct json;
struct request;
struct served;

void anthropic_messages(struct request *a);
void anthropic_count(struct request *a);
void anthropic_models(struct conn *c);
void anthropic_write_model(struct json *j, const struct served *s, const char *name);
