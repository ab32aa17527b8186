/* Constraints as the engine sees them: a language bound to a vocabulary, and states that walk through it. */
#include "lang/grammar/constraint_run.h"

#include "lang/grammar/grammar_front.h"

#include <string.h>

struct constraint *constraint_make(struct grammar *g, uint32_t root, struct err *e)
{
    struct constraint *c = mem_zalloc(1, sizeof *c);
    if (!c)
        err_memory(e, "a constraint", sizeof *c);
    else if (grammar_compile(g, root, &c->program, e)) {
        mem_free(c);
        c = NULL;
    }
    grammar_free(g);
    return c;
}

static uint32_t spec_choices(struct grammar *g, const struct constraint_spec *s)
{
    struct gram_items all = {0};
    uint32_t root = grammar_rule(g);
    for (size_t i = 0; i < s->n; i++)
        gram_push(g, &all, gram_text(g, s->choices[i]));
    grammar_define(g, root, gram_list(g, GRAM_ALT, all.at, all.n));
    return root;
}

static uint32_t spec_regex(struct grammar *g, const struct constraint_spec *s)
{
    uint32_t root = grammar_rule(g);
    grammar_define(g, root, pattern_read(g, s->text, s->n, PATTERN_WHOLE));
    return root;
}

struct constraint *constraint_from(const struct constraint_spec *s, struct err *e)
{
    struct grammar g;
    uint32_t root = 0;
    grammar_init(&g);
    switch (s->language) {
    case LANGUAGE_SCHEMA:
        root = schema_read(&g, s->schema);
        break;
    case LANGUAGE_GBNF:
        root = gbnf_read(&g, s->text, s->n);
        break;
    case LANGUAGE_REGEX:
        root = spec_regex(&g, s);
        break;
    case LANGUAGE_CHOICES:
        root = spec_choices(&g, s);
        break;
    }
    if (s->behind)
        root = grammar_behind(&g, s->behind, root);
    return constraint_make(&g, root, e);
}

struct constraint *constraint_from_gbnf(const char *text, size_t n, struct err *e)
{
    return constraint_from(&(struct constraint_spec){.language = LANGUAGE_GBNF, .text = text, .n = n}, e);
}

struct constraint *constraint_from_schema(const json_t *schema, struct err *e)
{
    return constraint_from(&(struct constraint_spec){.language = LANGUAGE_SCHEMA, .schema = schema}, e);
}

struct constraint *constraint_from_json_object(struct err *e)
{
    json_t *schema = json_pack("{ss}", "type", "object");
    if (!schema) {
        err_memory(e, "a schema", 64);
        return NULL;
    }
    struct constraint *c = constraint_from_schema(schema, e);
    json_decref(schema);
    return c;
}

struct constraint *constraint_from_regex(const char *text, size_t n, struct err *e)
{
    return constraint_from(&(struct constraint_spec){.language = LANGUAGE_REGEX, .text = text, .n = n}, e);
}

struct constraint *constraint_from_choices(const char *const *texts, size_t n, struct err *e)
{
    return constraint_from(&(struct constraint_spec){.language = LANGUAGE_CHOICES, .choices = texts, .n = n},
                           e);
}

void constraint_free(struct constraint *c)
{
    if (!c)
        return;
    program_free(&c->program);
    mem_free(c);
}

void constraint_unbind(struct constraint_bound *b)
{
    if (!b)
        return;
    pthread_mutex_destroy(&b->lock);
    mem_free(b->half[0]);
    mem_free(b->half[1]);
    mem_free(b->slots);
    mem_free(b->work);
    mem_free(b->work_slot);
    mem_free(b->unions);
    mem_free(b->temp);
    mem_free(b->path);
    mem_free(b->mask);
    mem_free(b->scratch);
    mem_free(b);
}

struct constraint_bound *constraint_bind(const struct constraint *c, const struct constraint_vocab *v,
                                         size_t memory, struct err *e)
{
    struct constraint_bound *b = mem_zalloc(1, sizeof *b);
    if (!b) {
        err_memory(e, "a constraint", sizeof *b);
        return NULL;
    }
    size_t half = (memory ? memory : (size_t)64 << 20) / 16 * 8, words = ((size_t)v->count + 31) / 32;
    pthread_mutex_init(&b->lock, NULL);
    b->p = &c->program;
    b->v = v;
    b->size = half;
    b->slot_count = 1u << 18;
    b->half[0] = mem_alloc(half, 1);
    b->half[1] = mem_alloc(half, 1);
    b->slots = mem_alloc(b->slot_count, sizeof *b->slots);
    b->work = mem_alloc(WORK_MOST, sizeof *b->work);
    b->work_slot = mem_zalloc(WORK_SLOTS, sizeof *b->work_slot);
    b->unions = mem_alloc(UNION_SLOTS, sizeof *b->unions);
    b->temp = mem_alloc(WORK_MOST, sizeof *b->temp);
    b->path = mem_zalloc((size_t)v->depth + 1, sizeof *b->path);
    b->mask = mem_zalloc(words, sizeof *b->mask);
    b->scratch = mem_zalloc(words, sizeof *b->scratch);
    if (!b->half[0] || !b->half[1] || !b->slots || !b->work || !b->work_slot || !b->unions || !b->temp ||
        !b->path || !b->mask || !b->scratch)
        err_memory(e, "a constraint", memory);
    else if (half < 65536 || sets_open(b))
        err_set(e, ERR_RESOURCE, "the constraint does not fit into %zu bytes", 2 * half);
    else
        return b;
    constraint_unbind(b);
    return NULL;
}

