// Conversations out of the browser and in again: as JSON with everything, and as Markdown to read. What comes in is checked
// field by field: a file may have been written by anybody.
import { addMessage, messageText, newConversation, path, titleOf } from "/page/conversation.js";
import { newId } from "/page/dom.js";

const FORMAT = "quern conversations", VERSION = 1;

export function toJson(conversations) {
  return JSON.stringify({ format: FORMAT, version: VERSION, exported: new Date().toISOString(), conversations }, null, 1);
}

const mark = (fields) => `<!-- quern ${JSON.stringify(fields).replace(/-->/g, "--\\u003e")} -->`;

function messageMarkdown(m) {
  const name = m.role === "user" ? "You" : m.model || "Assistant", out = [mark({ role: m.role, model: m.model, created: m.created }), `### ${name}`];
  for (const f of m.files ?? []) out.push(f.kind === "image" ? `*Image: ${f.name}*` : `*File: ${f.name}*`);
  for (const s of m.steps ?? []) {
    for (const call of s.calls ?? []) out.push(`*Called \`${call.name}\` with \`${call.arguments}\`*`);
  }
  out.push(messageText(m));
  return out.join("\n\n");
}

// The branch that is shown, of each.
export function toMarkdown(conversations) {
  return conversations.map((c) => [mark({ conversation: c.title, created: c.created }), `# ${c.title || "Conversation"}`,
    ...(c.system ? [`> ${c.system.replace(/\n/g, "\n> ")}`] : []), ...path(c).map(messageMarkdown)].join("\n\n") + "\n").join("\n---\n\n");
}

// One without the marks that an import needs.
export const toText = (c) => toMarkdown([c]).replace(/^<!-- quern .* -->\n+/gm, "");

// ---- in ----

const text = (v, most = 1 << 24) => (typeof v === "string" ? v.slice(0, most) : "");
const number = (v) => (Number.isFinite(v) ? v : undefined);
const list = (v) => (Array.isArray(v) ? v : []);
const object = (v) => (v && typeof v === "object" && !Array.isArray(v) ? v : {});
const time = (v) => (Number.isFinite(v) && v > 0 ? v : Date.now());

function readFile(v) {
  const f = object(v), kind = ["image", "pdf", "text"].includes(f.kind) ? f.kind : "text", url = text(f.url);
  if (kind === "image" && !/^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]*$/.test(url)) return null;
  return { name: text(f.name, 200) || "file", kind, size: number(f.size), ...(kind === "image" ? { url } : { text: text(f.text) }) };
}

function readCall(v) {
  const c = object(v);
  return { id: text(c.id, 200), name: text(c.name, 200), arguments: text(c.arguments), status: text(c.status, 20),
           ...(typeof c.result === "string" ? { result: c.result } : {}) };
}

function readMessage(v, ids) {
  const m = object(v), base = { id: ids(m.id), parent: m.parent == null ? null : ids(m.parent), created: time(m.created), rev: 1 };
  if (m.role === "user") return { ...base, role: "user", text: text(m.text), files: list(m.files).map(readFile).filter(Boolean) };
  const steps = list(m.steps).map((s) => ({ text: text(s?.text), reasoning: text(s?.reasoning), seconds: number(s?.seconds), calls: list(s?.calls).map(readCall) }));
  return { ...base, role: "assistant", model: text(m.model, 300), steps, state: "done", stats: numbers(m.stats), edited: m.edited === true || undefined, error: text(m.error, 2000) || undefined };
}

function numbers(v) {
  return Object.fromEntries(Object.entries(object(v)).filter(([, n]) => Number.isFinite(n)));
}

// Ids are made anew: a file that is read twice makes two conversations, and never changes one that is there.
function readConversation(v) {
  const from = object(v), c = newConversation(text(from.system)), known = new Map();
  const ids = (id) => {
    if (!known.has(id)) known.set(id, newId());
    return known.get(id);
  };
  Object.assign(c, { title: text(from.title, 300), model: text(from.model, 300), pinned: from.pinned === true, created: time(from.created), changed: time(from.changed) });
  for (const m of Object.values(object(from.messages))) {
    if (m?.removed === true) continue;
    const read = readMessage(m, ids);
    c.messages[read.id] = read;
  }
  c.leaf = c.messages[known.get(from.leaf)] ? known.get(from.leaf) : Object.keys(c.messages).at(-1) ?? null;
  return c;
}

