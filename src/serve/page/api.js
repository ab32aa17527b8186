// The server: requests with the key, a dialog where a key is needed, events of a stream, and what happens when the server is
// not there.
import { $, announce } from "/page/dom.js";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}
export class Offline extends Error {}

// ---- the key ----

const KEY = "quern.key";

// A key is kept in this browser only where the user says so, else until the tab is closed.
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "",
  set(text, keep) {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
    if (text) (keep ? localStorage : sessionStorage).setItem(KEY, text);
  },
};
try { // where an earlier version of this page has kept it
  const old = JSON.parse(localStorage.getItem("quern.settings"));
  if (old?.key && !key.get()) key.set(old.key, true);
} catch { /* there is none */ }

let asking = null;

// Asks once, however many requests were refused. false: the user has closed the dialog.
export function askKey(wrong) {
  const dialog = $("key-dialog"), form = dialog.querySelector("form");
  return (asking ??= new Promise((answer) => {
    form.querySelector(".problem").textContent = wrong ? "This server does not accept that key." : "";
    form.key.value = "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "use" && form.key.value.trim();
      if (given) key.set(given, form.keep.checked);
      asking = null;
      answer(Boolean(given));
    }, { once: true });
    form.querySelector(".cancel").onclick = () => dialog.close();
    dialog.showModal();
  }));
}

// ---- requests ----

// Whether the server answers. Events: "change". While it does not, it is asked again and again.
class Connection extends EventTarget {
  down = false;
  wait = 0; // seconds until the next try
  #back = [];

  lost() {
    if (this.down) return;
    this.down = true;
    this.#try(1);
  }

  async #try(delay) {
    for (this.wait = delay; this.wait > 0; this.wait--) {
      this.dispatchEvent(new Event("change"));
      await new Promise((f) => { this.skip = f; setTimeout(f, 1000); });
    }
    this.dispatchEvent(new Event("change"));
    try {
      const r = await fetch("/health", { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (r.ok) return this.#found();
    } catch { /* not yet */ }
    this.#try(Math.min(delay + 1, 8));
  }

  now() {
    this.wait = 0;
    this.skip?.();
  }

  #found() {
    this.down = false;
    this.dispatchEvent(new Event("change"));
    announce("Connected again");
    for (const f of this.#back.splice(0)) f();
  }

  back() {
    return this.down ? new Promise((f) => this.#back.push(f)) : Promise.resolve();
  }
}
export const connection = new Connection();

async function problem(response) {
  let message = "";
  try {
    const body = await response.json();
    message = body.error?.message ?? body.error ?? "";
  } catch { /* no JSON */ }
  return new ApiError(response.status, message || `${response.status} ${response.statusText}`);
}

// A response that is ok, or an error. Asks for a key where one is needed.
export async function request(url, options = {}) {
  for (let wrong = false; ; wrong = true) {
    const headers = { ...options.headers }, used = key.get();
    if (used) headers.Authorization = "Bearer " + used;
    if (options.body) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(url, { ...options, headers });
    } catch (e) {
      if (e.name === "AbortError") throw e;
      connection.lost();
      throw new Offline("the server does not answer");
    }
    if (response.ok) return response;
    if (response.status !== 401 || options.quiet) throw await problem(response);
    if (key.get() === used && !(await askKey(wrong || Boolean(used)))) throw await problem(response);
  }
}

// The reply to a request with this X-Stream-Id once more, from its beginning; null where the server has it no longer.
export async function resume(id, options) {
  try {
    return await request("/v1/streams/" + id, options);
  } catch (e) {
    if (e instanceof ApiError && e.status === 404) return null;
    throw e;
  }
}

export function endStream(id) {
  request("/v1/streams/" + id, { method: "DELETE", quiet: true, keepalive: true }).catch(() => {});
}

export const getJson = async (url, options) => (await request(url, options)).json();
export const postJson = (url, body, options) => request(url, { method: "POST", body: JSON.stringify(body), ...options });

// The lines of a body as they come.
export async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const all = (rest + value).split("\n");
      rest = all.pop();
      yield* all;
    }
  } catch (e) {
    if (e.name === "AbortError") throw e;
    connection.lost();
    throw new Offline("the connection was lost");
  }
  if (rest) yield rest;
}

// The events of a stream: the text after "data:".
export async function* events(response) {
  for await (const line of lines(response)) if (line.startsWith("data:")) yield line.slice(5).trim();
}
