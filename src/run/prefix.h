/* The prefix tree: common prefixes of past and present sequences are computed once and stored once.
 *
 * A node is one page of tokens (RUNNER_PAGE of them; a leaf may hold fewer) after the tokens of its
 * ancestors, with the KV pages of every group that hold them. The root of a tree is a salt: requests with
 * different salts (API keys) never share. The tree holds one reference to each of its pages; a sequence that
 * uses one holds another. Nodes whose pages only the tree holds can be evicted, leaves first, the least
 * recently used first.
 *
 * Of a group with a window a node may lack its page: a sequence that continues from the end of a node needs
 * only the pages within the window of such a group, but every page from the root on of the others. So pages
 * of window groups are evicted one by one, the least recently used first.
 *
 * Where the plan keeps state, a sequence can continue only from where there is a copy of it: a snapshot, which is
 * the state after the first tokens of a node, in a slot of its own. What is evicted first is what takes the least
 * to be computed again: the tokens since the snapshot before it; of equal ones the least recently used. The newer half
 * stays. Nodes after the last snapshot go with it.
 *
 * With a disk cache, whole pages are written to it in the background, and pages that are not in the tree are
 * looked up there; so are snapshots. Used by the engine's thread only. */
#pragma once

#include "base/err.h"
#include "run/prefix_disk.h"
#include "run/runner.h"

#include <stdint.h>

struct prefix;
struct kv_events;

/* disk: NULL = none; taken over, also when it fails. */
int prefix_open(struct prefix **out, struct runner *r, uint32_t most_nodes, struct prefix_disk *disk,
                struct err *e);
/* From now on its changes are events. */
void prefix_listen(struct prefix *t, struct kv_events *events);
/* Writes what is not on disk yet. */
void prefix_close(struct prefix *t);

/* Gives the sequence, which holds a beginning of ids[0..n), the pages of the longest known one; returns how many
 * tokens it holds then. It takes whole pages where it stands at the end of one; an empty sequence may
 * also get a page that is filled or equal only in part: the runner copies it when it is first written to. */
uint32_t prefix_match(struct prefix *t, uint64_t salt, struct seq *s, const int32_t *ids, uint32_t n);
/* How many of its ids the tree had, whether or not a sequence can continue from there. */
uint32_t prefix_known(const struct prefix *t);
/* From now on matches read from disk for at most `seconds` in all. */
void prefix_budget(struct prefix *t, double seconds);
/* Whether the last match ran out of time: the disk has the next page. */
bool prefix_has_more(const struct prefix *t);
/* Hands pages that are not on disk to its writer, as far as that takes them now; or one, when it can. Whether
 * some are left. */
bool prefix_save(struct prefix *t, bool wait);
/* Counts a match in the statistics: a request got `tokens` of the `prompt` tokens of its prompt. */
void prefix_count(struct prefix *t, uint32_t tokens, uint32_t prompt);
/* The tree keeps at most this many snapshots. */
void prefix_limit(struct prefix *t, uint32_t snapshots);
/* Adds the first `len` tokens of the sequence, and its snapshots up to there. Where a page of them is known
 * already, the sequence gets that one and drops its own. Never fails: without room they are not added. */
void prefix_insert(struct prefix *t, uint64_t salt, struct seq *s, uint32_t len);
/* Whether that many are free, after taking memory for more pages, and evicting where there is none. */
bool prefix_make_room(struct prefix *t, const struct page_need *need);
/* Drops all nodes, also those that sequences use. */
void prefix_clear(struct prefix *t);

struct prefix_stats {
    uint64_t nodes, hits, misses, evicted;
    uint64_t pages;                     /* of the nodes, those that are whole pages of text */
    uint64_t prompt_tokens, hit_tokens; /* of the prompts that were looked up; those that were known */
    uint64_t stripped;                  /* pages of window groups evicted from nodes */
    uint64_t snapshots, evicted_snapshots;
    struct prefix_disk_stats disk;
};
void prefix_stats(const struct prefix *t, struct prefix_stats *out);
