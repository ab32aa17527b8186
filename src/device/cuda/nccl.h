/* Sums over cards by NCCL, from card to card: the library is looked for when ranks meet, and its absence is no error. */
#pragma once

#include "device/device.h"

struct gpu;
struct nccl;

/* The first rank's part: an identity for the meeting. False: there is no NCCL. */
bool nccl_identity(uint8_t id[MEETING_ID]);
/* Meets the other ranks, who call it at the same time; NULL and the reason. */
struct nccl *nccl_open(struct gpu *g, const struct device_meeting *m, struct err *e);
/* x = the sum of all ranks' x, on the card's stream. */
int nccl_sum(struct nccl *n, float *x, size_t count, struct err *e);
void nccl_close(struct nccl *n);
