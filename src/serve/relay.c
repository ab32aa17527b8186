#include "serve/relay.h"

#include "serve/conn.h"
#include "serve/request.h"

struct request *relay_follow(struct relay *r, struct conn *c, bool stream)
{
    struct request *f = request_hold(c);
    if (!f) {
        conn_failf(c, 503, NULL, "out of memory");
        return NULL;
    }
    f->stream = stream;
    f->follows = r;
    f->next_follower = r->followers;
    r->followers = f;
    return f;
}

void relay_feed(struct request *f)
{
    struct relay *r = f->follows;
    if (!f->client) { /* cannot be: it is freed with its connection */
        request_free(f);
        return;
    }
    if (f->stream && f->to->full(f->client))
        return;
    if (f->stream && f->fed < r->bytes.len) {
        size_t from = f->fed;
        f->fed = r->bytes.len;
        f->to->add(f->client, f, r->bytes.data + from, r->bytes.len - from);
    }
    if (r->ended)
        r->kind->finish(r, f);
}

void relay_feed_all(struct relay *r)
{
    for (struct request *f = r->followers, *next; f; f = next) {
        next = f->next_follower; /* the last one to leave may free r */
        relay_feed(f);
    }
}

void relay_leave(struct request *f)
{
    struct relay *r = f->follows;
    if (!r)
        return;
    for (struct request **at = &r->followers; *at; at = &(*at)->next_follower)
        if (*at == f) {
            *at = f->next_follower;
            break;
        }
    f->follows = NULL;
    if (!r->followers)
        r->kind->left(r);
}