void constraint_warm(struct constraint_bound *b)
{
    pthread_mutex_lock(&b->lock);
    mask_warm(b);
    pthread_mutex_unlock(&b->lock);
}

size_t constraint_bytes(struct constraint_bound *b)
{
    const struct program *p = b->p;
    size_t words = ((size_t)b->v->count + 31) / 32;
    size_t fixed = sizeof *b + b->slot_count * sizeof *b->slots + UNION_SLOTS * sizeof *b->unions +
                   WORK_MOST * (sizeof *b->work + sizeof *b->temp) + WORK_SLOTS * sizeof *b->work_slot +
                   words * (sizeof *b->mask + sizeof *b->scratch) + p->state_cap * sizeof *p->states +
                   p->edge_cap * sizeof *p->edges + p->rule_cap * sizeof *p->rules;
    pthread_mutex_lock(&b->lock);
    size_t computed = b->used + (b->turned ? b->size : 0);
    pthread_mutex_unlock(&b->lock);
    return fixed + computed;
}

static set_id state_top(const struct constraint_state *s)
{
    return s->ring[s->at];
}

static void state_push(struct constraint_state *s, set_id id)
{
    s->open = false; /* until the next mask says so */
    s->at = (s->at + 1) % (CONSTRAINT_BACK + 1);
    s->ring[s->at] = id;
    if (s->n < CONSTRAINT_BACK + 1)
        s->n++;
}

/* Every call on a state: the lock, and room for what it may compute. */
static void state_enter(struct constraint_state *s)
{
    pthread_mutex_lock(&s->b->lock);
    s->b->failed = false;
    s->left = s->left + WORK_CALL < WORK_TEXT ? s->left + WORK_CALL : WORK_TEXT;
    s->b->left = s->left;
    sets_collect(s->b);
}

static void state_leave(struct constraint_state *s)
{
    s->left = s->b->left;
    pthread_mutex_unlock(&s->b->lock);
}

static int state_full(struct err *e)
{
    return err_set(e, ERR_RESOURCE,
                   "the constraint is too ambiguous: it needs more memory or work than the limit");
}

static void state_link(struct constraint_state *s)
{
    struct constraint_bound *b = s->b;
    s->next = b->states;
    s->prev = NULL;
    if (s->next)
        s->next->prev = s;
    b->states = s;
}

struct constraint_state *constraint_state_open(struct constraint_bound *b, struct err *e)
{
    struct constraint_state *s = mem_zalloc(1, sizeof *s);
    if (!s) {
        err_memory(e, "a constraint's state", sizeof *s);
        return NULL;
    }
    s->b = b;
    pthread_mutex_lock(&b->lock);
    s->n = 1;
    s->left = WORK_TEXT;
    s->ring[0] = b->start;
    state_link(s);
    pthread_mutex_unlock(&b->lock);
    return s;
}

struct constraint_state *constraint_state_clone(const struct constraint_state *of, struct err *e)
{
    struct constraint_state *s = mem_alloc(1, sizeof *s);
    if (!s) {
        err_memory(e, "a constraint's state", sizeof *s);
        return NULL;
    }
    pthread_mutex_lock(&of->b->lock);
    *s = *of;
    state_link(s);
    pthread_mutex_unlock(&of->b->lock);
    return s;
}

void constraint_state_close(struct constraint_state *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->b->lock);
    if (s->prev)
        s->prev->next = s->next;
    else
        s->b->states = s->next;
    if (s->next)
        s->next->prev = s->prev;
    pthread_mutex_unlock(&s->b->lock);
    mem_free(s);
}

