// The status page, for a person on call: reads /metrics every two seconds and shows the last ten minutes. What the page itself
// asks for is not counted.
import { $, bytes, el, seconds, svg } from "/page/dom.js";
import { getJson, Offline, request } from "/page/api.js";
import { change, parse, percentile, rate } from "/page/prometheus.js";
import { themeButton } from "/page/theme.js";

const EVERY = 2, KEPT = 300, FEWEST = 30; // seconds between samples; samples that are kept, that a plot is wide at least
const SMOOTH = 15; // samples over which percentiles and shares are taken
const USAGE_EVERY = 15; // samples between two looks at the usage
const OWN = /^(\/|\/(metrics|models|usage|status|session|page\/\*|livez|readyz|health|openapi\.json|slots|props|api\/version))$/;
let samples = [], looks = 0;

const whole = (v) => Math.round(v).toLocaleString("en"), tenth = (v) => (v < 10 ? v.toFixed(1) : whole(v)), percent = (v) => (100 * v).toFixed(0) + "%";
const span = (v) => (v == null ? "–" : v < 1 ? (1000 * v).toFixed(v < 0.01 ? 1 : 0) + " ms" : v.toFixed(2) + " s");
const before = (i, n = SMOOTH) => samples[Math.max(0, i - n)];

const gauge = (name) => (i) => samples[i].sums[name] ?? 0;
const perSecond = (name) => (i) => rate(name, samples[i], before(i, 2));
const at = (name, share) => (i) => percentile(name, share, samples[i], before(i));
const kvUsed = (i) => {
  const s = samples[i].sums;
  return s.quern_kv_pages ? 1 - s.quern_kv_pages_free / s.quern_kv_pages : 0;
};
const hits = (i) => {
  const known = change("quern_cached_tokens_total", samples[i], before(i)), read = change("quern_prompt_tokens_total", samples[i], before(i));
  return known + read > 0 ? known / (known + read) : null;
};

const PLOTS = [
  ["Tokens a second", tenth, [["generated", perSecond("quern_generated_tokens_total")], ["prompt", perSecond("quern_prompt_tokens_total")]]],
  ["Requests", whole, [["running", gauge("quern_running")], ["in the queue", gauge("quern_waiting")]]],
  ["First token", span, [["median", at("quern_first_token_seconds", 0.5)], ["95%", at("quern_first_token_seconds", 0.95)]]],
  ["Between tokens", span, [["median", at("quern_token_seconds", 0.5)], ["95%", at("quern_token_seconds", 0.95)]]],
  ["KV pages in use", percent, [["used", kvUsed]], 1],
  ["Prefix cache: prompt tokens found", percent, [["found", hits]], 1],
];

function legend(title, names, values) {
  return el("figcaption", {}, title, ...names.map((name, i) => el("span", { class: `key-${i + 1}` }, `${name} ${values[i]}`)));
}

function plot([title, form, lines, most]) {
  const wide = 400, high = 120, left = 46, bottom = 100, n = samples.length;
  const series = lines.map(([, value]) => samples.map((_, i) => (i ? value(i) : null)));
  const shown = Math.max(FEWEST, n), top = most ?? Math.max(form === span ? 0.001 : form === whole ? 1 : 0.1, ...series.flat().filter((v) => v != null)) * 1.1;
  const last = series.map((s) => (s.at(-1) == null ? "–" : form(s.at(-1))));
  const out = svg("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": `${title}: ${lines.map(([name], i) => `${name} ${last[i]}`).join(", ")}` });
  const words = (x, y, anchor, text) => svg("text", { x, y, "text-anchor": anchor }, text);
  out.append(svg("line", { class: "axis", x1: left, x2: wide, y1: bottom, y2: bottom }), words(left - 5, 12, "end", form(top)), words(left - 5, bottom, "end", form(0)),
             words(left, high - 4, "start", `${Math.max(1, Math.round((shown * EVERY) / 60))} min ago`), words(wide, high - 4, "end", "now"));
  series.forEach((values, k) => {
    let run = [];
    const end = () => run.length && out.append(svg("polyline", { class: `line-${k + 1}`, points: run.join(" ") })) && (run = []);
    values.forEach((v, i) => (v == null ? end() : run.push(`${(wide - ((n - 1 - i) * (wide - left)) / shown).toFixed(1)},${(bottom - (Math.min(v, top) / top) * (bottom - 8)).toFixed(1)}`)));
    end();
  });
  return el("figure", { class: "plot" }, legend(title, lines.map(([name]) => name), last), out);
}

