#include "tool/plot.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "tool/output_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The picture: 760 x 420, the axes from (70, 60) to (730, 370). */
enum { LEFT = 70, RIGHT = 730, TOP = 60, BOTTOM = 370, POINTS = 400 };

struct axes {
    double low, high; /* powers of ten that the vertical axis spans */
};

static double place_x(double share)
{
    return LEFT + share * (RIGHT - LEFT);
}

static double place_y(const struct axes *a, double kl)
{
    double v = kl > 0 ? log10(kl) : a->low;
    v = v < a->low ? a->low : v > a->high ? a->high : v;
    return BOTTOM - (v - a->low) / (a->high - a->low) * (BOTTOM - TOP);
}

/* Text within SVG: what is markup is escaped. */
static void put_text(struct buf *out, const char *s)
{
    for (; *s; s++)
        if (*s == '<' || *s == '&' || *s == '>')
            buf_str(out, *s == '<' ? "&lt;" : *s == '>' ? "&gt;" : "&amp;");
        else if ((unsigned char)*s >= 32)
            buf_char(out, *s);
}

static void put_axes(struct buf *out, const struct axes *a)
{
    for (int p = (int)a->low; p <= (int)a->high; p++) {
        double y = place_y(a, pow(10, p));
        buf_printf(out,
                   "<path d=\"M%d %.1fH%d\" class=\"g\"/><text x=\"%d\" y=\"%.1f\" "
                   "text-anchor=\"end\">1e%d</text>\n",
                   LEFT, y, RIGHT, LEFT - 8, y + 4, p);
    }
    for (int s = 0; s <= 100; s += 20)
        buf_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d%%</text>\n", place_x(s / 100.0),
                   BOTTOM + 18, s);
    buf_printf(
        out,
        "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">positions, from the closest to the farthest</text>\n",
        (LEFT + RIGHT) / 2, BOTTOM + 38);
    buf_printf(out,
               "<text transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\">KL divergence "
               "(nats)</text>\n",
               (TOP + BOTTOM) / 2);
}

static void put_curve(struct buf *out, const struct axes *a, const struct perplexity *p)
{
    const struct divergence *d = &p->against;
    buf_str(out, "<path class=\"c\" d=\"");
    for (int i = 0; i <= POINTS; i++) {
        double share = (double)i / POINTS;
        size_t at = (size_t)(share * (double)(p->scored - 1));
        buf_printf(out, "%s%.1f %.1f", i ? "L" : "M", place_x(share), place_y(a, d->each[at]));
    }
    buf_str(out, "\"/>\n");
    const struct {
        const char *name;
        double share, kl;
    } marks[] = {{"median", 0.5, d->median}, {"99%", 0.99, d->p99}};
    for (size_t i = 0; i < 2; i++) {
        double x = place_x(marks[i].share), y = place_y(a, marks[i].kl);
        buf_printf(out,
                   "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/><text x=\"%.1f\" y=\"%.1f\" "
                   "text-anchor=\"end\">%s %.3g</text>\n",
                   x, y, x - 8, y - 8, marks[i].name, marks[i].kl);
    }
}

int plot_divergence(const char *path, const struct perplexity *p, const char *model, const char *against,
                    struct err *e)
{
    const struct divergence *d = &p->against;
    struct buf out = {0};
    struct axes a = {-6, ceil(log10(d->most > 1e-5 ? d->most : 1e-5))};
    buf_str(&out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 420\" font-family=\"sans-serif\" "
            "font-size=\"12\">\n<style>.g{stroke:#ddd}.c{fill:none;stroke:#1f6feb;stroke-width:2}"
            "circle{fill:#1f6feb}</style>\n<rect width=\"760\" height=\"420\" fill=\"#fff\"/>\n");
    buf_printf(&out, "<text x=\"%d\" y=\"24\" font-size=\"15\">", LEFT);
    put_text(&out, model);
    buf_str(&out, " against ");
    put_text(&out, against);
    buf_printf(&out,
               "</text>\n<text x=\"%d\" y=\"44\">perplexity %.4f / %.4f = %.4f, mean KL %.5f, same best "
               "token %.2f%%, "
               "%llu positions</text>\n",
               LEFT, p->value, d->other, d->ratio, d->mean, 100 * d->same_top, (unsigned long long)p->scored);
    put_axes(&out, &a);
    put_curve(&out, &a, p);
    buf_str(&out, "</svg>\n");
    int failed =
        out.failed ? err_memory(e, "the plot", out.len) : output_file_write(path, out.data, out.len, e);
    buf_free(&out);
    return failed;
}
