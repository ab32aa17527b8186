// The status page: reads /metrics every two seconds and draws the last ten minutes.
import { themeButton } from "/page/theme.js";

const $ = (id) => document.getElementById(id);
const EVERY = 2, KEPT = 300, FEWEST = 30; // seconds between samples; samples that are kept, that a plot is wide at least
const SVG = "http://www.w3.org/2000/svg";
const USAGE_EVERY = 15; // samples between two looks at the usage
let samples = [], looks = 0;

function headers() {
  try {
    const key = JSON.parse(localStorage.getItem("quern.settings"))?.key;
    return key ? { Authorization: "Bearer " + key } : {};
  } catch {
    return {};
  }
}

// Prometheus' text: name{labels} value. Values of one name are added up; requests also by the first digit of the code.
function parse(text) {
  const out = {};
  for (const line of text.split("\n")) {
    const m = /^([a-z_]+)(?:\{(.*)\})? ([-+.\deE]+)$/i.exec(line);
    if (!m || m[1].endsWith("_bucket")) continue;
    out[m[1]] = (out[m[1]] ?? 0) + Number(m[3]);
    const code = /code="(\d)/.exec(m[2] ?? "");
    if (code) out[m[1] + code[1]] = (out[m[1] + code[1]] ?? 0) + Number(m[3]);
  }
  return out;
}

// A counter's change a second, and the ratio of two changes.
const rate = (name) => (now, before) => ((now[name] ?? 0) - (before[name] ?? 0)) / (now.time - before.time);
const gauge = (name) => (now) => now[name] ?? 0;
const ratio = (a, b) => (now, before) => {
  const change = (n) => (now[n] ?? 0) - (before[n] ?? 0);
  return change(b) > 0 ? change(a) / change(b) : 0;
};
const whole = (v) => Math.round(v).toLocaleString("en"), tenth = (v) => (v < 10 ? v.toFixed(1) : whole(v)), percent = (v) => (100 * v).toFixed(0) + "%";

const PLOTS = [
  { title: "Tokens a second", form: tenth, lines: [["made", rate("quern_generated_tokens_total")], ["read", rate("quern_prompt_tokens_total")]] },
  { title: "Requests a second", form: tenth, lines: [["answered", rate("quern_requests_total2")], ["refused", rate("quern_requests_total4")]] },
  { title: "Answers", form: whole, lines: [["running", gauge("quern_running")], ["waiting", gauge("quern_waiting")]] },
  { title: "KV pages in use", form: percent, top: 1, lines: [["used", (now) => (now.quern_kv_pages ? 1 - now.quern_kv_pages_free / now.quern_kv_pages : 0)]] },
  { title: "Prompt tokens found in the cache", form: percent, top: 1, lines: [["known", (now, before) => {
    const known = now.quern_cached_tokens_total - before.quern_cached_tokens_total, read = now.quern_prompt_tokens_total - before.quern_prompt_tokens_total;
    return known + read > 0 ? known / (known + read) : 0;
  }]] },
  { title: "Seconds to the first token", form: (v) => v.toFixed(2), lines: [["mean", ratio("quern_first_token_seconds_sum", "quern_first_token_seconds_count")]] },
];

const FIGURES = [
  ["requests running", gauge("quern_running"), whole], ["in the queue", gauge("quern_waiting"), whole],
  ["connections", gauge("quern_connections"), whole], ["tokens made", gauge("quern_generated_tokens_total"), whole],
  ["requests", gauge("quern_requests_total"), whole], ["models in memory", gauge("quern_models_loaded"), whole],
  ["gigabytes of models", (now) => (now.quern_models_bytes ?? 0) / 1e9, (v) => v.toFixed(2)],
];

function shape(name, attributes, text) {
  const n = document.createElementNS(SVG, name);
  for (const [k, v] of Object.entries(attributes)) n.setAttribute(k, v);
  if (text !== undefined) n.textContent = text;
  return n;
}

