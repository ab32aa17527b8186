#include "run/job_images.h"

#include "base/mem.h"
#include "run/engine.h"

int job_images_open(struct job_images *m, const struct vision *v, const struct engine_request *r,
                    int32_t *ids, struct err *e)
{
    const uint32_t n = r->image_count;
    *m = (struct job_images){0};
    if (!n)
        return 0;
    if (!v)
        return err_set(e, ERR_USAGE, "this model reads only text");
    if (r->echo)
        return err_set(e, ERR_USAGE, "a prompt with images cannot be echoed");
    m->at = mem_alloc(n, sizeof *m->at);
    m->picture = mem_alloc(n, sizeof(struct picture *));
    m->rows = mem_zalloc(n, sizeof(struct picture_rows *));
    if (!m->at || !m->picture || !m->rows)
        return err_memory(e, "images", n * sizeof *m->at);
    for (uint32_t i = 0; i < n; i++)
        m->picture[m->count++] = picture_hold(r->images[i].picture);
    return vision_place(v, r->images, n, ids, m->at, e);
}

uint32_t job_images_longest(const struct job_images *m)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < m->count; i++) {
        const uint32_t run = m->picture[i]->rows / m->picture[i]->prepared.tiles;
        most = run > most ? run : most;
    }
    return most;
}

void job_images_close(struct job_images *m)
{
    for (uint32_t i = 0; i < m->count; i++) {
        picture_drop(m->picture[i]);
        vision_drop(m->rows[i]);
    }
    mem_free(m->at);
    mem_free(m->picture);
    mem_free(m->rows);
}

uint32_t job_images_ready(const struct job_images *m, uint32_t from, uint32_t n)
{
    for (uint32_t i = 0; i < m->count; i++) {
        const struct seq_image *a = &m->at[i];
        if (a->first + a->tokens <= from || a->data)
            continue;
        const uint32_t before = a->first > from ? a->first - from : 0;
        return before < n ? before : n;
    }
    return n;
}

int job_images_encode(struct job_images *m, struct vision *v, uint32_t len, uint32_t end, double seconds,
                      struct err *e)
{
    for (uint32_t i = 0; i < m->count; i++) {
        struct seq_image *a = &m->at[i];
        if (a->first + a->tokens <= len && a->data) {
            vision_drop(m->rows[i]);
            m->rows[i] = NULL;
            a->data = NULL;
        }
        if (a->first + a->tokens <= len || a->first >= end || a->data)
            continue;
        const int done = vision_encode_some(v, m->picture[i], seconds, &m->rows[i], e);
        if (done > 0)
            a->data = m->rows[i]->data;
        return done < 0 ? -1 : 1;
    }
    return 0;
}

uint32_t job_images_start(const struct job_images *m, uint32_t len)
{
    for (uint32_t i = 0; i < m->count; i++)
        if (m->at[i].first < len && len < m->at[i].first + m->at[i].tokens)
            return m->at[i].first;
    return len;
}
