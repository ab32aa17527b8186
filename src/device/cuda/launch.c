#include "device/cuda/launch.h"

#include "base/buf.h"
#include "base/mem.h"
#include "device/cuda/lower.h"

#include <stdio.h>
#include <string.h>

/* ---- the list ---- */

int launch_reserve(struct launch_list *list, uint32_t room, struct err *e)
{
    if (room <= list->room)
        return 0;
    struct launch *all = mem_realloc(list->all, room, sizeof *all);
    if (!all)
        return err_memory(e, "the list of launches", room * sizeof *all);
    list->all = all;
    list->room = room;
    return 0;
}

void launch_free(struct launch_list *list)
{
    mem_free(list->all);
    *list = (struct launch_list){0};
}

struct launch *launch_insert(struct launch_list *list, uint32_t i)
{
    static _Thread_local struct launch forgotten;
    struct err e = {0};
    if (list->count == list->room &&
        (list->part || launch_reserve(list, list->room ? 2 * list->room : 64, &e))) {
        list->failed = true;
        forgotten = (struct launch){0};
        return &forgotten;
    }
    memmove(&list->all[i + 1], &list->all[i], (list->count - i) * sizeof *list->all);
    list->count++;
    memset(&list->all[i], 0, sizeof list->all[i]);
    return &list->all[i];
}

struct launch *launch_add(struct launch_list *list)
{
    return launch_insert(list, list->count);
}

void launch_remove(struct launch_list *list, uint32_t i)
{
    list->count--;
    memmove(&list->all[i], &list->all[i + 1], (list->count - i) * sizeof *list->all);
}

bool launch_reads(const struct launch *l, struct span s)
{
    bool any = false;
    for (int i = 0; i < LAUNCH_READS; i++)
        any = any || span_same(l->reads[i], s);
    return any;
}

bool launch_writes(const struct launch *l, struct span s)
{
    bool any = false;
    for (int i = 0; i < LAUNCH_WRITES; i++)
        any = any || span_same(l->writes[i], s);
    return any;
}

/* ---- a step's numbers in place of names ---- */

uint32_t launch_rows(const struct launch_rows *r, const struct meta *m)
{
    const uint32_t all = r->of == ROWS_NONE      ? 0
                         : r->of == ROWS_RESULTS ? m->outs
                                                 : m->rows,
                   behind = all > r->first ? all - r->first : 0, n = behind < r->most ? behind : r->most;
    if (r->of == ROWS_PAIRS)
        return n * r->used;
    if (r->of != ROWS_SLOTS && r->of != ROWS_TILES)
        return n;
    return launch_tiles(n, r->used, r->experts, r->tile) * (r->of == ROWS_SLOTS ? r->tile : 1);
}

static const int32_t *table_of(const struct launch *l, const struct meta *m)
{
    return m->tables + (uint64_t)l->group * m->seqs * m->width;
}

/* Attention over tiles of queries: the number of blocks that share their keys depends on the number of
 * tiles. */
static void bind_tiles(struct launch *l, const struct launch_step *s, const struct launch_limits *limits)
{
    struct attn_args *a = &l->a.attn;
    const uint32_t r = l->ratio - 1u, tiles = s->tiles[r], seen = a->window + a->ahead + TILE_QUERIES,
                   span = a->window && seen < s->keys ? seen : s->keys;
    struct gpu_prefill how =
        gpu_prefill_choose(limits->card, a->kv.k_dim, tiles * a->kv.heads, span, limits->no_wide);
    if ((uint64_t)tiles * a->kv.heads * how.splits * TILE_QUERIES * a->kv.v_dim > limits->part_floats)
        how.splits = 1;
    a->tiles = tiles;
    a->meta.tiles += s->tiles_at[r];
    a->splits = how.splits;
    l->grid.x = l->kernel == K_ATTN_JOIN && how.splits == 1 ? 0 : tiles;
    if (l->kernel != K_ATTN_JOIN)
        l->grid.z = how.splits;
}

static void bind_attn(struct launch *l, uint32_t m, const struct launch_step *s,
                      const struct launch_limits *limits)
{
    l->a.attn.m = m;
    l->a.attn.meta = s->meta;
    l->a.attn.kv.table = table_of(l, &s->meta);
    if (l->ratio)
        bind_tiles(l, s, limits);
}

static void bind_lora(struct launch *l, uint32_t m, const struct launch_step *s)
{
    l->a.lora.m = m;
    l->a.lora.mix = s->mix;
    l->a.lora.row_seq = s->meta.row_seq;
    if (l->rows.of == ROWS_RESULTS)
        l->a.lora.row = s->meta.out;
}

