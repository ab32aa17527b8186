// The chat page: what belongs together. Conversations are kept in this browser; the server stores none.
import { $, announce, bytes, copyText, count, download, el, fileName, toast } from "/page/dom.js";
import { ApiError, connection, getJson } from "/page/api.js";
import { Answer } from "/page/answer.js";
import { absorb, addMessage, choose, fork, newConversation, path, removeMessage, restoreMessages, setField, titleOf, versions } from "/page/conversation.js";
import { Composer } from "/page/composer.js";
import { History } from "/page/history.js";
import { loadMarkdown } from "/page/markdown.js";
import { deviceName, Models } from "/page/models.js";
import { Settings, SettingsDialog } from "/page/settings.js";
import { Store } from "/page/store.js";
import { themeButton } from "/page/theme.js";
import { Tools } from "/page/tools.js";
import { read, toJson, toMarkdown, toText } from "/page/transfer.js";
import { isInterrupted, MessageView } from "/page/view.js";

const SAVE = 500; // ms between two writes of an answer that comes
const EXAMPLES = [
  ["Explain a concept", "Explain how a hash table works, with a small example in Python."],
  ["Write something", "Write a short, friendly email that moves a meeting from Monday to Wednesday."],
  ["Think it through", "A train leaves at 14:20 and takes 95 minutes. When does it arrive? Show the steps."],
  ["Work with data", "Make a table of the four largest planets with diameter and number of known moons."],
];

const store = await Store.open();
const settings = new Settings(), models = new Models(), tools = new Tools();
let current = newConversation(settings.values.default_system ?? "");
let views = new Map(); // of the messages that are shown, by id
let running = null; // the Answer that is being made, in this tab
const confirming = new Map(); // calls that wait for the user: call -> resolve

// ---- showing ----

const page = {
  live: () => running?.message.id,
  isLast: (m) => current.leaf === m.id,
  versions: (m) => versions(current, m).map((v) => v.id),
  choose: (id) => !running && go(() => choose(current, current.messages[id])),
  regenerate: (m) => answer(m.parent),
  goOn: (m) => !running && run(m),
  resend: (m, text) => send(text, m.files, m.parent),
  rewrite: (m, text) => !running && go(() => addMessage(current, { role: "assistant", parent: m.parent, model: m.model, steps: [{ text, reasoning: "", calls: [] }], state: "done", edited: true })),
  removeMessage: async (m) => {
    const c = current, before = structuredClone(c);
    if (running) return;
    if (!m.parent && versions(c, m).length === 1) return remove(c.id);
    await go(() => removeMessage(c, m));
    toast("Deleted, with what follows", "Undo", async () => {
      restoreMessages(c, before);
      if (c === current) show();
      await keep(c);
    });
  },
  fork: async (m) => open((await store.save(fork(current, m))).id),
  confirmed: (call, word) => confirming.get(call)?.(word),
  waiting: (m) => (m.waiting === "connection" ? "Waiting for the server…" : models.find(m.model)?.status?.value === "loading" ? `Loading ${m.model}…` : ""),
};

function show() {
  const log = $("log"), all = path(current), old = views;
  views = new Map();
  for (const m of all) {
    const v = old.get(m.id) ?? new MessageView(m, page);
    if (old.has(m.id)) v.update(m);
    views.set(m.id, v);
  }
  const wanted = all.map((m) => views.get(m.id).root);
  wanted.forEach((n, i) => log.children[i] !== n && log.insertBefore(n, log.children[i] ?? null));
  while (log.children.length > wanted.length) log.lastChild.remove();
  document.body.classList.toggle("empty", !all.length);
  document.title = current.title ? `${current.title} · quern` : "quern";
  $("chat-title").textContent = current.title;
  if (!all.length) welcome();
  room(all);
}

// How much of the model's context the conversation takes.
function room(all) {
  const last = all.findLast((m) => m.stats?.prompt), most = models.find(last?.model)?.max_model_len;
  const used = last && last.stats.prompt + last.stats.tokens, share = most ? used / most : 0;
  $("fine").textContent = share ? `${used.toLocaleString("en")} of ${most.toLocaleString("en")} tokens of context` : "Models make mistakes. Check what matters.";
  $("fine").classList.toggle("warn", share > 0.9);
}

