/* OpenAI's conversations: items that are stored, and that responses go on from and add to. A worker's. */
#pragma once

struct request;

void conversations_create(struct request *a);
void conversations_read(struct request *a);
void conversations_update(struct request *a);
void conversations_remove(struct request *a);
void conversations_items(struct request *a);
void conversations_add(struct request *a);
void conversations_item(struct request *a);
void conversations_remove_item(struct request *a);