static void bind_pick(struct launch *l, uint32_t m, const struct launch_step *s)
{
    l->a.pick = s->pick;
    l->a.pick.m = m;
}

static void bind_group(const struct launch *l, struct group_args *g, uint32_t m, const struct launch_step *s)
{
    const struct moe_range own = moe_range(g->experts, l->side, s->border);
    g->m = m;
    g->first = own.first;
    g->end = own.end;
    g->identities = l->side == MOE_ABOVE ? UINT32_MAX : g->experts;
    g->most_tiles = launch_tiles(m, g->used, g->experts, g->rows);
}

static void bind_gemm(struct launch *l, uint32_t m, const struct launch_step *s)
{
    l->a.gemm.m = m;
    if (l->a.gemm.in.parts.part)
        l->a.gemm.in.parts.length = s->meta.seq_len;
    l->a.gemm.conv.in = s->meta.state_in;
    l->a.gemm.conv.out = s->meta.state_out;
}

static void bind_pack(struct launch *l, uint32_t m, const struct launch_step *s)
{
    l->a.pack.m = m;
    if (l->rows.of == ROWS_RESULTS)
        l->a.pack.x_row = s->meta.out;
}

static void bind_embed(struct launch *l, const struct launch_step *s)
{
    l->a.embed.meta = s->meta;
    l->a.embed.mix = l->a.embed.lora ? s->mix : NULL;
}

static void bind_qkv(struct launch *l, uint32_t m, const struct launch_step *s)
{
    l->a.qkv.m = m;
    l->a.qkv.meta = s->meta;
    l->a.qkv.kv.table = table_of(l, &s->meta);
}

static void bind_latent(struct launch *l, uint32_t m, const struct launch_step *s)
{
    l->a.latent.m = m;
    l->a.latent.meta = s->meta;
    l->a.latent.kv.table = table_of(l, &s->meta);
}

static void bind_grid(struct launch *l, uint32_t m, uint32_t seqs)
{
    const unsigned blocks = l->grid_rows ? gpu_blocks(m, l->each) : 0;
    if (l->grid_rows == GRID_X)
        l->grid.x = blocks;
    else if (l->grid_rows == GRID_Y)
        l->grid.y = blocks;
    else if (l->grid_rows == GRID_SEQS)
        l->grid.y = seqs;
}

/* Where the arguments keep the number of rows; NULL: they have none, or bind it in their own way. */
static uint32_t *plain_rows(struct launch *l)
{
    switch ((enum launch_args)l->args) {
    case ARGS_FLOAT:
        return &l->a.product.m;
    case ARGS_ACT:
        return &l->a.act.m;
    case ARGS_TAIL:
        return &l->a.tail.m;
    case ARGS_FINISH:
        return &l->a.finish.m;
    case ARGS_ROUTER:
        return &l->a.router.m;
    case ARGS_ROUTE:
        return &l->a.route.m;
    case ARGS_COMBINE:
        return &l->a.combine.m;
    case ARGS_PACK_COMBINE:
        return &l->a.pack_combine.pack.m;
    case ARGS_CONV:
        return &l->a.conv.m;
    case ARGS_MAP:
        return &l->a.map.m;
    case ARGS_MIX:
        return &l->a.mix.m;
    case ARGS_GATE:
        return &l->a.gate.m;
    default:
        return NULL;
    }
}

uint32_t launch_blas_rows(uint32_t m)
{
    const uint32_t unit = m > 512 ? 128 : m > 128 ? 64 : 16;
    return (m + unit - 1) / unit * unit;
}

/* Rounded up, within what there is room for: the rows behind the last one are of no use. A list may have more rows than
 * scratch has for results, and fewer than for a step. */
static uint32_t blas_rows(const struct launch *l, uint32_t m, const struct launch_limits *limits)
{
    const bool step = l->rows.of == ROWS_STEP && !l->rows.first && limits->rows;
    uint32_t room = step ? limits->rows : l->m;
    if (step && l->rows.most < room)
        room = l->rows.most;
    if (l->rows.of == ROWS_RESULTS && limits->outs && limits->outs < room)
        room = limits->outs;
    const uint32_t up = launch_blas_rows(m);
    return up < room ? up : m > room ? m : room;
}