int constraint_mask(struct constraint_state *s, uint32_t *mask, struct err *e)
{
    struct constraint_bound *b = s->b;
    size_t words = ((size_t)b->v->count + 31) / 32;
    state_enter(s);
    set_id at = state_top(s);
    bool end = at == SET_END;
    memset(mask, 0, words * sizeof *mask);
    if (at >= SET_FIRST) {
        end = set_get(b, at)->flags & FLAG_END;
        mask_make(b, at);
        memcpy(mask, b->mask, words * sizeof *mask);
    }
    if (end)
        for (uint32_t i = 0; i < b->v->ends; i++)
            mask[(uint32_t)b->v->end[i] / 32] |= 1u << (uint32_t)b->v->end[i] % 32;
    bool failed = b->failed || at == SET_DEAD;
    s->open = !failed && at >= SET_FIRST && end && !memcmp(mask, b->v->all, words * sizeof *mask);
    state_leave(s);
    if (failed)
        return state_full(e);
    uint32_t any = 0;
    for (size_t i = 0; i < words; i++)
        any |= mask[i];
    if (!any)
        return err_set(e, ERR_DATA, "no token of the vocabulary satisfies the constraint here");
    return 0;
}

int constraint_accept_bytes(struct constraint_state *s, const char *text, size_t n, struct err *e)
{
    struct constraint_bound *b = s->b;
    state_enter(s);
    set_id at = state_top(s);
    for (size_t i = 0; i < n && at >= SET_FIRST && !b->failed; i++)
        at = set_step(b, at, (uint8_t)text[i]);
    bool failed = b->failed || at == SET_DEAD;
    if (!failed && at >= SET_FIRST)
        state_push(s, at);
    state_leave(s);
    if (failed)
        return state_full(e);
    return at >= SET_FIRST ? 0 : err_set(e, ERR_DATA, "the constraint does not allow this text here");
}

int constraint_accept(struct constraint_state *s, int32_t token, struct err *e)
{
    const struct constraint_vocab *v = s->b->v;
    bool known = token >= 0 && token < v->count && v->kind[token] != CONSTRAINT_NEVER;
    if (!known && s->open && token >= 0) { /* it has no text to be held to anything */
        state_push(s, state_top(s));
        return 0;
    }
    if (!known)
        return err_set(e, ERR_DATA, "the constraint does not allow token %d", token);
    if (v->kind[token] == CONSTRAINT_TEXT)
        return constraint_accept_bytes(s, v->bytes + v->at[token], v->at[token + 1] - v->at[token], e);
    if (!constraint_accepts_end(s))
        return err_set(e, ERR_DATA, "the constraint does not allow the text to end here");
    state_push(s, SET_END);
    return 0;
}

int constraint_rollback(struct constraint_state *s, size_t n, struct err *e)
{
    if (n >= s->n)
        return err_set(e, ERR_USAGE, "%zu tokens cannot be taken back: %u can", n, s->n - 1);
    s->n -= (uint32_t)n;
    s->open = false;
    s->at = (uint32_t)((s->at + CONSTRAINT_BACK + 1 - n) % (CONSTRAINT_BACK + 1));
    return 0;
}

bool constraint_allows_all(const struct constraint_state *s)
{
    return s->open;
}

bool constraint_accepts_end(struct constraint_state *s)
{
    pthread_mutex_lock(&s->b->lock);
    set_id at = state_top(s);
    bool end = at == SET_END || (at >= SET_FIRST && set_get(s->b, at)->flags & FLAG_END);
    pthread_mutex_unlock(&s->b->lock);
    return end;
}

bool constraint_is_over(struct constraint_state *s)
{
    uint32_t every = UINT32_MAX;
    pthread_mutex_lock(&s->b->lock);
    set_id at = state_top(s);
    for (int i = 0; i < 8 && at >= SET_FIRST; i++)
        every &= set_get(s->b, at)->first[i];
    pthread_mutex_unlock(&s->b->lock);
    return constraint_accepts_end(s) && (at < SET_FIRST || every != UINT32_MAX);
}

size_t constraint_forced(struct constraint_state *s, char *out, size_t cap)
{
    struct constraint_bound *b = s->b;
    size_t n = 0;
    state_enter(s);
    set_id at = state_top(s);
    while (n < cap && at >= SET_FIRST && !b->failed) {
        const struct set *set = set_get(b, at);
        int bytes = 0, byte = 0;
        for (int i = 0; i < 8; i++) {
            bytes += __builtin_popcount(set->first[i]);
            if (set->first[i])
                byte = i * 32 + __builtin_ctz(set->first[i]);
        }
        if (bytes != 1 || set->flags & FLAG_END)
            break;
        out[n++] = (char)byte;
        at = set_step(b, at, (uint8_t)byte);
    }
    state_leave(s);
    return n;
}

size_t constraint_forced_tokens(struct constraint_state *s, int32_t *out, size_t cap)
{
    char text[256];
    size_t n = constraint_forced(s, text, sizeof text), count = 0;
    for (size_t at = 0; at < n && count < cap; count++) {
        int32_t id = vocab_longest(s->b->v, text + at, n - at);
        if (id < 0)
            break;
        out[count] = id;
        at += s->b->v->at[id + 1] - s->b->v->at[id];
    }
    return count;
}
