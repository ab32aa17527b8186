// Elements, icons, copying, dates and sizes: what every part of the pages uses.

export const $ = (id) => document.getElementById(id);

// el("button", {class: "x", onclick: f, "aria-label": "y"}, child, "text"). false and null leave an attribute or a child out.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value == null) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name in node && typeof value !== "string") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((c) => c != null && c !== false));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Lines on a grid of 24.
const ICONS = {
  plus: "M12 5v14M5 12h14",
  send: "M12 19V6M6 11.5 12 5.5l6 6",
  stop: "M8 8h8v8H8z",
  attach: "M20 11.5 12.2 19.3a5 5 0 0 1-7-7.1l8-8a3.3 3.3 0 0 1 4.7 4.7l-7.9 8a1.7 1.7 0 0 1-2.4-2.4l7-7",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "m5 12.5 4.5 4.5L19 7.5",
  edit: "M4 20h4L19.5 8.5l-4-4L4 16zM13.5 6.5l4 4",
  retry: "M19.5 12a7.5 7.5 0 1 1-2.3-5.4M19.5 4v4.5H15",
  next: "m9.5 6 6 6-6 6",
  back: "m14.5 6-6 6 6 6",
  down: "m6 9.5 6 6 6-6",
  bottom: "M12 5v13M6 12.5l6 6 6-6",
  menu: "M4 7h16M4 12h16M4 17h16",
  side: "M4 5h16v14H4zM9.5 5v14",
  search: "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13M20 20l-4.8-4.8",
  more: "M5.5 12h.01M12 12h.01M18.5 12h.01",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l.8 12.5h8.4L17 7M10.3 11v5M13.7 11v5",
  pin: "M9 4h6l-.8 6 2.8 3.5H7L9.8 10zM12 13.5V20",
  gear: "M5 7h8M17 7h2M5 12h2M11 12h8M5 17h8M17 17h2M13 7a2 2 0 1 0 4 0 2 2 0 1 0-4 0M7 12a2 2 0 1 0 4 0 2 2 0 1 0-4 0M13 17a2 2 0 1 0 4 0 2 2 0 1 0-4 0",
  pulse: "M3 12h4l3-7 4 14 3-7h4",
  moon: "M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10",
  tools: "M14.5 6.5a4 4 0 0 1 5-1l-2.7 2.7 1.5 1.5L21 7a4 4 0 0 1-5.6 4.8l-7.6 7.6a2 2 0 0 1-2.8-2.8l7.6-7.6a4 4 0 0 1 1.9-2.5",
  close: "m6 6 12 12M18 6 6 18",
  file: "M6 3.5h8l4 4V20.5H6zM14 3.5v4h4M9 12.5h6M9 16h6",
  save: "M12 4v11M7 10.5l5 5 5-5M5 20h14",
  think: "M12 4a6 6 0 0 0-3.5 10.9c.6.4 1 1.1 1 1.8h5c0-.7.4-1.4 1-1.8A6 6 0 0 0 12 4M10 20h4",
  source: "m8.5 7-5 5 5 5M15.5 7l5 5-5 5",
  play: "M8 5.5v13l10.5-6.5z",
  fork: "M6.5 4v16M6.5 15.5c6.5 0 10.5-2 10.5-8.5M13.5 10 17 6.5l3.5 3.5",
};

export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

// A button that shows only an icon; its name is the label, and the tip.
export function iconButton(name, label, onclick, attributes = {}) {
  return el("button", { type: "button", "aria-label": label, title: label, onclick, ...attributes, class: "icon-button " + (attributes.class ?? "") }, icon(name));
}

// navigator.clipboard exists only on https and localhost; a page over plain HTTP copies from a hidden field.
export async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { /* not allowed: the other way */ }
  }
  const before = document.activeElement, inside = before?.closest("dialog") ?? document.body;
  const box = el("textarea", { class: "off-screen", readOnly: true, "aria-hidden": "true" });
  box.value = text;
  inside.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  before?.focus();
  return done;
}

// The button says for a moment that it has copied.
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    const done = await copyText(text());
    button.replaceChildren(icon(done ? "check" : "close"));
    announce(done ? "Copied" : "This browser does not let the page copy");
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

// For screen readers.
export function announce(text) {
  const live = $("live");
  if (live) live.textContent = text;
}

let toastTimer;
// A short note at the bottom, with one thing that can be done about it.
export function toast(text, action, run) {
  const box = $("toast");
  box.replaceChildren(el("span", {}, text), ...(action ? [el("button", { type: "button", onclick: () => { box.hidden = true; run(); } }, action)] : []));
  box.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (box.hidden = true), action ? 10000 : 4000);
}

// 16 random bytes: crypto.randomUUID exists only on https and localhost.
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
}

export function bytes(n) {
  const unit = ["B", "KB", "MB", "GB", "TB"];
  let i = 0;
  while (n >= 1000 && i < unit.length - 1) n /= 1000, i++;
  return (i && n < 10 ? n.toFixed(1) : Math.round(n)) + " " + unit[i];
}

export function count(n) {
  return n >= 1e9 ? (n / 1e9).toFixed(n < 1e10 ? 1 : 0) + "B" : n >= 1e6 ? Math.round(n / 1e6) + "M" : n >= 1e3 ? Math.round(n / 1024) + "K" : String(n);
}

export function seconds(s) {
  return s < 0.1 ? "a moment" : s < 10 ? s.toFixed(1) + " s" : s < 90 ? Math.round(s) + " s" : Math.floor(s / 60) + " min " + Math.round(s % 60) + " s";
}

export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type })), a = el("a", { href: url, download: name });
  document.body.append(a);
  a.click();
  a.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// A file's name of a title.
export function fileName(title) {
  return (title || "conversation").replace(/[^\p{L}\p{N} _-]+/gu, "").trim().replace(/\s+/g, "-").slice(0, 60) || "conversation";
}

// Closes on a click outside, on Escape, and when the focus leaves.
export function popup(button, panel, onopen) {
  const close = (back) => {
    if (panel.hidden) return;
    panel.hidden = true;
    button.setAttribute("aria-expanded", "false");
    if (back) button.focus();
  };
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", (e) => {
    e.stopPropagation();
    if (!panel.hidden) return close();
    panel.hidden = false;
    button.setAttribute("aria-expanded", "true");
    onopen?.();
  });
  document.addEventListener("pointerdown", (e) => !panel.contains(e.target) && !button.contains(e.target) && close());
  for (const node of [button, panel])
    node.addEventListener("keydown", (e) => {
      if (e.key !== "Escape" || panel.hidden) return;
      e.stopPropagation();
      close(true);
    });
  panel.addEventListener("focusout", (e) => e.relatedTarget && !panel.contains(e.relatedTarget) && e.relatedTarget !== button && close());
  return close;
}

// Arrow keys, Home and End among the items of a menu or a list.
export function arrows(box, selector) {
  box.addEventListener("keydown", (e) => {
    const step = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[e.key];
    const items = [...box.querySelectorAll(selector)].filter((n) => n.offsetParent);
    if (!step || !items.length || (e.target.matches("input, textarea, select") && !e.target.matches(selector) && step !== 1)) return;
    const at = items.indexOf(document.activeElement.closest(selector));
    e.preventDefault();
    items[Math.max(0, Math.min(items.length - 1, at + step))].focus();
  });
}
