// The models of the server: which there are, which are in memory, and the picker.
import { $, arrows, bytes, count, el, icon, popup, toast } from "/page/dom.js";
import { getJson, lines, postJson } from "/page/api.js";

const POLL = 1000;

export function modelFacts(m) {
  const out = [];
  if (m.meta?.n_params) out.push(count(m.meta.n_params));
  if (m.meta?.type) out.push(m.meta.type);
  if (m.meta?.size) out.push(bytes(m.meta.size));
  if (m.max_model_len) out.push(count(m.max_model_len) + " context");
  return out;
}

const DEVICES = { cpu: "CPU", cuda: "GPU" };
export const deviceName = (m) => (m.status?.device ? DEVICES[m.status.device] ?? m.status.device : null);

// Events: "list" where a state has changed, "choose".
export class Models extends EventTarget {
  all = [];
  chosen = localStorage.getItem("quern.model") ?? "";
  admin = false;
  #timer = 0;
  #close;

  constructor() {
    super();
    this.#close = popup($("model-button"), $("models"), () => this.#open());
    $("model-search").addEventListener("input", () => this.#show());
    arrows($("models"), ".model-row");
  }

  find = (id) => this.all.find((m) => m.id === id);
  get current() {
    return this.find(this.chosen) ?? this.all.find((m) => m.meta?.capabilities?.includes("chat")) ?? this.all[0];
  }
  can = (what) => this.current?.meta?.capabilities?.includes(what) ?? false;

  async refresh(options) {
    this.all = (await getJson("/v1/models", options)).data;
    this.#paint();
    this.dispatchEvent(new Event("list"));
  }

  choose(id, kept = true) {
    this.chosen = id;
    if (kept) localStorage.setItem("quern.model", id);
    this.#paint();
    this.dispatchEvent(new Event("choose"));
  }

  #paint() {
    const m = this.current;
    $("model-name").textContent = m?.id ?? "No model";
    $("model-state").className = "dot " + (m?.status?.value ?? "");
    $("model-button").title = m ? `${m.id}: ${m.status?.value ?? ""}` : "";
    this.#show();
  }

  #open() {
    $("model-search").value = "";
    $("model-search").focus();
    $("model-search").parentElement.hidden = this.all.length < 6;
    $("model-pull").hidden = !this.admin;
    if (this.all.length < 6) $("models").focus();
    this.#poll();
  }

  // While the picker is open, or a model is being loaded.
  async #poll() {
    clearTimeout(this.#timer);
    if (document.hidden) return void (this.#timer = setTimeout(() => this.#poll(), POLL));
    try {
      await this.refresh({ quiet: true });
    } catch { /* the next time */ }
    if (!$("models").hidden || this.all.some((m) => m.status?.value === "loading")) this.#timer = setTimeout(() => this.#poll(), POLL);
  }

  #show() {
    if ($("models").hidden) return;
    const wanted = $("model-search").value.trim().toLowerCase(), focused = document.activeElement?.dataset?.model;
    const rows = this.all.filter((m) => m.id.toLowerCase().includes(wanted)).map((m) => this.#row(m));
    $("model-list").replaceChildren(...(rows.length ? rows : [el("li", { class: "faint pad" }, "No model of this name")]));
    if (focused) $("model-list").querySelector(`[data-model="${CSS.escape(focused)}"]`)?.focus();
  }

  #row(m) {
    const state = m.status?.value ?? "", loaded = state === "loaded", on = m === this.current;
    const badges = (m.meta?.capabilities ?? []).filter((c) => ["vision", "tools", "reasoning"].includes(c)).map((c) => el("span", { class: "badge" }, c));
    const pick = el("button", { type: "button", class: "model-row", "data-model": m.id, "aria-pressed": on ? "true" : "false", onclick: () => { this.choose(m.id); this.#close(true); } },
      el("span", { class: "dot " + state, title: state }), el("span", { class: "model-words" }, el("span", { class: "model-id" }, m.id, on && icon("check")),
        el("span", { class: "faint" }, [...modelFacts(m), deviceName(m), m.status?.memory && bytes(m.status.memory) + " in memory"].filter(Boolean).join(" · ")),
        badges.length ? el("span", { class: "badges" }, ...badges) : null));
    const change = this.admin && el("button", { type: "button", class: "quiet", disabled: state === "loading", "aria-label": `${loaded ? "Unload" : "Load"} ${m.id}`, onclick: () => this.load(m.id, !loaded) },
      state === "loading" ? "Loading…" : loaded ? "Unload" : "Load");
    return el("li", {}, el("div", { class: "model-line" }, pick, change), state === "loading" && this.#bar(m));
  }

  #bar(m) {
    const share = m.status?.progress;
    return share == null ? el("progress", { "aria-label": `Loading ${m.id}` }) : el("progress", { max: 1, value: share, "aria-label": `Loading ${m.id}` });
  }

  async load(model, up) {
    const done = postJson(up ? "/models/load" : "/models/unload", { model });
    setTimeout(() => this.#poll(), 100);
    try {
      await done;
    } catch (e) {
      toast(`${model} could not be ${up ? "loaded" : "unloaded"}: ${e.message}`);
    }
    this.#poll();
  }

  // Fetches a model to the server, with its progress: Ollama's /api/pull.
  async pull(name, status) {
    const response = await postJson("/api/pull", { model: name, stream: true });
    for await (const line of lines(response)) {
      if (!line.trim()) continue;
      const news = JSON.parse(line);
      if (news.error) throw new Error(news.error);
      status(news);
    }
    await this.refresh();
  }
}
