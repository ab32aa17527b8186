// The chat page. Conversations are kept in this browser's storage; the server stores none.
import { Attachments, thumbnail } from "/page/images.js";
import { markdown } from "/page/markdown.js";
import { themeButton } from "/page/theme.js";

const $ = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens", "seed"];

// ---- storage ----

const store = {
  read(name, otherwise) {
    try {
      return JSON.parse(localStorage.getItem("quern." + name)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  write(name, value) {
    localStorage.setItem("quern." + name, JSON.stringify(value));
  },
};

let settings = store.read("settings", {});
let conversations = store.read("conversations", []); // the newest first: {id, title, model, system, turns}
let current = null;
let running = null; // {abort, turn, view} while an answer comes

function save() {
  for (;;) {
    try {
      store.write("conversations", conversations);
      return;
    } catch { // the storage is full: the oldest goes, but never the one that is open
      const last = conversations.findLastIndex((c) => c !== current);
      if (last < 0) return note("this browser has no room to keep the conversation", true);
      conversations.splice(last, 1);
    }
  }
}

// ---- the server ----

function headers() {
  return { "Content-Type": "application/json", ...(settings.key ? { Authorization: "Bearer " + settings.key } : {}) };
}

async function refusal(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

async function loadModels() {
  const response = await fetch("/v1/models", { headers: headers() });
  if (!response.ok) throw new Error(await refusal(response));
  const models = (await response.json()).data;
  $("model").replaceChildren(...models.map((m) => {
    const o = document.createElement("option");
    o.value = o.textContent = m.id;
    return o;
  }));
  showModel();
}

// The events of a stream, each the text after "data:".
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
  }
}

// A turn as a message: its images are parts in front of the text.
function message({ role, content, images }) {
  if (!images?.length) return { role, content };
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role, content: content ? [...parts, { type: "text", text: content }] : parts };
}

function request(turns) {
  const body = { model: $("model").value, stream: true, stream_options: { include_usage: true } };
  for (const name of NUMBERS) if (settings[name] !== undefined) body[name] = settings[name];
  body.messages = turns.map(message);
  if (current.system) body.messages.unshift({ role: "system", content: current.system });
  return body;
}

async function answer() {
  const turn = { role: "assistant", content: "", reasoning: "" }, abort = new AbortController();
  const body = request(current.turns), owner = current, start = performance.now();
  let first = 0, tokens = 0, pieces = 0;
  current.turns.push(turn);
  current.model = body.model;
  running = { abort, turn, view: null };
  running.view = addTurn(turn);
  busy(true);
  try {
    const response = await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(body), signal: abort.signal });
    if (!response.ok) throw new Error(await refusal(response));
    for await (const data of events(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      tokens = chunk.usage?.completion_tokens ?? tokens;
      const delta = chunk.choices?.[0]?.delta;
      if (delta?.content || delta?.reasoning_content) {
        first ||= performance.now();
        pieces++;
        turn.content += delta.content ?? "";
        turn.reasoning += delta.reasoning_content ?? "";
        paintSoon();
      }
    }
  } catch (e) {
    if (e.name !== "AbortError") turn.error = e.message;
  }
  const seconds = (performance.now() - first) / 1000, made = tokens || pieces;
  if (first) turn.speed = `${made} tokens, ${made > 1 && seconds > 0 ? ((made - 1) / seconds).toFixed(1) : "?"} tok/s, first after ${((first - start) / 1000).toFixed(2)} s`;
  const view = running.view;
  running = null;
  busy(false);
  if (current === owner) paint(view, turn);
  save();
}

// ---- rendering ----

function note(text, bad = false) {
  $("note").textContent = text;
  $("note").classList.toggle("bad", bad);
}

function busy(yes) {
  $("send").hidden = yes;
  $("stop").hidden = !yes;
  note(yes ? "…" : "");
}

function tool(label, action) {
  const b = document.createElement("button");
  b.type = "button";
  b.textContent = label;
  b.addEventListener("click", action);
  return b;
}

function addTurn(turn) {
  const view = document.createElement("article");
  view.className = "turn " + turn.role;
  $("log").append(view);
  paint(view, turn);
  $("log").scrollTop = $("log").scrollHeight;
  return view;
}

function tools(turn) {
  const row = document.createElement("div");
  row.className = "tools";
  row.append(tool("Copy", () => navigator.clipboard.writeText(turn.content).then(() => note("copied"))));
  if (turn.role === "user") row.append(tool("Edit", () => edit(turn)));
  if (turn.role === "assistant" && turn === current.turns.at(-1)) row.append(tool("Regenerate", regenerate));
  if (turn.speed) {
    const meta = document.createElement("span");
    meta.className = "meta";
    meta.textContent = turn.speed;
    row.append(meta);
  }
  return row;
}

function paint(view, turn) {
  const who = document.createElement("div"), body = document.createElement("div"), parts = [who];
  who.className = "who";
  who.textContent = turn.role === "user" ? "You" : current.model ?? "Model";
  body.className = "body";
  if (turn.role === "user") body.textContent = turn.content;
  else body.append(...markdown(turn.content));
  if (turn.reasoning) {
    const details = document.createElement("details"), summary = document.createElement("summary");
    details.className = "reason";
    details.open = !turn.content || view.querySelector("details")?.open === true;
    summary.textContent = "Reasoning";
    details.append(summary, turn.reasoning);
    parts.push(details);
  }
  if (turn.images?.length) {
    const row = document.createElement("div");
    row.className = "pictures";
    row.append(...turn.images.map(thumbnail));
    parts.push(row);
  }
  parts.push(body);
  if (turn.error) {
    const p = document.createElement("p");
    p.className = "meta";
    p.textContent = "Stopped: " + turn.error;
    parts.push(p);
    note(turn.error, true);
  }
  if (running?.turn !== turn) parts.push(tools(turn));
  view.replaceChildren(...parts);
}