function draw(plot) {
  const wide = 400, high = 120, left = 44, bottom = 100;
  const series = plot.lines.map(([, value]) => samples.slice(1).map((now, i) => value(now, samples[i])));
  const span = Math.max(FEWEST, series[0].length);
  const top = plot.top ?? Math.max(plot.form === whole ? 1 : 0.1, ...series.flat()) * 1.1;
  const svg = shape("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": `${plot.title}: ${plot.form(series[0].at(-1) ?? 0)}` });
  svg.append(shape("line", { class: "axis", x1: left, x2: wide, y1: bottom, y2: bottom }), shape("line", { class: "axis", x1: left, x2: wide, y1: 8, y2: 8 }),
             shape("text", { x: left - 4, y: 12, "text-anchor": "end" }, plot.form(top)), shape("text", { x: left - 4, y: bottom, "text-anchor": "end" }, plot.form(0)),
             shape("text", { x: left, y: high - 4 }, `${((span * EVERY) / 60).toFixed(0)} min ago`), shape("text", { x: wide, y: high - 4, "text-anchor": "end" }, "now"));
  series.forEach((values, i) => {
    const points = values.map((v, n) => `${(wide - ((values.length - 1 - n) * (wide - left)) / span).toFixed(1)},${(bottom - (Math.min(v, top) / top) * (bottom - 8)).toFixed(1)}`);
    svg.append(shape("polyline", { class: `line-${i + 1}`, points: points.join(" ") }));
  });
  const figure = document.createElement("figure"), caption = document.createElement("figcaption");
  figure.className = "plot";
  caption.append(plot.title);
  plot.lines.forEach(([name], i) => {
    const key = document.createElement("span");
    key.className = `key-${i + 1}`;
    key.textContent = ` ${name} ${plot.form(series[i].at(-1) ?? 0)}`;
    caption.append(key);
  });
  figure.append(caption, svg);
  return figure;
}

function row(name, value) {
  const box = document.createElement("div"), b = document.createElement("b");
  box.className = "figure";
  b.textContent = value;
  box.append(b, name);
  return box;
}

async function models() {
  const response = await fetch("/v1/models", { headers: headers() });
  if (!response.ok) return;
  $("models").replaceChildren(...(await response.json()).data.map((m) => {
    const tr = document.createElement("tr");
    for (const text of [m.id, m.status?.value ?? "", m.max_model_len ?? ""]) tr.insertCell().textContent = text;
    return tr;
  }));
}

// Tokens of each day as bars: read below, written above.
function bars(days) {
  const wide = 400, high = 120, left = 44, bottom = 100, each = (wide - left) / days.length;
  const top = Math.max(1, ...days.map((d) => d.read + d.written));
  const svg = shape("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": "Tokens a day" });
  const bar = (i, from, n, kind) => svg.append(shape("rect", { class: kind, x: (left + i * each + 1).toFixed(1), width: Math.max(1, each - 2).toFixed(1),
    y: (bottom - ((from + n) / top) * (bottom - 8)).toFixed(1), height: ((n / top) * (bottom - 8)).toFixed(1) }, ""));
  days.forEach((d, i) => { bar(i, 0, d.read, "bar-1"); bar(i, d.read, d.written, "bar-2"); });
  svg.append(shape("line", { class: "axis", x1: left, x2: wide, y1: bottom, y2: bottom }), shape("text", { x: left - 4, y: 12, "text-anchor": "end" }, whole(top)),
             shape("text", { x: left, y: high - 4 }, days[0].day), shape("text", { x: wide, y: high - 4, "text-anchor": "end" }, days.at(-1).day));
  const figure = document.createElement("figure"), caption = document.createElement("figcaption");
  figure.className = "plot";
  caption.append("Tokens a day: ");
  ["read", "written"].forEach((name, i) => {
    const key = document.createElement("span");
    key.className = `key-${i + 1}`;
    key.textContent = ` ${name} ${whole(days.reduce((sum, d) => sum + d[name], 0))}`;
    caption.append(key);
  });
  figure.append(caption, svg);
  return figure;
}

// Of all keys for an admin key, of its own for another one.
async function usage() {
  const response = await fetch("/usage?since=30d", { headers: headers() });
  if (!response.ok) return;
  const counts = ["requests", "errors", "read", "cached", "written"], days = new Map(), keys = new Map();
  for (const r of (await response.json()).data) {
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
  $("keys").replaceChildren(...[...keys.values()].sort((a, b) => b.read + b.written - a.read - a.written).map((k) => {
    const tr = document.createElement("tr");
    for (const text of [k.who, k.model, ...counts.map((c) => whole(k[c]))]) tr.insertCell().textContent = text;
    return tr;
  }));
}

async function look() {
  try {
    const response = await fetch("/metrics?style=quern", { headers: headers() });
    if (!response.ok) throw new Error(response.status === 401 ? "an API key is needed: give it in the chat page's settings" : response.statusText);
    const now = { ...parse(await response.text()), time: performance.now() / 1000 };
    samples = [...samples, now].slice(-KEPT - 1);
    $("figures").replaceChildren(...FIGURES.map(([name, value, form]) => row(name, form(value(now)))));
    $("plots").replaceChildren(...PLOTS.map(draw));
    $("note").textContent = "";
    await models();
    if (looks++ % USAGE_EVERY === 0) await usage();
  } catch (e) {
    $("note").textContent = "no figures: " + e.message;
  }
  setTimeout(look, EVERY * 1000);
}

themeButton($("theme"));
look();
