// Markdown to nodes of the document. A model's output is hostile: nothing here is ever parsed as HTML, text goes
// in as text, and a link only where its address is http, https or mailto.

function node(name, ...children) {
  const n = document.createElement(name);
  n.append(...children);
  return n;
}

const INLINE = [
  { at: /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/, make: (m) => node("code", m[2].replace(/^ (.*[^ ].*) $/, "$1")) },
  { at: /\*\*(?=\S)([\s\S]*?\S)\*\*/, make: (m) => node("strong", ...inline(m[1])) },
  { at: /__(?=\S)([\s\S]*?\S)__(?!\w)/, make: (m) => node("strong", ...inline(m[1])) },
  { at: /~~(?=\S)([\s\S]*?\S)~~/, make: (m) => node("s", ...inline(m[1])) },
  { at: /\*(?=[^\s*])([^*]*[^\s*])\*/, make: (m) => node("em", ...inline(m[1])) },
  { at: /(?<!\w)_(?=[^\s_])([^_]*[^\s_])_(?!\w)/, make: (m) => node("em", ...inline(m[1])) },
  { at: /\[([^\]]+)\]\(\s*<?([^\s<>)]+)>?(?:\s+"[^"]*")?\s*\)/, make: (m) => link(m[2], inline(m[1])) },
  { at: /<?\bhttps?:\/\/[^\s<>"')\]]*[^\s<>"')\].,;:!?]>?/, make: (m) => link(m[0].replace(/^<|>$/g, ""), null) },
];

function link(address, children) {
  let url;
  try {
    url = new URL(address);
  } catch {
    url = null;
  }
  if (!url || !["http:", "https:", "mailto:"].includes(url.protocol))
    return node("span", ...(children ?? [address]));
  const a = node("a", ...(children ?? [address]));
  a.href = url.href;
  a.target = "_blank";
  a.rel = "noopener noreferrer nofollow";
  return a;
}

function inline(text) {
  const out = [];
  while (text) {
    let first = null, rule = null;
    for (const r of INLINE) {
      const m = r.at.exec(text);
      if (m && (!first || m.index < first.index)) [first, rule] = [m, r];
    }
    if (!first) break;
    if (first.index) out.push(text.slice(0, first.index));
    out.push(rule.make(first));
    text = text.slice(first.index + first[0].length);
  }
  if (text) out.push(text);
  return out;
}

function code(lines, lang) {
  const pre = node("pre");
  if (lang) {
    const label = node("span", lang);
    label.className = "lang";
    pre.append(label);
  }
  const copy = node("button", "Copy");
  copy.type = "button";
  copy.className = "copy";
  copy.addEventListener("click", () => navigator.clipboard.writeText(lines.join("\n")).then(() => {
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  }));
  pre.append(node("code", lines.join("\n")), copy);
  return pre;
}

const ITEM = /^(\s*)(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());

function table(lines, at) {
  const body = node("tbody"), head = node("tr", ...cells(lines[at]).map((c) => node("th", ...inline(c))));
  for (at += 2; at < lines.length && lines[at].includes("|"); at++)
    body.append(node("tr", ...cells(lines[at]).map((c) => node("td", ...inline(c)))));
  const box = node("div", node("table", node("thead", head), body));
  box.className = "scroll";
  return [box, at];
}

function list(lines, at) {
  const first = ITEM.exec(lines[at]), depth = first[1].length, ordered = first[3] !== undefined;
  const out = node(ordered ? "ol" : "ul");
  if (ordered) out.start = Number(first[3]);
  while (at < lines.length) {
    const m = ITEM.exec(lines[at]);
    if (!m || m[1].length < depth || (m[3] !== undefined) !== ordered) break;
    const inner = [m[4]], indent = depth + 2;
    for (at++; at < lines.length; at++) {
      const spaces = /^\s*/.exec(lines[at])[0].length, blank = !lines[at].trim();
      if (blank ? !/^\s{2,}\S/.test(lines[at + 1] ?? "") : spaces < indent) break;
      inner.push(lines[at].slice(Math.min(spaces, indent)));
    }
    out.append(node("li", ...(inner.length > 1 ? blocks(inner) : inline(m[4]))));
    while (at + 1 < lines.length && !lines[at].trim() && ITEM.test(lines[at + 1])) at++;
  }
  return [out, at];
}

function blocks(lines) {
  const out = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at], fence = /^\s*(`{3,}|~{3,})\s*([\w+#.-]*)/.exec(line), heading = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (!line.trim()) {
      at++;
    } else if (fence) {
      const inner = [];
      for (at++; at < lines.length && !lines[at].trim().startsWith(fence[1]); at++) inner.push(lines[at]);
      at++;
      out.push(code(inner, fence[2]));
    } else if (heading) {
      out.push(node("h" + Math.min(6, heading[1].length + 1), ...inline(heading[2])));
      at++;
    } else if (RULE.test(line)) {
      out.push(node("hr"));
      at++;
    } else if (/^\s*>/.test(line)) {
      const inner = [];
      for (; at < lines.length && /^\s*>/.test(lines[at]); at++) inner.push(lines[at].replace(/^\s*> ?/, ""));
      out.push(node("blockquote", ...blocks(inner)));
    } else if (ITEM.test(line)) {
      const [made, next] = list(lines, at);
      out.push(made);
      at = next;
    } else if (line.includes("|") && /^[\s|:-]*-[\s|:-]*$/.test(lines[at + 1] ?? "") && lines[at + 1].includes("|")) {
      const [made, next] = table(lines, at);
      out.push(made);
      at = next;
    } else {
      const inner = [];
      do inner.push(lines[at++]);
      while (at < lines.length && lines[at].trim() && !/^(\s*(`{3,}|~{3,}|>)|#{1,6}\s)/.test(lines[at]) && !ITEM.test(lines[at]));
      out.push(node("p", ...inline(inner.join("\n"))));
    }
  }
  return out;
}

export function markdown(text) {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"));
}
