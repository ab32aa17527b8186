// The messages of the open conversation as elements.
import { announce, copyButton, el, icon, iconButton, seconds } from "/page/dom.js";
import { fileChip } from "/page/composer.js";
import { Markdown } from "/page/markdown.js";
import { answerText, messageText } from "/page/conversation.js";
import { tab } from "/page/store.js";

const SILENT = 5000; // ms after which an answer that another tab was making counts as interrupted

const STATUS = { asked: "asked for", confirm: "waits for you", running: "running…", done: "done", failed: "failed", refused: "not allowed" };
const FINISH = { length: "The answer was cut: it reached the maximum of tokens, or the end of the context.", content_filter: "The answer was cut." };

export function isInterrupted(m, live) {
  return m.state === "interrupted" || (m.state === "streaming" && m.id !== live && (m.tab === tab || Date.now() - (m.beat ?? m.created) > SILENT));
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

// One message. update() shows its present state; only what has changed is made again.
export class MessageView {
  source = false; // shows what the model wrote, not what became of it
  #steps = []; // {reasoning, text, calls} of each step

  // page: what the buttons do, and what is known of the conversation
  constructor(message, page) {
    this.page = page;
    this.message = message;
    const mine = message.role === "user";
    this.who = el("div", { class: "who" });
    this.body = el("div", { class: "body" });
    this.foot = el("div", { class: "foot" });
    this.root = el("article", { class: `turn ${message.role}`, "data-id": message.id, "aria-label": mine ? "You" : "Answer" }, mine ? null : this.who, this.body, this.foot);
    this.update(message);
  }

  update(message) {
    this.message = message;
    if (message.role === "user") this.#user();
    else this.#assistant();
  }

  #user() {
    const m = this.message;
    if (this.editing) return;
    this.body.replaceChildren(...(m.files?.length ? [el("div", { class: "files" }, ...m.files.map((f) => fileChip(f)))] : []), ...(m.text ? [el("div", { class: "bubble" }, m.text)] : []));
    this.foot.replaceChildren(this.#versions(), copyButton("Copy message", () => m.text), iconButton("edit", "Edit message", () => this.edit()),
      iconButton("trash", "Delete message", () => this.page.removeMessage(m)));
  }

  #assistant() {
    if (this.editing) return;
    const m = this.message, live = this.page.live() === m.id, cut = isInterrupted(m, this.page.live()), busy = m.state === "streaming" && !cut;
    this.root.setAttribute("aria-busy", busy);
    this.who.textContent = (m.model || "Model") + (m.edited ? ", edited by you" : "");
    m.steps.forEach((s, i) => this.#step(s, i, busy && i === m.steps.length - 1));
    for (const gone of this.#steps.splice(m.steps.length)) gone.box.remove();
    const empty = !m.steps.some((s) => s.text || s.reasoning || s.calls?.length);
    this.#wait(busy && empty ? this.page.waiting(m) : busy && m.waiting ? this.page.waiting(m) : null);
    this.#note(m, cut);
    this.foot.replaceChildren(...(busy ? [] : this.#buttons(m, cut)));
    if (live && m.state === "done") announce("The answer is complete");
  }

  #step(s, i, growing) {
    let view = this.#steps[i];
    if (!view) {
      const box = el("div", { class: "step" }), text = el("div", {});
      view = this.#steps[i] = { box, reason: null, text: new Markdown(text), calls: el("div", { class: "calls" }), shown: null, whole: false };
      box.append(text, view.calls);
      this.note ? this.note.before(box) : this.body.append(box);
    }
    this.#reasoning(view, s, growing);
    if (view.shown !== s.text || view.whole === growing || view.source !== this.source) view.text.update(s.text, !growing, this.source);
    Object.assign(view, { shown: s.text, whole: !growing, source: this.source });
    const state = JSON.stringify(s.calls ?? []);
    if (view.state !== state) view.calls.replaceChildren(...(s.calls ?? []).map((c) => this.#call(c)));
    view.state = state;
  }

  #reasoning(view, s, growing) {
    if (!s.reasoning) return;
    if (!view.reason) {
      const summary = el("summary", {}, icon("think"), el("span", {})), text = el("div", { class: "reason-text" });
      view.reason = { details: el("details", { class: "reason" }, summary, text), label: summary.lastChild, text, shown: null };
      view.box.prepend(view.reason.details);
    }
    view.reason.label.textContent = s.seconds != null ? `Reasoned for ${seconds(s.seconds)}` : growing ? "Reasoning…" : "Reasoning";
    view.reason.details.classList.toggle("growing", growing && s.seconds == null);
    if (view.reason.shown !== s.reasoning) view.reason.text.textContent = view.reason.shown = s.reasoning;
  }

  #call(c) {
    const box = el("details", { class: "call " + c.status, open: c.status === "confirm" },
      el("summary", {}, icon("tools"), el("span", { class: "call-name" }, c.name), el("span", { class: "faint" }, STATUS[c.status] ?? "")),
      el("h4", {}, "Arguments"), el("pre", { tabindex: "0" }, pretty(c.arguments || "{}")), ...(c.result !== undefined ? [el("h4", {}, "Result"), el("pre", { tabindex: "0" }, pretty(c.result))] : []));
    if (c.status === "confirm" && this.page.live() === this.message.id) {
      const say = (word) => () => this.page.confirmed(c, word);
      box.append(el("div", { class: "row" }, el("button", { type: "button", class: "primary", onclick: say("yes") }, "Allow once"), el("button", { type: "button", onclick: say("always") }, "Always allow"),
                    el("button", { type: "button", onclick: say("no") }, "Refuse")));
    }
    return box;
  }

  #wait(text) {
    if (!text) {
      this.waiting?.remove();
      this.waiting = null;
      return;
    }
    if (!this.waiting) this.body.append((this.waiting = el("div", { class: "waiting", role: "status" }, el("span", { class: "grind", "aria-hidden": "true" }), el("span", {}))));
    this.waiting.lastChild.textContent = text;
  }

  // What is to be said about the end of an answer.
  #note(m, cut) {
    const text = cut ? "This answer was interrupted." : m.state === "failed" ? m.error : m.state === "stopped" ? "You stopped this answer." : FINISH[m.finish] ?? "";
    this.note ??= this.body.appendChild(el("p", { class: "note" }));
    this.note.hidden = !text;
    this.note.classList.toggle("problem", m.state === "failed");
    this.note.textContent = text;
  }

  #buttons(m, cut) {
    const p = this.page, stats = m.stats, rate = stats?.tokens > 1 && stats.writing > 0 ? (1000 * (stats.tokens - 1)) / stats.writing : 0;
    const can = cut || ["stopped", "failed"].includes(m.state) || m.finish === "length", last = p.isLast(m);
    return [this.#versions(), copyButton("Copy answer", () => answerText(m)), iconButton("retry", "Regenerate", () => p.regenerate(m)),
            iconButton("source", "Show the source", () => { this.source = !this.source; this.update(this.message); }, { "aria-pressed": this.source ? "true" : "false" }),
            m.steps.some((s) => s.calls?.length) ? "" : iconButton("edit", "Edit answer", () => this.edit()), iconButton("fork", "New chat from here", () => p.fork(m)),
            iconButton("trash", "Delete answer", () => p.removeMessage(m)),
            can && last && answerText(m) ? iconButton("play", "Continue", () => p.goOn(m)) : "",
            stats?.tokens ? el("span", { class: "meta", title: `first token after ${seconds(stats.first ?? 0)}, ${stats.prompt ?? "?"} tokens of prompt` }, `${stats.tokens} tokens`, rate ? ` · ${rate < 100 ? rate.toFixed(1) : Math.round(rate)} tok/s` : "") : ""];
  }

  // 2/3 with arrows, where there is more than one.
  #versions() {
    const all = this.page.versions(this.message), at = all.indexOf(this.message.id);
    if (all.length < 2) return "";
    const go = (i) => () => this.page.choose(all[i]);
    return el("span", { class: "versions" }, iconButton("back", "Earlier version", go(at - 1), { disabled: at === 0 }), el("span", {}, `${at + 1}/${all.length}`), iconButton("next", "Later version", go(at + 1), { disabled: at === all.length - 1 }));
  }

  // A question is sent again, an answer is kept: as a version beside the old one.
  edit() {
    const m = this.message, mine = m.role === "user", before = messageText(m), box = el("textarea", { class: "edit", "aria-label": mine ? "Edit the message" : "Edit the answer" });
    const end = () => {
      this.editing = false;
      this.body.replaceChildren();
      this.#steps = [];
      this.note = this.waiting = null;
      this.update(this.message);
    };
    const done = () => {
      const text = box.value.trim();
      if (!text && !m.files?.length) return;
      end();
      if (mine) this.page.resend(m, text);
      else if (text !== before.trim()) this.page.rewrite(m, text);
    };
    this.editing = true;
    box.value = before;
    box.rows = Math.min(14, before.split("\n").length + 1);
    box.addEventListener("keydown", (e) => {
      if (e.key === "Enter" && (mine ? !e.shiftKey : e.ctrlKey) && !e.isComposing) {
        e.preventDefault();
        done();
      } else if (e.key === "Escape") {
        e.stopPropagation();
        end();
      }
    });
    this.body.replaceChildren(box);
    this.foot.replaceChildren(el("button", { type: "button", class: "primary", onclick: done }, mine ? "Send" : "Save"), el("button", { type: "button", onclick: end }, "Cancel"));
    box.focus();
  }
}