// The first screen: the model, and what one might ask.
function welcome() {
  const m = models.current, fact = (name, value) => value && el("div", {}, el("dt", {}, name), el("dd", {}, value));
  $("welcome-model").textContent = m ? m.id : "";
  $("welcome-facts").replaceChildren(...(m ? [fact("Parameters", m.meta?.n_params && count(m.meta.n_params)), fact("Type", m.meta?.type), fact("Size", m.meta?.size && bytes(m.meta.size)),
    fact("Context", m.max_model_len && m.max_model_len.toLocaleString("en") + " tokens"), fact("Device", deviceName(m) ?? (m.status?.value === "loading" ? "loading…" : "not loaded"))].filter(Boolean) : []));
}

const scroller = $("scroll");
let following = true;
const atEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
function toEnd() {
  scroller.scrollTop = scroller.scrollHeight;
  following = true;
}
scroller.addEventListener("scroll", () => {
  following = atEnd();
  $("to-end").hidden = following;
});
$("to-end").addEventListener("click", toEnd);

let painting = false;
function paintSoon() {
  if (painting) return;
  painting = true;
  requestAnimationFrame(() => {
    painting = false;
    const m = running?.message;
    if (!m || running.conversation !== current) return;
    views.get(m.id)?.update(m);
    if (following) toEnd();
  });
}

// ---- conversations ----

// Changes the open conversation, shows and keeps it.
async function go(change) {
  change();
  show();
  await keep(current);
}

async function keep(c) {
  if (!c.leaf) return;
  const merged = await store.save(c);
  if (!merged) {
    if (c === current) gone();
    return;
  }
  adopt(c, merged);
  sidebar.refresh();
}

// What other tabs have added.
function adopt(c, there) {
  absorb(c, there, running?.conversation === c ? running.message.id : undefined);
}

async function open(id) {
  const found = running?.conversation.id === id ? running.conversation : await store.load(id);
  if (!found) return begin();
  current = found;
  store.open = id;
  if (location.hash !== "#" + id) history.pushState(null, "", "#" + id);
  if (current.model && models.find(current.model)) models.choose(current.model, false);
  enter();
}

function begin(id) {
  current = newConversation(settings.values.default_system ?? "");
  if (id) current.id = id;
  store.open = current.id;
  sessionStorage.setItem("quern.new", current.id);
  if (location.hash) history.pushState(null, "", "/");
  enter();
}

function enter() {
  views.clear();
  $("log").replaceChildren();
  show();
  composer.open(current.id);
  composer.busy(running?.conversation === current);
  sidebar.refresh();
  side(false);
  toEnd();
  composer.text.focus();
  if (document.body.dataset.ready) reattach();
}

// An answer that this tab was making before a reload, or that a closed tab has left, goes on if the server still has it.
function reattach() {
  const m = current.messages[current.leaf];
  if (running || m?.state !== "streaming") return;
  if (!isInterrupted(m)) setTimeout(() => { show(); reattach(); }, 6000);
  else if (m.stream) run(m, true);
}

function gone() {
  toast("This conversation was deleted in another tab");
  begin();
}

async function remove(id) {
  const c = await store.load(id);
  if (running?.conversation.id === id) running.stop();
  await store.remove(id);
  if (current.id === id) begin();
  sidebar.refresh();
  if (c) toast(`“${c.title || "Chat"}” is deleted`, "Undo", async () => { await store.restore(c); open(id); });
}

async function change(id, name, value) {
  const c = id === current.id ? current : await store.load(id);
  if (!c) return;
  setField(c, name, value);
  await keep(c);
  if (c === current) show();
}

async function all() {
  const out = [];
  await store.each((c) => void out.push(c));
  return out;
}

function give(conversations, name, kind) {
  if (kind === "json") download(name + ".json", "application/json", toJson(conversations));
  else download(name + ".md", "text/markdown", toMarkdown(conversations));
}