// A plain list of messages: [{role, content, images?, reasoning?, model?}], of this page's earlier version and of other programs.
function fromList(title, messages, system = "", created = Date.now()) {
  const c = newConversation(system);
  for (const m of messages) {
    const content = typeof m.content === "string" ? m.content : list(m.content).map((p) => text(p?.text)).join("");
    if (m.role === "system") c.system ||= text(content);
    else if (m.role === "user") addMessage(c, { role: "user", text: text(content), files: list(m.images).map((url) => readFile({ name: "image", kind: "image", url })).filter(Boolean) });
    else if (m.role === "assistant") addMessage(c, { role: "assistant", model: text(m.model, 300), state: "done", steps: [{ text: text(content), reasoning: text(m.reasoning ?? m.reasoning_content), calls: [] }] });
  }
  c.title = text(title, 300) || titleOf(path(c)[0] ?? { text: "" });
  c.created = c.changed = created;
  return c;
}

export function importOld(v) {
  return list(v).filter((c) => list(c?.turns).length).map((c) => fromList(c.title, c.turns.map((t) => ({ ...t, model: c.model })), text(c.system)));
}

// A conversation of Open WebUI's export: {chat: {title, messages}}.
const fromOpenWebUi = (v) => fromList(v.chat.title, list(v.chat.messages), "", time(number(v.chat.timestamp)));

// One of ChatGPT's: a tree, of which the current branch is taken.
function fromChatGpt(v) {
  const out = [], seen = new Set();
  for (let n = v.mapping[v.current_node]; n && !seen.has(n); n = v.mapping[n.parent]) {
    seen.add(n);
    const role = n.message?.author?.role, parts = list(n.message?.content?.parts).filter((p) => typeof p === "string").join("");
    if (parts && role) out.unshift({ role, content: parts, model: n.message?.metadata?.model_slug });
  }
  return fromList(v.title, out, "", time(1000 * number(v.create_time)));
}

function fromJson(v) {
  if (v?.format === FORMAT) {
    if (v.version > VERSION) throw new Error("the file was written by a newer version of this page");
    return list(v.conversations).map(readConversation);
  }
  const all = (Array.isArray(v) ? v : [v]).map((c) => {
    if (c?.chat) return fromOpenWebUi(c);
    if (c?.mapping) return fromChatGpt(c);
    if (Array.isArray(c?.messages)) return fromList(c.title, c.messages);
    return null;
  });
  const found = all.filter((c) => c && c.leaf);
  if (!found.length) throw new Error("there is no conversation in it");
  return found;
}

// What toMarkdown() has written; any other text is one message.
function fromMarkdown(source, name) {
  const parts = source.split(/^<!-- quern (\{.*\}) -->$/m), out = [];
  if (parts.length < 3) return [fromList(name, [{ role: "user", content: source }])];
  for (let i = 1; i + 1 < parts.length; i += 2) {
    const fields = object(JSON.parse(parts[i])), body = parts[i + 1].replace(/\n---\n*$/, "").trim();
    if ("conversation" in fields) {
      const quoted = /(?:^> ?.*\n?)+/m.exec(body.replace(/^# .*\n*/, ""))?.[0] ?? "";
      const c = newConversation(quoted.replace(/^> ?/gm, "").trim());
      c.title = text(fields.conversation, 300);
      c.created = c.changed = time(fields.created);
      out.push(c);
    } else if (out.length) {
      const content = body.replace(/^### .*\n*/, ""), at = out.at(-1);
      addMessage(at, fields.role === "user" ? { role: "user", text: content, files: [], created: time(fields.created) }
        : { role: "assistant", model: text(fields.model, 300), state: "done", created: time(fields.created), steps: [{ text: content, reasoning: "", calls: [] }] });
    }
  }
  return out.filter((c) => c.leaf);
}

// -> conversations, or an error that says what is wrong
export function read(name, source) {
  if (!/\.json$/i.test(name) && !/^\s*[[{]/.test(source)) return fromMarkdown(source, name.replace(/\.\w+$/, ""));
  let v;
  try {
    v = JSON.parse(source);
  } catch {
    throw new Error("it is not whole JSON");
  }
  return fromJson(v);
}
