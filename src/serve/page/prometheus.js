// Prometheus' text: numbers by name, by label, and histograms; what has changed between two looks.

// -> {sums: {name: value}, rows: {name: [{labels, value}]}, time}
export function parse(text) {
  const sums = {}, rows = {};
  for (const line of text.split("\n")) {
    const m = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ([-+.\deE]+|[+-]?Inf|NaN)$/.exec(line);
    if (!m) continue;
    const value = m[3].endsWith("Inf") ? Infinity : Number(m[3]), labels = {};
    for (const [, k, v] of (m[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[k] = v.replace(/\\(.)/g, "$1");
    sums[m[1]] = (sums[m[1]] ?? 0) + value;
    (rows[m[1]] ??= []).push({ labels, value });
  }
  return { sums, rows, time: performance.now() / 1000 };
}

const number = (sample, name) => sample?.sums[name] ?? 0;
export const change = (name, now, before) => number(now, name) - number(before, name);
export const rate = (name, now, before) => (now.time > before.time ? Math.max(0, change(name, now, before)) / (now.time - before.time) : 0);

// The value below which this share of what came between two looks lies, from a histogram's buckets; null = nothing came.
export function percentile(name, share, now, before) {
  const bounds = (now.rows[name + "_bucket"] ?? []).map((r) => ({ le: r.labels.le === "+Inf" ? Infinity : Number(r.labels.le), n: r.value }));
  const old = new Map((before?.rows[name + "_bucket"] ?? []).map((r) => [r.labels.le, r.value]));
  bounds.forEach((b, i) => (b.n -= old.get(now.rows[name + "_bucket"][i].labels.le) ?? 0));
  const total = bounds.at(-1)?.n ?? 0;
  if (total <= 0) return null;
  let below = 0, from = 0;
  for (const b of bounds) {
    if (b.n >= share * total) return b.le === Infinity ? from : from + (b.le - from) * (b.n > below ? (share * total - below) / (b.n - below) : 1);
    below = b.n;
    from = b.le;
  }
  return from;
}