let painting = false;
function paintSoon() {
  if (painting) return;
  painting = true;
  requestAnimationFrame(() => {
    painting = false;
    if (!running || !current.turns.includes(running.turn)) return;
    const log = $("log"), follow = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    paint(running.view, running.turn);
    if (follow) log.scrollTop = log.scrollHeight;
  });
}

function showModel() {
  const wanted = current?.model, select = $("model");
  if (wanted && [...select.options].some((o) => o.value === wanted)) select.value = wanted;
}

function showList() {
  $("list").replaceChildren(...conversations.map((c) => {
    const li = document.createElement("li"), open = tool(c.title || "New conversation", () => show(c)), remove = tool("×", () => forget(c));
    open.className = "open";
    open.setAttribute("aria-current", c === current);
    remove.title = "Delete this conversation";
    remove.setAttribute("aria-label", "Delete " + (c.title || "conversation"));
    li.append(open, remove);
    return li;
  }));
}

function show(conversation) {
  if (running) running.abort.abort();
  current = conversation;
  store.write("current", current.id);
  $("log").replaceChildren();
  for (const turn of current.turns) addTurn(turn);
  showList();
  showModel();
  side(false);
  $("text").focus();
}

function side(shown) {
  $("side").classList.toggle("shown", shown);
  $("menu").setAttribute("aria-expanded", shown);
}

// ---- input ----

function begin() {
  const empty = conversations.find((c) => !c.turns.length);
  const c = empty ?? { id: crypto.randomUUID?.() ?? String(Math.random()), title: "", system: current?.system ?? "", turns: [] };
  if (!empty) conversations.unshift(c);
  show(c);
}

function forget(conversation) {
  if (conversation.turns.length && !confirm("Delete this conversation?")) return;
  const at = conversations.indexOf(conversation);
  conversations.splice(at, 1);
  if (conversation === current) conversations.length ? show(conversations[Math.min(at, conversations.length - 1)]) : begin();
  showList();
  save();
}

function send(text, images = []) {
  if (running || (!text.trim() && !images.length)) return;
  const turn = { role: "user", content: text, ...(images.length ? { images } : {}) };
  current.turns.push(turn);
  current.title ||= text.trim().slice(0, 60) || "Image";
  conversations.splice(conversations.indexOf(current), 1);
  conversations.unshift(current);
  addTurn(turn);
  showList();
  save();
  answer();
}

function cutTo(turn) {
  if (running) return false;
  current.turns.length = current.turns.indexOf(turn);
  $("log").replaceChildren();
  for (const t of current.turns) addTurn(t);
  return true;
}

function regenerate() {
  if (cutTo(current.turns.at(-1))) answer();
}

function edit(turn) {
  if (running) return;
  const view = $("log").children[current.turns.indexOf(turn)], box = document.createElement("textarea");
  box.className = "edit";
  box.value = turn.content;
  box.rows = Math.min(12, turn.content.split("\n").length + 1);
  box.setAttribute("aria-label", "Edit the message");
  const done = () => (box.value.trim() || turn.images) && cutTo(turn) && send(box.value, turn.images), back = () => paint(view, turn);
  box.addEventListener("keydown", (e) => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
      e.preventDefault();
      done();
    } else if (e.key === "Escape") {
      e.stopPropagation();
      back();
    }
  });
  const row = document.createElement("div");
  row.className = "tools";
  row.append(tool("Send", done), tool("Cancel", back));
  view.replaceChildren(box, row);
  box.focus();
}

function openSettings() {
  const form = $("settings").querySelector("form");
  form.system.value = current.system ?? "";
  form.key.value = settings.key ?? "";
  for (const name of NUMBERS) form[name].value = settings[name] ?? "";
  $("settings").returnValue = "";
  $("settings").showModal();
}

function closeSettings() {
  if ($("settings").returnValue !== "save") return;
  const form = $("settings").querySelector("form");
  current.system = form.system.value;
  settings = form.key.value ? { key: form.key.value } : {};
  for (const name of NUMBERS) if (form[name].value !== "") settings[name] = Number(form[name].value);
  store.write("settings", settings);
  save();
  loadModels().then(() => note(""), (e) => note(e.message, true));
}

// ---- start ----

const attachments = new Attachments({
  strip: $("strip"), button: $("attach"), input: $("file"), drop: document.querySelector("main"), text: $("text"),
  failed: (text) => note(text, true),
});

$("ask").addEventListener("submit", (e) => {
  e.preventDefault();
  const text = $("text").value;
  if (running || (!text.trim() && !attachments.count)) return;
  $("text").value = "";
  send(text, attachments.take());
});
$("text").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
    e.preventDefault();
    $("ask").requestSubmit();
  }
});
$("stop").addEventListener("click", () => running?.abort.abort());
$("new").addEventListener("click", begin);
$("menu").addEventListener("click", () => side(!$("side").classList.contains("shown")));
$("log").addEventListener("click", () => side(false));
$("settings-open").addEventListener("click", openSettings);
$("settings").addEventListener("close", closeSettings);
document.addEventListener("keydown", (e) => {
  if (e.key === "Escape" && running && !$("settings").open) running.abort.abort();
  if (e.altKey && e.key.toLowerCase() === "n") {
    e.preventDefault();
    begin();
  }
});
themeButton($("theme"));

const last = store.read("current", null), known = conversations.find((c) => c.id === last) ?? conversations[0];
known ? show(known) : begin();
loadModels().catch((e) => note(e.message, true));