// Requests that are not the page's own, by route: {answered, refused, failed}.
function routes(sample) {
  const all = new Map();
  for (const { labels, value } of sample.rows.quern_requests_total ?? []) {
    if (OWN.test(labels.route)) continue;
    const r = all.get(labels.route) ?? { route: labels.route, answered: 0, refused: 0, failed: 0 };
    r[labels.code < "4" ? "answered" : labels.code < "5" ? "refused" : "failed"] += value;
    all.set(labels.route, r);
  }
  return [...all.values()].sort((a, b) => b.answered + b.refused + b.failed - a.answered - a.refused - a.failed);
}

function figures() {
  const i = samples.length - 1, now = samples[i], old = samples[0], s = now.sums;
  const sum = (sample, kind) => routes(sample).reduce((n, r) => n + r[kind], 0);
  const refused = sum(now, "refused") - sum(old, "refused"), failed = sum(now, "failed") - sum(old, "failed");
  const both = (name) => `95%: ${span(percentile(name, 0.95, now, old))} · 99%: ${span(percentile(name, 0.99, now, old))}`;
  const rows = [
    ["Running", whole(s.quern_running ?? 0), s.quern_batch_running ? `${whole(s.quern_batch_running)} of batches` : "requests being generated"],
    ["In the queue", whole(s.quern_waiting ?? 0), s.quern_refused_total ? `${whole(s.quern_refused_total)} refused since the start` : "requests that wait", s.quern_waiting > 0],
    ["Tokens a second", tenth(perSecond("quern_generated_tokens_total")(i)), `prompt: ${tenth(perSecond("quern_prompt_tokens_total")(i))}`],
    ["First token, median", span(percentile("quern_first_token_seconds", 0.5, now, old)), both("quern_first_token_seconds")],
    ["Between tokens, median", span(percentile("quern_token_seconds", 0.5, now, old)), both("quern_token_seconds")],
    ["KV pages in use", percent(kvUsed(i)), `${whole((s.quern_kv_pages ?? 0) - (s.quern_kv_pages_free ?? 0))} of ${whole(s.quern_kv_pages ?? 0)}`, kvUsed(i) > 0.95],
    ["Prefix cache hits", hits(i) == null ? "–" : percent(hits(i)), `${whole(s.quern_cached_tokens_total ?? 0)} tokens since the start`],
    ["Failed in ten minutes", whole(failed), `refused: ${whole(refused)}`, failed > 0],
  ];
  return rows.map(([name, value, note, warn]) => el("div", { class: warn ? "figure warn" : "figure" }, el("span", {}, name), el("b", {}, value), el("span", {}, note)));
}

const cells = (...values) => el("tr", {}, ...values.map((v) => (v instanceof Node ? el("td", {}, v) : Array.isArray(v) ? el("td", { class: "n" }, v[0]) : el("td", {}, v))));

function devices(s) {
  const by = (name) => new Map((s.rows[`quern_device_${name}_bytes`] ?? []).map((r) => [r.labels.device, r.value]));
  const [weights, kv, scratch, total] = ["weights", "kv", "scratch", "memory"].map(by);
  return [...total.keys()].map((d) => {
    const used = (weights.get(d) ?? 0) + (kv.get(d) ?? 0) + (scratch.get(d) ?? 0), all = total.get(d);
    const meter = all ? el("meter", { min: 0, max: all, value: used, "aria-label": `Memory of ${d} in use` }) : "";
    return cells(d, [bytes(weights.get(d) ?? 0)], [bytes(kv.get(d) ?? 0)], [bytes(scratch.get(d) ?? 0)], [all ? bytes(all) : "–"], meter);
  });
}

