// A conversation: a tree of messages, so that an edited question and another answer are versions beside the old ones.
//
//   {id, created, changed, title, model, system, pinned, leaf, stamps: {title, ...}, messages: {id: message}}
//   a message: {id, parent, role: "user", text, files, created, rev}
//              {id, parent, role: "assistant", model, steps, state, created, rev, ...}
//              {id, parent, role, created, rev, removed: true}: it was deleted
//   a step: {reasoning, text, calls}: what a model writes in one go; results of its calls come before the next step
//
// Two tabs may change one conversation: merge() keeps the messages of both, of one message the one with the higher `rev`,
// and of each other field the one that was changed last (`stamps`).
import { newId } from "/page/dom.js";

const FIELDS = ["title", "system", "pinned", "leaf", "model"];

export function newConversation(system = "") {
  const now = Date.now();
  return { id: newId(), created: now, changed: now, title: "", model: "", system, pinned: false, leaf: null, stamps: {}, messages: {} };
}

export function setField(c, name, value) {
  if (c[name] === value) return;
  c[name] = value;
  c.stamps[name] = Date.now();
}

// Takes into c what the other one has and what is newer there. making: a message of c that this tab is making.
export function absorb(c, other, making) {
  for (const [id, m] of Object.entries(other.messages)) if (!c.messages[id] || (m.rev > c.messages[id].rev && id !== making)) c.messages[id] = m;
  for (const name of FIELDS)
    if ((other.stamps[name] ?? 0) > (c.stamps[name] ?? 0) && !(making && name === "leaf")) {
      c[name] = other[name];
      c.stamps[name] = other.stamps[name];
    }
  c.changed = Math.max(c.changed, other.changed);
  return c;
}

// Both together. They stay as they are.
export const merge = (a, b) => absorb({ ...a, stamps: { ...a.stamps }, messages: { ...a.messages } }, b);

export function addMessage(c, message) {
  const m = { id: newId(), parent: c.leaf, created: Date.now(), rev: 1, ...message };
  c.messages[m.id] = m;
  setField(c, "leaf", m.id);
  c.changed = Date.now();
  return m;
}

// The messages from the first to the leaf.
export function path(c) {
  const out = [], seen = new Set();
  for (let m = c.messages[c.leaf]; m && !seen.has(m.id); m = c.messages[m.parent]) {
    seen.add(m.id);
    if (!m.removed) out.unshift(m);
  }
  return out;
}

const byAge = (a, b) => a.created - b.created || (a.id < b.id ? -1 : 1);

// The versions of a message, itself included, oldest first.
export function versions(c, m) {
  return Object.values(c.messages).filter((o) => o.parent === m.parent && o.role === m.role && !o.removed).sort(byAge);
}

// Shows a version, with the newest of what follows it.
export function choose(c, m) {
  for (;;) {
    const next = Object.values(c.messages).filter((o) => o.parent === m.id && !o.removed).sort(byAge).at(-1);
    if (!next) break;
    m = next;
  }
  setField(c, "leaf", m.id);
}

// Removes a message and what follows it. What is left of them tells other tabs that they are gone.
export function removeMessage(c, m) {
  const { id, parent, role, created, rev } = m;
  for (const next of Object.values(c.messages)) if (next.parent === id && !next.removed) removeMessage(c, next);
  c.messages[id] = { id, parent, role, created, rev: rev + 1, removed: true, text: "", files: [], steps: [] };
  const other = versions(c, m).at(-1);
  if (other) choose(c, other);
  else setField(c, "leaf", parent);
}

// After removeMessage(): as they were before.
export function restoreMessages(c, before) {
  for (const [id, m] of Object.entries(before.messages)) if (c.messages[id]?.removed && !m.removed) c.messages[id] = { ...m, rev: c.messages[id].rev + 1 };
  setField(c, "leaf", before.leaf);
}

// Another conversation that goes on from this message.
export function fork(c, m) {
  const all = path(c), kept = all.slice(0, all.findIndex((o) => o.id === m.id) + 1);
  return { ...newConversation(c.system), title: c.title && `${c.title} (from here)`, model: c.model, leaf: m.id, messages: Object.fromEntries(kept.map((o) => [o.id, structuredClone(o)])) };
}

export const answerText = (m) => m.steps.map((s) => s.text).filter(Boolean).join("\n\n");
export const messageText = (m) => (m.role === "user" ? m.text : answerText(m));

// What the list of conversations shows, kept beside the record.
export function headOf(c) {
  return { id: c.id, title: c.title, changed: c.changed, pinned: c.pinned, model: c.model };
}

export function titleOf(m) {
  const line = m.text.trim().split("\n").find((l) => l.trim()) ?? "";
  return line.replace(/[#*`>]/g, "").trim().slice(0, 80) || m.files?.[0]?.name || "Conversation";
}

// ---- as messages of the API ----

// A fence that the text does not contain.
function fenced(name, text) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((f) => f.length)), fence = "`".repeat(longest + 1);
  return `File: ${name}\n${fence}${/\.([a-z0-9]+)$/i.exec(name)?.[1] ?? ""}\n${text.replace(/\n$/, "")}\n${fence}`;
}

function userMessage(m) {
  const images = (m.files ?? []).filter((f) => f.kind === "image"), texts = (m.files ?? []).filter((f) => f.kind !== "image");
  const text = [...texts.map((f) => fenced(f.name, f.text)), m.text].filter((t) => t.trim()).join("\n\n");
  if (!images.length) return { role: "user", content: text };
  const parts = images.map((f) => ({ type: "image_url", image_url: { url: f.url } }));
  return { role: "user", content: text ? [...parts, { type: "text", text }] : parts };
}

function stepMessages(step) {
  const calls = (step.calls ?? []).filter((call) => call.result !== undefined);
  if (!calls.length) return step.text ? [{ role: "assistant", content: step.text }] : [];
  const asked = calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments || "{}" } }));
  return [{ role: "assistant", content: step.text || "", tool_calls: asked },
          ...calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: call.result }))];
}

export function apiMessages(c, messages) {
  const out = c.system.trim() ? [{ role: "system", content: c.system }] : [];
  for (const m of messages) out.push(...(m.role === "user" ? [userMessage(m)] : m.steps.flatMap(stepMessages)));
  return out;
}
