/* The routes of api_*.c. What takes a connection is answered in the loop, what takes a request on a worker. */
#pragma once

struct conn;
struct request;

/* the models (api_models.c) */
void api_models(struct conn *c);
void api_model(struct conn *c);
void api_props(struct conn *c);
void api_slots(struct conn *c);
void api_load(struct request *a);
void api_unload(struct request *a);

/* llama.cpp's shapes (infill_request.c) */
void api_infill(struct request *a);
void api_completion(struct request *a);

/* counts by day, key and model (api_usage.c) */
void api_usage(struct request *a);

/* vectors (api_embed.c, api_score.c) */
void api_embeddings(struct request *a);
void api_embedding(struct request *a);
void api_rerank(struct request *a);
void api_score(struct request *a);
