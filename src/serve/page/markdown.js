// What a model writes, as elements. marked reads the Markdown, DOMPurify sanitises what becomes of it, highlight.js colours code
// and KaTeX sets formulas; the last two are loaded when they are needed. HTML that a model writes is shown as text, but for a few
// tags without attributes. A program that was built without marked or DOMPurify shows text and blocks of code.
import { libraries } from "/page/libraries.js";
import { copyButton, el } from "/page/dom.js";

const TAGS = ["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "b", "i", "u", "s", "del", "mark", "kbd", "sub", "sup", "code", "pre", "blockquote",
  "ul", "ol", "li", "input", "table", "thead", "tbody", "tr", "th", "td", "a", "span", "div", "section", "details", "summary"];
const ATTRIBUTES = ["href", "class", "start", "align", "type", "checked", "disabled", "data-tex", "data-display", "data-language", "data-note"];
const SAFE = ATTRIBUTES.filter((name) => name !== "href"); // hold no address
const HARMLESS = /&lt;(\/?)(br|sub|sup|kbd|mark|u|s|b|i|details|summary)\s*\/?&gt;/gi;
const LINKS = /^(?:https?|mailto):/i;

const escape = (t) => t.replace(/[&<>"']/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c]);

// ---- libraries that are loaded once, when they are needed ----

const loading = new Map();

export function script(name) {
  if (!libraries[name]) return Promise.resolve(false);
  if (!loading.has(name))
    loading.set(name, new Promise((yes) => {
      document.head.append(el("script", { src: libraries[name], onload: () => yes(true), onerror: () => yes(false) }));
    }));
  return loading.get(name);
}

let marked = null, purify = null;
// Debian 12's DOMPurify (2.4.1, deb12u1) reads a variable of this name that it declares in another function only.
globalThis.shadowNode ??= { __depth: 0 };

// Before the first text is shown.
export async function loadMarkdown() {
  if (!libraries.marked || !libraries.purify) return false;
  try {
    const [m, p] = await Promise.all([import(libraries.marked), import(libraries.purify)]);
    m.marked.use({ gfm: true, breaks: false, mangle: false, headerIds: false, extensions: EXTENSIONS, renderer: RENDERER });
    [marked, purify] = [m.marked, p.default];
    return true;
  } catch {
    return false;
  }
}

// ---- what marked does not know: formulas and footnotes ----

const math = (name, level, start, rules) => ({
  name, level, start,
  tokenizer(source) {
    for (const [rule, display] of rules) {
      const m = rule.exec(source);
      if (m) return { type: name, raw: m[0], tex: m[1].trim(), display };
    }
  },
  renderer: (t) => (t.display ? `<div class="math" data-display="1" data-tex="${escape(t.tex)}">${escape(t.tex)}</div>`
    : `<span class="math" data-tex="${escape(t.tex)}">${escape(t.tex)}</span>`),
});

const EXTENSIONS = [
  math("blockMath", "block", (s) => s.search(/\$\$|\\\[/), [[/^ {0,3}\$\$([^$]+?)\$\$[ \t]*(?:\n|$)/, true], [/^ {0,3}\\\[([^]+?)\\\][ \t]*(?:\n|$)/, true]]),
  math("inlineMath", "inline", (s) => s.search(/\$|\\\(|\\\[/), [[/^\$\$([^$]+?)\$\$/, true], [/^\\\[([^]+?)\\\]/, true], [/^\\\(([^]+?)\\\)/, false],
    [/^\$(?=\S)((?:\\.|[^$\\\n])*?[^\s\\])\$(?!\d)/, false]]),
  { name: "footnote", level: "block", start: (s) => s.search(/^\[\^/m),
    tokenizer(source) {
      const m = /^\[\^([^\]\s]+)\]:[ \t]*((?:[^\n]|\n(?=[ \t]+\S))*)(?:\n|$)/.exec(source);
      if (!m) return;
      return { type: "footnote", raw: m[0], label: m[1], tokens: this.lexer.inlineTokens(m[2].replace(/\n[ \t]+/g, " "), []) };
    },
    renderer(t) {
      return `<div class="footnote" data-note="${escape(t.label)}">${this.parser.parseInline(t.tokens)}</div>`;
    } },
  { name: "noteRef", level: "inline", start: (s) => s.indexOf("[^"),
    tokenizer(source) {
      const m = /^\[\^([^\]\s]+)\](?!:)/.exec(source);
      return m ? { type: "noteRef", raw: m[0], label: m[1] } : undefined;
    },
    renderer: (t) => `<sup class="note-ref" data-note="${escape(t.label)}">${escape(t.label)}</sup>` },
];

const RENDERER = {
  html: (raw) => escape(typeof raw === "string" ? raw : raw.text).replace(HARMLESS, "<$1$2>"),
  image: (href, title, text) => `<a href="${escape(href ?? "")}">${escape(text || href || "image")}</a>`, // nothing is fetched from elsewhere
  code: (text, info) => `<pre data-language="${escape((info ?? "").split(/\s/)[0])}"><code>${escape(text)}</code></pre>`,
};

// ---- elements ----

function sanitised(html) {
  return purify.sanitize(html, { ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ATTRIBUTES, ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false,
    ALLOWED_URI_REGEXP: LINKS, ADD_URI_SAFE_ATTR: SAFE, RETURN_DOM_FRAGMENT: true });
}

async function highlight(code, language, text) {
  if (!language || !(await script("highlight")) || !window.hljs.getLanguage(language)) return;
  const html = window.hljs.highlight(language, text, true).value;
  code.replaceChildren(purify.sanitize(html, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true }));
}

async function formula(node) {
  if (!(await script("katex"))) return;
  if (!document.querySelector("link[data-katex]")) document.head.append(el("link", { rel: "stylesheet", href: "/page/lib/katex.css", "data-katex": "" }));
  try {
    window.katex.render(node.dataset.tex, node, { displayMode: Boolean(node.dataset.display), throwOnError: false, trust: false, maxExpand: 500, maxSize: 20 });
  } catch { /* the source stays */ }
}

// A block of code with its language and a button.
function codeBlock(text, language, colour) {
  const code = el("code", {}, text);
  if (colour) highlight(code, language.toLowerCase(), text);
  return el("div", { class: "code" }, el("div", { class: "code-head" }, el("span", {}, language || "text"), copyButton("Copy code", () => text)),
            el("pre", { tabindex: "0" }, code));
}

function finish(fragment, whole) {
  for (const pre of fragment.querySelectorAll("pre")) pre.replaceWith(codeBlock(pre.textContent.replace(/\n$/, ""), pre.dataset.language ?? "", whole));
  for (const table of fragment.querySelectorAll("table")) {
    const box = el("div", { class: "wide", tabindex: "0" });
    table.replaceWith(box);
    box.append(table);
  }
  for (const cell of fragment.querySelectorAll("[align]")) cell.classList.add("align-" + cell.getAttribute("align"));
  for (const a of fragment.querySelectorAll("a[href]")) Object.assign(a, { target: "_blank", rel: "noopener noreferrer nofollow" });
  for (const box of fragment.querySelectorAll("input")) box.setAttribute("aria-label", box.checked ? "done" : "to do");
  for (const ref of fragment.querySelectorAll("sup.note-ref"))
    ref.replaceChildren(el("button", { type: "button", onclick: (e) => e.target.closest(".markdown").querySelector(`.footnote[data-note="${CSS.escape(ref.dataset.note)}"]`)?.scrollIntoView({ block: "center" }) }, ref.textContent));
  for (const note of fragment.querySelectorAll(".footnote")) note.prepend(el("sup", {}, note.dataset.note), " ");
  if (whole) for (const node of fragment.querySelectorAll(".math")) formula(node);
  return fragment;
}

// Without the libraries.
function plain(text) {
  const out = document.createDocumentFragment();
  text.split(/^(```[^\n]*\n[^]*?(?:\n```[ \t]*$|$(?![^])))/m).forEach((part, i) => {
    const m = i % 2 && /^```([^\n]*)\n([^]*?)(?:\n```[ \t]*)?$/.exec(part);
    if (m) out.append(codeBlock(m[2], m[1].trim(), false));
    else if (part.trim()) out.append(el("p", { class: "plain" }, part.trim()));
  });
  return out;
}

// A text that grows: only blocks that have changed are made again. `whole`: nothing will be added.
export class Markdown {
  #blocks = []; // {raw, whole, nodes}

  constructor(box) {
    this.box = box;
    box.classList.add("markdown");
  }

  // source: the text as the model wrote it
  update(text, whole, source) {
    if (source || !this.#blocks.length) this.box.replaceChildren(...(source ? [el("pre", { class: "source", tabindex: "0" }, text)] : []));
    if (source) return void (this.#blocks = []);
    if (!marked) return void this.box.replaceChildren(plain(text));
    const tokens = marked.lexer(text), links = tokens.links, kept = [];
    let last = null; // the last element so far
    tokens.filter((t) => t.type !== "space").forEach((t, i, all) => {
      const ended = whole || i < all.length - 1, old = this.#blocks[i];
      let block = old;
      if (!old || old.raw !== t.raw || old.whole !== ended) {
        for (const n of old?.nodes ?? []) n.remove();
        const nodes = [...finish(sanitised(marked.parser(Object.assign([t], { links }))), ended).childNodes];
        last ? last.after(...nodes) : this.box.prepend(...nodes);
        block = { raw: t.raw, whole: ended, nodes };
      }
      last = block.nodes.at(-1) ?? last;
      kept.push(block);
    });
    for (const old of this.#blocks.slice(kept.length)) for (const n of old.nodes) n.remove();
    this.#blocks = kept;
  }
}
