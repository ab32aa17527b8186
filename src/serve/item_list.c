#include "serve/item_list.h"

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "serve/field.h"
#include "serve/request.h"

#include <stdio.h>
#include <string.h>

enum { LIST_LIMIT = 20, LIST_MOST = 100 };

int item_list_read(struct item_list *l, struct request *a)
{
    const char *limit = field_text(a->json, "limit"), *order = field_text(a->json, "order");
    uint64_t n = LIST_LIMIT;
    l->after = field_text(a->json, "after");
    l->descending = !order || strcmp(order, "asc") != 0;
    if (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        return request_fail(a, 400, "order", "order is asc or desc, not '%s'", log_safe(order));
    if (limit && (!num_u64(limit, strlen(limit), LIST_MOST, &n) || !n))
        return request_fail(a, 400, "limit", "limit has to be from 1 to %d, not '%s'", LIST_MOST,
                            log_safe(limit));
    l->limit = n;
    return 0;
}

bool item_list_take(void *list, const struct thread_item *item)
{
    struct item_list *l = list;
    void *all = mem_more(l->all, l->count, &l->room, sizeof *l->all);
    if (!all)
        return !(l->failed = true);
    l->all = all;
    struct item_text *t = &l->all[l->count++];
    *t = (struct item_text){0};
    snprintf(t->id, sizeof t->id, "%s", item->id);
    l->failed |= !buf_add(&t->body, item->body, item->n);
    return !l->failed;
}

void item_list_write(struct item_list *l, struct request *a, size_t from, size_t count, bool more)
{
    struct buf *out = &a->reply;
    if (l->failed) {
        request_fail(a, 503, NULL, "out of memory");
        return;
    }
    buf_str(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = from; i < from + count; i++) {
        buf_str(out, i > from ? "," : "");
        buf_add(out, l->all[i].body.data, l->all[i].body.len);
    }
    buf_printf(out, "],\"has_more\":%s", more ? "true" : "false");
    const char *const ends[][2] = {{"first_id", count ? l->all[from].id : NULL},
                                   {"last_id", count ? l->all[from + count - 1].id : NULL}};
    for (int i = 0; i < 2; i++) {
        buf_printf(out, ",\"%s\":%s", ends[i][0], ends[i][1] ? "\"" : "null");
        if (ends[i][1]) {
            json_escape(out, ends[i][1], strlen(ends[i][1]));
            buf_char(out, '"');
        }
    }
    buf_char(out, '}');
}

void item_list_write_page(struct item_list *l, struct request *a)
{
    size_t from = 0;
    for (size_t i = 0; l->descending && i < l->count / 2; i++) {
        struct item_text t = l->all[i];
        l->all[i] = l->all[l->count - 1 - i];
        l->all[l->count - 1 - i] = t;
    }
    while (l->after && from < l->count && strcmp(l->all[from].id, l->after) != 0)
        from++;
    from += l->after && from < l->count;
    size_t left = l->count - from, n = left < l->limit ? left : l->limit;
    item_list_write(l, a, from, n, left > n);
}

void item_list_free(struct item_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        buf_free(&l->all[i].body);
    mem_free(l->all);
    *l = (struct item_list){0};
}