void launch_bind(struct launch *l, const struct launch_step *s, const struct launch_limits *limits)
{
    const uint32_t m = launch_rows(&l->rows, &s->meta);
    uint32_t *rows = plain_rows(l);
    bind_grid(l, m, s->meta.seqs);
    if (rows)
        *rows = m;
    switch ((enum launch_args)l->args) {
    case ARGS_GEMM:
        bind_gemm(l, m, s);
        break;
    case ARGS_PACK:
        bind_pack(l, m, s);
        break;
    case ARGS_EMBED:
        bind_embed(l, s);
        break;
    case ARGS_QKV:
        bind_qkv(l, m, s);
        break;
    case ARGS_LATENT:
        bind_latent(l, m, s);
        break;
    case ARGS_ATTN_ROW:
        l->a.attn_row.qkv.m = m;
        l->a.attn_row.qkv.meta = s->meta;
        l->a.attn_row.qkv.kv.table = table_of(l, &s->meta);
        bind_attn(l, m, s, limits);
        break;
    case ARGS_ATTN:
        bind_attn(l, m, s, limits);
        break;
    case ARGS_BLAS:
        l->a.blas.m = m ? blas_rows(l, m, limits) : 0;
        break;
    case ARGS_GROUP:
        bind_group(l, &l->a.group, m, s);
        l->grid.shared = (m * l->a.group.used + 127) / 128 * 128 * 2;
        break;
    case ARGS_SORT:
        bind_group(l, &l->a.sort.group, m, s);
        break;
    case ARGS_CONV:
        l->a.conv.meta = s->meta;
        break;
    case ARGS_SCAN:
        l->a.scan.meta = s->meta;
        break;
    case ARGS_CELL:
        l->a.cell.meta = s->meta;
        break;
    case ARGS_LORA:
        bind_lora(l, m, s);
        break;
    case ARGS_PICK:
        bind_pick(l, m, s);
        break;
    default: /* nothing but rows */
        break;
    }
}

bool launch_empty(const struct launch *l)
{
    return l->kernel < K_COUNT && (!l->grid.x || !l->grid.y || !l->grid.z);
}

/* ---- printing ---- */

static const char *launch_name(const struct launch *l)
{
    return l->kernel == LAUNCH_BLAS      ? "cublasLt"
           : l->kernel == LAUNCH_RESULTS ? "copy"
                                         : gpu_kernel_name(l->kernel);
}

static void print_span(struct span s, struct buf *out)
{
    static const char *const name[PLACE_COUNT] = {[PLACE_PACK] = "pack",     [PLACE_HALF] = "half",
                                                  [PLACE_FP8] = "fp8",       [PLACE_FLOATS] = "floats",
                                                  [PLACE_Q8] = "q8",         [PLACE_Y] = "y",
                                                  [PLACE_Z] = "z",           [PLACE_PARTS] = "parts",
                                                  [PLACE_KV] = "kv",         [PLACE_DECODED] = "decoded",
                                                  [PLACE_ROUTE] = "route",   [PLACE_SHARED] = "shared",
                                                  [PLACE_STATE] = "state",   [PLACE_CHUNKS] = "chunks",
                                                  [PLACE_LORA_X] = "lora x", [PLACE_LORA_LOW] = "lora ax",
                                                  [PLACE_LOGITS] = "logits", [PLACE_HOST] = "host"};
    if (s.place != PLACE_BUFFER)
        buf_printf(out, "%s", name[s.place]);
    else if (s.col)
        buf_printf(out, "b%u+%u", s.buffer, s.col);
    else
        buf_printf(out, "b%u", s.buffer);
}

static void print_spans(const struct span *s, int n, struct buf *out)
{
    bool first = true;
    for (int i = 0; i < n; i++)
        if (s[i].place) {
            buf_printf(out, "%s", first ? "" : ", ");
            print_span(s[i], out);
            first = false;
        }
    if (first)
        buf_char(out, '-');
}

void launch_print(const struct launch *l, struct buf *out)
{
    struct buf io = {0};
    char grid[64] = "";
    print_spans(l->reads, LAUNCH_READS, &io);
    buf_printf(&io, " > ");
    print_spans(l->writes, LAUNCH_WRITES, &io);
    if (l->kernel < K_COUNT)
        snprintf(grid, sizeof grid, "(%u, %u, %u) x %u", l->grid.x, l->grid.y, l->grid.z, l->grid.threads);
    buf_printf(out, "    %-16s %-20s %-18s  %s", launch_name(l), grid, io.failed ? "?" : io.data, l->why);
    if (l->how)
        buf_printf(out, "; %s", l->how);
    buf_char(out, '\n');
    buf_free(&io);
}