async function importFiles(files) {
  let made = 0, last = null;
  for (const file of files) {
    try {
      for (const c of read(file.name, await file.text())) {
        last = await store.save(c);
        made++;
      }
    } catch (e) {
      return toast(`${file.name} cannot be imported: ${e.message}`);
    }
  }
  if (last && made === 1) await open(last.id);
  sidebar.refresh();
  toast(made === 1 ? "One conversation is imported" : `${made} conversations are imported`);
}

async function removeAll() {
  if (!confirm("Delete all conversations of this browser? They cannot be restored.")) return;
  running?.stop();
  for (const h of await store.heads()) await store.remove(h.id);
  begin();
}

// ---- asking ----

function send(text, files = [], parent = current.leaf) {
  if (running) {
    const other = running.conversation;
    if (other !== current) toast("Another chat is still being answered", "Show it", () => open(other.id));
    return false;
  }
  if (!models.current) {
    toast("There is no model to ask");
    return false;
  }
  const c = current, m = addMessage(c, { role: "user", text, files, parent });
  if (!c.title) setField(c, "title", titleOf(m));
  sessionStorage.removeItem("quern.new");
  if (location.hash !== "#" + c.id) history.pushState(null, "", "#" + c.id);
  answer(m.id);
}

// A new version of what follows this message.
function answer(parent) {
  if (running) return;
  const name = models.current?.id ?? "";
  setField(current, "model", name);
  run(addMessage(current, { role: "assistant", parent, model: name, steps: [], state: "streaming" }));
}

// reattach: only if the server still has its reply
async function run(message, reattach) {
  const c = current, shown = path(c), before = shown.slice(0, shown.indexOf(message));
  let saved = 0, timer = 0;
  const write = () => {
    saved = Date.now();
    timer = 0;
    store.save(c);
  };
  running = new Answer({
    conversation: c, message, before, model: message.model || models.current.id, fields: settings.fields, tools, reattach,
    changed: () => {
      paintSoon();
      timer ||= setTimeout(write, Math.max(0, SAVE - (Date.now() - saved)));
    },
    confirm: (call, signal) => new Promise((said, no) => {
      confirming.set(call, (word) => { confirming.delete(call); said(word); });
      signal.addEventListener("abort", () => no(new DOMException("stopped", "AbortError")));
    }),
  });
  message.state = "streaming";
  const mine = running;
  composer.busy(true);
  show();
  toEnd();
  keep(c);
  const watch = setInterval(() => !mine.first && models.refresh({ quiet: true }).then(paintSoon, () => {}), 1000);
  await mine.run();
  clearInterval(watch);
  clearTimeout(timer);
  running = null;
  composer.busy(false);
  if (c === current) {
    show();
    if (following) toEnd();
  }
  if (message.state === "failed") announce("The answer failed: " + message.error);
  c.changed = Date.now();
  await keep(c);
  models.refresh({ quiet: true }).catch(() => {});
}

// ---- parts ----

const composer = new Composer({ store, send, stop: () => running?.stop(), sees: () => models.can("vision"), pages: () => settings.values.pdf === "images" });
tools.insert = (what) => composer.insert(what);
const sidebar = new History(store, {
  open, remove, current: () => current.id, rename: (id, title) => change(id, "title", title), pin: (id, yes) => change(id, "pinned", yes),
  exportOne: async (id, kind) => { const c = await store.load(id); if (c) give([c], fileName(c.title), kind); },
  copyOne: async (id) => { const c = await store.load(id); if (c) toast((await copyText(toText(c))) ? "Copied" : "This browser does not let the page copy"); },
});
const dialog = new SettingsDialog(settings, {
  conversation: () => ({ system: current.system, setSystem: (text) => { setField(current, "system", text); keep(current); } }),
  data: { usage: () => store.usage(), exportAll: async (kind) => give(await all(), "quern-conversations", kind), importFiles, removeAll },
  keyChanged: () => start(),
});

function side(shown) {
  document.body.classList.toggle("side-shown", shown);
  $("menu").setAttribute("aria-expanded", shown);
}

function banner(kind, text, ...buttons) {
  const box = $("banner-" + kind);
  box.hidden = !text;
  if (text) box.replaceChildren(el("span", {}, text), ...buttons.map(([label, run]) => el("button", { type: "button", onclick: run }, label)));
}