async function models() {
  const all = (await getJson("/v1/models", { quiet: true })).data;
  $("models").replaceChildren(...all.map((m) => cells(el("span", {}, el("span", { class: "status-dot dot " + m.status.value }), m.id), m.status.value, m.status.device ?? "", [m.status.memory ? bytes(m.status.memory) : "–"],
    [m.meta?.size ? bytes(m.meta.size) : "–"], [m.max_model_len ? whole(m.max_model_len) : "–"])));
}

// Tokens of each day as bars: read below, generated above.
function bars(days) {
  const wide = 400, high = 120, left = 46, bottom = 100, each = (wide - left) / days.length, top = Math.max(1, ...days.map((d) => d.read + d.written));
  const out = svg("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": "Tokens a day" });
  const bar = (i, from, n, kind) => svg("rect", { class: kind, x: (left + i * each + 1).toFixed(1), width: Math.max(1, Math.min(28, each - 2)).toFixed(1), y: (bottom - ((from + n) / top) * (bottom - 8)).toFixed(1), height: ((n / top) * (bottom - 8)).toFixed(1) });
  days.forEach((d, i) => out.append(bar(i, 0, d.read, "bar-1"), bar(i, d.read, d.written, "bar-2")));
  const words = (x, y, anchor, text) => svg("text", { x, y, "text-anchor": anchor }, text);
  out.append(svg("line", { class: "axis", x1: left, x2: wide, y1: bottom, y2: bottom }), words(left - 5, 12, "end", whole(top)), words(left, high - 4, "start", days[0].day));
  if (days.length > 1) out.append(words(wide, high - 4, "end", days.at(-1).day));
  return el("figure", { class: "plot" }, legend("Tokens a day", ["prompt", "generated"], ["read", "written"].map((k) => whole(days.reduce((n, d) => n + d[k], 0)))), out);
}

// Of all keys for an admin key, of its own for another one.
async function usage() {
  const counts = ["requests", "errors", "read", "cached", "written"], days = new Map(), keys = new Map();
  for (const r of (await getJson("/usage?since=30d", { quiet: true })).data) {
    const who = r.name ?? (r.key_id ? `key ${r.key || r.key_id}` : "no key");
    for (const [map, name, first] of [[days, r.day, { day: r.day }], [keys, `${who}\n${r.model}`, { who, model: r.model || "none" }]]) {
      const sum = map.get(name) ?? { ...first, requests: 0, errors: 0, read: 0, cached: 0, written: 0 };
      for (const c of counts) sum[c] += r[c];
      map.set(name, sum);
    }
  }
  $("usage").hidden = !days.size;
  if (!days.size) return;
  $("days").replaceChildren(bars([...days.values()]));
  $("keys").replaceChildren(...[...keys.values()].sort((a, b) => b.read + b.written - a.read - a.written).map((k) => cells(k.who, k.model, ...counts.map((c) => [whole(k[c])]))));
}

function health(text, good) {
  $("health").textContent = text;
  $("health").className = "pill " + (good ? "good" : "bad");
}

async function look() {
  try {
    const state = await fetch("/health", { cache: "no-store" }).then((r) => r.json(), () => null);
    if (!state) throw new Offline("does not answer");
    const now = parse(await (await request("/metrics?style=quern", { quiet: looks > 0 })).text());
    samples = [...samples, now].slice(-KEPT);
    const build = now.rows.quern_build_info?.[0]?.labels.version, up = Date.now() / 1000 - (now.sums.process_start_time_seconds ?? Date.now() / 1000);
    health(state.status === "ok" ? "Healthy" : state.status, state.status === "ok");
    $("facts").textContent = `Version ${build ?? "?"}, up for ${up < 5400 ? seconds(Math.max(0, up)) : up < 172800 ? (up / 3600).toFixed(1) + " h" : (up / 86400).toFixed(1) + " days"}`;
    $("figures").replaceChildren(...figures());
    $("plots").replaceChildren(...PLOTS.map(plot));
    $("devices").replaceChildren(...devices(now));
    $("routes").replaceChildren(...routes(now).map((r) => cells(r.route, [whole(r.answered)], [whole(r.refused)], [whole(r.failed)])));
    await models();
    if (looks++ % USAGE_EVERY === 0) await usage();
  } catch (e) {
    health(e.message, false);
  }
  setTimeout(look, EVERY * 1000);
}

themeButton($("theme"));
look();
