/* The greedy text of a sequence on its own, a row a step, and inside a batch of eight, or of as many as QUERN_TEST_BATCH
 * says: the same tokens, or they part where the two best were within 0.02 of each other. All families of test/data/arch,
 * on the CPU or on QUERN_TEST_DEVICE; where that chooses tokens itself, with its choices, too. And the models that the
 * command line names: shapes of real ones with weights of noise, through whose layers every rounding grows, so that a lead
 * of 0.1 counts as close there. */
#include "test.h"

#include "run/open.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_MOST = 128, MADE = 24, PROMPT_MOST = 40, CTX = 96 };

static uint32_t batch = 8;
static const float close_call = 0.02f, close_noise = 0.1f;

struct text {
    int32_t prompt[PROMPT_MOST], made[MADE];
    uint32_t n;
    float gap[MADE]; /* between the two best */
};

static struct session *open_model(const char *path, bool exact)
{
    struct err e = {0};
    struct store *store;
    struct session *l;
    struct session_options o = {.no_text = true};
    o.runner = (struct runner_options){.device = getenv("QUERN_TEST_DEVICE") ?: "cpu",
                                       .ctx = CTX,
                                       .seqs = batch,
                                       .chunk = batch * PROMPT_MOST,
                                       .kv_type = DTYPE_F16,
                                       .device_options = {.exact = exact, .threads = 2}};
    if (store_open(&store, path, &e) || session_open(&l, store, &o, &e))
        fail_msg("%s: %s", path, e.text);
    return l;
}

/* The best of a row, and how far the second is from it. */
static int32_t best_of(const float *row, uint32_t width, float *gap)
{
    int32_t best = row[0] < row[1];
    float second = row[!best];
    for (uint32_t i = 2; i < width; i++) {
        if (row[i] > row[best]) {
            second = row[best];
            best = (int32_t)i;
        } else if (row[i] > second)
            second = row[i];
    }
    *gap = row[best] - second;
    return best;
}

/* Reads the prompts in one step and then makes a token of every text in each; by: the device chooses. */
static void make(struct session *l, struct text *text, uint32_t count, bool by)
{
    struct err e = {0};
    struct seq *seq[BATCH_MOST];
    struct seq_rows part[BATCH_MOST];
    static const struct step_pick greedy = {.on = true, .top_p = 1, .repeat = 1};
    const uint32_t width = l->model->plan.out_width;
    for (uint32_t i = 0; i < count; i++) {
        if (!(seq[i] = seq_open(l->runner, &e)))
            fail_msg("%s", e.text);
        part[i] = (struct seq_rows){.seq = seq[i], .ids = text[i].prompt, .n = text[i].n, .outs = 1};
    }
    for (uint32_t at = 0; at < MADE; at++) {
        for (uint32_t i = 0; i < count; i++)
            part[i].pick = by ? &greedy : NULL;
        if (runner_step(l->runner, part, count, &e))
            fail_msg("%s", e.text);
        const int32_t *picks = by ? runner_picks(l->runner, &e) : NULL;
        const float *rows = by ? NULL : runner_results(l->runner, &e);
        if (!picks && !rows)
            fail_msg("%s", e.text);
        for (uint32_t i = 0; i < count; i++) {
            text[i].made[at] = by ? picks[i] : best_of(rows + (size_t)i * width, width, &text[i].gap[at]);
            part[i].ids = &text[i].made[at];
            part[i].n = 1;
        }
    }
    for (uint32_t i = 0; i < count; i++)
        seq_close(seq[i]);
}

static uint32_t far_calls; /* texts that part where the best leads by more */

/* How many of the texts part from `alone`; prints those that do without a close call. */
static uint32_t parted(const char *path, float close, const struct text *alone, const struct text *together)
{
    uint32_t parted = 0;
    for (uint32_t i = 0; i < batch; i++) {
        uint32_t at = 0;
        while (at < MADE && alone[i].made[at] == together[i].made[at])
            at++;
        if (at < MADE && !(alone[i].gap[at] <= close)) {
            print_message("%s: text %u parts at token %u (%d, in the batch %d), where the best leads by %g\n",
                          path, i, at, alone[i].made[at], together[i].made[at], (double)alone[i].gap[at]);
            far_calls++;
        }
        parted += at < MADE;
    }
    return parted;
}

static void check_model(const char *path, float close, bool exact)
{
    static struct text alone[BATCH_MOST], together[BATCH_MOST];
    struct session *l = open_model(path, exact);
    if (!l->model->h.causal) { /* an encoder makes no text */
        session_close(l);
        return;
    }
    for (uint32_t i = 0; i < batch; i++) {
        alone[i].n = 1 + i * (PROMPT_MOST - 1) / (batch - 1);
        for (uint32_t k = 0; k < alone[i].n; k++)
            alone[i].prompt[k] = (int32_t)((3 + k * k + 7 * k + 11 * i) % l->model->plan.out_width);
        make(l, &alone[i], 1, false);
    }
    memcpy(together, alone, sizeof alone);
    make(l, together, batch, false);
    uint32_t apart = parted(path, close, alone, together);
    bool picks = runner_can_pick(l->runner);
    if (picks) {
        make(l, together, batch, true);
        apart += parted(path, close, alone, together);
    }
    print_message("%s on %s%s: %u of %u texts of %u tokens part\n", path, l->runner->device->ops->name,
                  exact ? ", exact" : "", apart, picks ? 2 * batch : batch, MADE);
    session_close(l);
}

static char **named; /* models of the command line, up to a NULL */

static void batched_is_alone(void **state)
{
    (void)state;
    static const char folder[] = "test/data/arch";
    for (char **path = named; *path; path++)
        check_model(*path, close_noise, false);
    DIR *all = opendir(folder);
    uint32_t models = 0;
    assert_non_null(all);
    for (struct dirent *d; (d = readdir(all));) {
        char path[512];
        if (d->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
        check_model(path, close_call, false);
        check_model(path, close_call, true);
        models++;
    }
    closedir(all);
    assert_true(models >= (getenv("QUERN_TEST_DEVICE") ? 1u : 30u)); /* on a card in parts */
    assert_int_equal(far_calls, 0);                                  /* each was printed */
}

int main(int argc, char **argv)
{
    (void)argc;
    named = argv + 1;
    const char *wanted = getenv("QUERN_TEST_BATCH");
    if (wanted)
        batch = (uint32_t)strtoul(wanted, NULL, 10);
    if (batch < 2 || batch > BATCH_MOST)
        return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(batched_is_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