connection.addEventListener("change", () => {
  banner("offline", connection.down ? `The server does not answer. ${connection.wait ? `Next try in ${connection.wait} s.` : "Trying…"}` : "", ["Try now", () => connection.now()]);
  if (!connection.down) start();
});

function fullBanner(e) {
  if (!e) return banner("full", "");
  const what = e.name === "QuotaExceededError" ? "This browser's storage for the page is full." : `This browser keeps nothing for the page (${e.message}).`;
  banner("full", `${what} Nothing was deleted, but what is new is lost when the tab is closed. Export it, or delete what is not needed.`,
         ["Export all", async () => give(await all(), "quern-conversations", "json")], ["Storage", () => dialog.show("data")]);
}
store.addEventListener("full", (e) => fullBanner(e.detail));
store.addEventListener("room", () => fullBanner(null));
store.addEventListener("list", () => sidebar.refresh());
store.addEventListener("change", async ({ detail }) => {
  if (detail.id !== current.id) return;
  if (detail.removed) return gone();
  const there = await store.load(detail.id);
  if (!there || there.id !== current.id) return;
  adopt(current, there);
  show();
  if (following) toEnd();
});
models.addEventListener("choose", () => {
  if (!path(current).length) welcome();
});
models.addEventListener("list", () => {
  if (!path(current).length) welcome();
});

$("new").addEventListener("click", () => begin());
$("menu").addEventListener("click", () => side(!document.body.classList.contains("side-shown")));
$("shade").addEventListener("click", () => side(false));
$("tools-open").addEventListener("click", () => tools.show());
$("tools-close").addEventListener("click", () => $("tools-dialog").close());
$("model-pull").addEventListener("submit", async (e) => {
  e.preventDefault();
  const name = $("pull-name").value.trim(), out = $("pull-state"), bar = $("pull-bar");
  if (!name) return;
  bar.hidden = false;
  bar.removeAttribute("value");
  try {
    await models.pull(name, (s) => {
      out.textContent = s.total ? `${s.status} ${bytes(s.completed ?? 0)} of ${bytes(s.total)}` : s.status;
      if (s.total) bar.value = (s.completed ?? 0) / s.total;
    });
    out.textContent = `${name} is there.`;
  } catch (err) {
    out.textContent = err.message;
  }
  bar.hidden = true;
});
$("examples").replaceChildren(...EXAMPLES.map(([title, text]) => el("button", { type: "button", onclick: () => { composer.put(text); composer.text.focus(); } }, el("strong", {}, title), el("span", { class: "faint" }, text))));
themeButton($("theme"));
addEventListener("popstate", () => (location.hash.length > 1 ? open(location.hash.slice(1)) : begin()));
document.addEventListener("keydown", (e) => {
  if (e.key === "Escape" && running && !document.querySelector("dialog[open]")) running.stop();
  const shortcut = e.altKey && !e.ctrlKey && { n: () => begin(), k: () => { side(true); $("search").focus(); }, m: () => $("model-button").click(), s: () => dialog.show() }[e.key.toLowerCase()];
  if (!shortcut) return;
  e.preventDefault();
  shortcut();
});

// ---- start ----

// What this client may do here, and the models.
async function start() {
  try {
    const session = await getJson("/session");
    models.admin = session.admin;
    tools.setServers(session.mcp);
    $("tools-open").hidden = !tools.some;
    await models.refresh();
    if (current.model && models.find(current.model)) models.choose(current.model, false);
  } catch (e) {
    if (e instanceof ApiError) toast(e.message);
  }
}

// A draft of a new conversation that no tab has open, else a new one.
async function first() {
  const mine = sessionStorage.getItem("quern.new");
  if (mine) return begin(mine);
  const [drafts, heads, others] = await Promise.all([store.drafts(), store.heads(), store.others()]);
  const left = drafts.find((id) => !heads.some((h) => h.id === id) && !others.includes(id));
  begin(left);
}

await loadMarkdown();
if (store.full) fullBanner(store.full);
if (location.hash.length > 1) await open(location.hash.slice(1));
else await first();
await start();
reattach();
document.body.dataset.ready = "1";
