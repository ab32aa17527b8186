// How answers are made: the fields of the API by their usual names, kept in this browser; presets; and the dialog.
import { $, bytes, el, toast } from "/page/dom.js";
import { key } from "/page/api.js";
import { setTheme, theme } from "/page/theme.js";

const KEPT = "quern.settings", PRESETS = "quern.presets";
// name, label, what it does, attributes of the field; empty = as the model and the server have it
const NUMBERS = [
  ["max_tokens", "Maximum tokens", "The longest answer. Empty: until the model ends it.", { min: 1, step: 1 }],
  ["temperature", "Temperature", "0 always takes the likeliest token; higher is more varied.", { min: 0, max: 5, step: "any" }],
  ["top_p", "Top-p", "Only the likeliest tokens that together have this probability.", { min: 0, max: 1, step: "any" }],
  ["top_k", "Top-k", "Only this many of the likeliest tokens; 0 is all.", { min: 0, step: 1 }],
  ["min_p", "Min-p", "Only tokens with this share of the likeliest one's probability.", { min: 0, max: 1, step: "any" }],
  ["repeat_penalty", "Repeat penalty", "Above 1, tokens that came lately are less likely.", { min: 0, step: "any" }],
  ["presence_penalty", "Presence penalty", "Tokens that have come are less likely.", { min: -2, max: 2, step: "any" }],
  ["frequency_penalty", "Frequency penalty", "The more often a token has come, the less likely it is.", { min: -2, max: 2, step: "any" }],
  ["seed", "Seed", "The same number and the same question give the same answer.", { min: 0, step: 1 }],
];
const EFFORTS = [["", "As the model has it"], ["none", "Off"], ["low", "Low"], ["medium", "Medium"], ["high", "High"]];
const OWN = ["model", "messages", "stream", "stream_options", "tools"]; // fields that the page itself sets
const FORMATS = [["", "Text"], ["json", "JSON"], ["schema", "JSON by a schema"]];

function stored(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export class Settings extends EventTarget {
  values = stored(KEPT, {});

  constructor() {
    super();
    delete this.values.key; // an earlier version kept it here
    addEventListener("storage", (e) => {
      if (e.key !== KEPT) return;
      this.values = stored(KEPT, {});
      this.dispatchEvent(new Event("change"));
    });
  }

  set(name, value) {
    if (value === "" || value == null || Number.isNaN(value)) delete this.values[name];
    else this.values[name] = value;
    localStorage.setItem(KEPT, JSON.stringify(this.values));
    this.dispatchEvent(new Event("change"));
  }

  replace(values) {
    this.values = { ...values };
    localStorage.setItem(KEPT, JSON.stringify(this.values));
    this.dispatchEvent(new Event("change"));
  }

  // The fields of a request.
  get fields() {
    const v = this.values, out = {};
    for (const [name] of NUMBERS) if (v[name] !== undefined) out[name] = v[name];
    if (v.reasoning_effort) out.reasoning_effort = v.reasoning_effort;
    const stop = (v.stop ?? "").split("\n").filter(Boolean).map((s) => s.replace(/\\n/g, "\n").replace(/\\t/g, "\t"));
    if (stop.length) out.stop = stop;
    if (v.format === "json") out.response_format = { type: "json_object" };
    if (v.format === "schema" && !schemaProblem(v.schema ?? "")) out.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(v.schema), strict: true } };
    if (v.extra && !objectProblem(v.extra)) for (const [name, value] of Object.entries(JSON.parse(v.extra))) if (!OWN.includes(name)) out[name] = value;
    return out;
  }

  get presets() {
    const all = stored(PRESETS, []);
    return Array.isArray(all) ? all.filter((p) => typeof p?.name === "string" && p.values) : [];
  }

  setPresets(all) {
    localStorage.setItem(PRESETS, JSON.stringify(all));
    this.dispatchEvent(new Event("change"));
  }
}

// What is wrong with the text of a JSON object; "" = nothing.
function objectProblem(text) {
  try {
    const v = JSON.parse(text);
    return v && typeof v === "object" && !Array.isArray(v) ? "" : "This is no object: {…}.";
  } catch (e) {
    return "This is not JSON: " + e.message;
  }
}

const schemaProblem = (text) => (text.trim() ? objectProblem(text) : "Give a schema, such as {\"type\": \"object\"}.");

// ---- the dialog ----

function field(label, input, hint) {
  const id = "set-" + input.name;
  input.id = id;
  if (hint) input.setAttribute("aria-describedby", id + "-hint");
  return el("div", { class: "field" }, el("label", { for: id }, label), input, hint && el("p", { class: "hint", id: id + "-hint" }, hint));
}

const choice = (name, options, value, onchange) => {
  const box = el("select", { name, onchange: () => onchange(box.value) }, ...options.map(([v, text]) => el("option", { value: v }, text)));
  box.value = value;
  return box;
};

export class SettingsDialog {
  // conversation(): {system, setSystem(text)} of the open one; data: {exportAll, importFiles, removeAll, usage, count}
  constructor(settings, { conversation, data, keyChanged }) {
    Object.assign(this, { settings, conversation, data, keyChanged });
    $("settings-open").addEventListener("click", () => this.show());
    const dialog = $("settings");
    const tabs = [...dialog.querySelectorAll("[role=tab]")];
    tabs.forEach((tab, i) => {
      tab.addEventListener("click", () => this.#tab(tab.dataset.tab));
      tab.addEventListener("keydown", (e) => {
        const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[e.key];
        if (!step) return;
        e.preventDefault();
        const next = tabs[(i + step + tabs.length) % tabs.length];
        this.#tab(next.dataset.tab);
        next.focus();
      });
    });
    $("settings-close").addEventListener("click", () => dialog.close());
  }

  show(tab = "generation") {
    this.#tab(tab);
    if (!$("settings").open) $("settings").showModal();
    $("tab-" + tab).focus();
  }

  #tab(name) {
    for (const t of $("settings").querySelectorAll("[role=tab]")) {
      t.setAttribute("aria-selected", t.dataset.tab === name);
      t.tabIndex = t.dataset.tab === name ? 0 : -1;
    }
    const panel = $("settings-panel");
    panel.setAttribute("aria-labelledby", "tab-" + name);
    panel.replaceChildren(...{ generation: () => this.#generation(), output: () => this.#output(), presets: () => this.#presets(), general: () => this.#general(), data: () => this.#data() }[name]());
  }

  #generation() {
    const c = this.conversation(), s = this.settings;
    const own = el("textarea", { name: "system", rows: 3, placeholder: "You are a helpful assistant.", onchange: () => c.setSystem(own.value) });
    const usual = el("textarea", { name: "default_system", rows: 2, onchange: () => s.set("default_system", usual.value) });
    own.value = c.system;
    usual.value = s.values.default_system ?? "";
    const numbers = NUMBERS.map(([name, label, hint, limits]) => {
      const box = el("input", { name, type: "number", placeholder: "default", ...limits, onchange: () => box.reportValidity() && s.set(name, box.value === "" ? "" : Number(box.value)) });
      box.value = s.values[name] ?? "";
      return field(label, box, hint);
    });
    return [field("System prompt of this conversation", own), field("System prompt of new conversations", usual),
            el("div", { class: "grid" }, ...numbers, field("Reasoning", choice("reasoning_effort", EFFORTS, s.values.reasoning_effort ?? "", (v) => s.set("reasoning_effort", v)), "For models that can reason before they answer.")),
            el("button", { type: "button", onclick: () => { s.replace({ default_system: s.values.default_system ?? "" }); this.#tab("generation"); } }, "Reset to defaults")];
  }

  #output() {
    const s = this.settings, problem = el("p", { class: "problem", role: "alert" });
    const schema = el("textarea", { name: "schema", rows: 9, spellcheck: "false", class: "mono", placeholder: '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}', oninput: () => take() });
    const box = field("Schema", schema, "JSON Schema. The answer always matches it: other tokens cannot be generated.");
    const take = () => {
      problem.textContent = schemaProblem(schema.value);
      if (!problem.textContent) s.set("schema", schema.value);
    };
    const format = choice("format", FORMATS, s.values.format ?? "", (v) => {
      s.set("format", v);
      box.hidden = v !== "schema";
      problem.textContent = v === "schema" ? schemaProblem(schema.value) : "";
    });
    const stop = el("textarea", { name: "stop", rows: 3, class: "mono", spellcheck: "false", onchange: () => s.set("stop", stop.value) });
    const wrong = el("p", { class: "problem", role: "alert" });
    const extra = el("textarea", { name: "extra", rows: 3, class: "mono", spellcheck: "false", placeholder: '{"xtc_probability": 0.5, "xtc_threshold": 0.1}', oninput: () => {
      wrong.textContent = extra.value.trim() ? objectProblem(extra.value) : "";
      if (!wrong.textContent) s.set("extra", extra.value.trim());
    } });
    schema.value = s.values.schema ?? "";
    extra.value = s.values.extra ?? "";
    stop.value = s.values.stop ?? "";
    box.hidden = format.value !== "schema";
    return [field("Structured output", format), box, problem, field("Stop strings", stop, "One a line; \\n is a line break. The answer ends before the first of them."),
            field("Other fields of the request", extra, "JSON. Every field of the API, such as samplers that are not on this page."), wrong];
  }

  #presets() {
    const s = this.settings, c = this.conversation();
    const name = el("input", { name: "preset", maxlength: 60, placeholder: "Precise, Creative, SQL helper …" });
    const save = () => {
      const n = name.value.trim();
      if (!n) return name.focus();
      s.setPresets([...s.presets.filter((p) => p.name !== n), { name: n, values: { ...s.values }, system: c.system }]);
      this.#tab("presets");
    };
    const rows = s.presets.map((p) => el("li", {}, el("span", {}, p.name),
      el("span", { class: "row" }, el("button", { type: "button", onclick: () => { s.replace(p.values); c.setSystem(p.system ?? ""); toast(`The preset “${p.name}” is in use`); } }, "Use"),
         el("button", { type: "button", "aria-label": `Delete the preset ${p.name}`, onclick: () => { s.setPresets(s.presets.filter((o) => o.name !== p.name)); this.#tab("presets"); } }, "Delete"))));
    return [el("p", { class: "hint" }, "A preset is a name for the settings of generation and output, and for the system prompt."),
            field("Save what is set now as", name), el("button", { type: "button", onclick: save }, "Save preset"),
            rows.length ? el("ul", { class: "rows" }, ...rows) : el("p", { class: "faint" }, "No presets yet.")];
  }

  #general() {
    const box = el("input", { name: "key", type: "password", autocomplete: "off", placeholder: "none", onchange: () => { key.set(box.value.trim(), true); this.keyChanged(); } });
    box.value = key.get();
    return [field("Theme", choice("theme", [["system", "As the system"], ["light", "Light"], ["dark", "Dark"]], theme(), setTheme)),
            field("API key", box, "Kept in this browser, sent only to this server."),
            field("PDF files", choice("pdf", [["", "As text"], ["images", "As images of their pages"]], this.settings.values.pdf ?? "", (v) => this.settings.set("pdf", v)), "Images need a model that sees; a scanned file is always read so."),
            el("p", { class: "hint" }, "Keys: Alt+N new chat, Alt+K search, Alt+M model, Alt+S settings, Esc stop."),
            el("p", { class: "hint" }, "The page uses libraries of others: ", el("a", { href: "/page/licences.txt", target: "_blank" }, "licences"), ".")];
  }

  #data() {
    const d = this.data, used = el("p", { class: "hint" }), input = el("input", { type: "file", accept: ".json,.md,application/json,text/markdown", multiple: true, hidden: true, onchange: async () => { await d.importFiles([...input.files]); input.value = ""; } });
    d.usage().then((u) => (used.textContent = u ? `This site uses ${bytes(u.used)} of ${bytes(u.quota)} that the browser gives it.` : "Conversations are kept in this browser only."));
    return [el("p", { class: "hint" }, "Conversations are kept in this browser; the server stores none."), used,
            el("div", { class: "row" }, el("button", { type: "button", onclick: () => d.exportAll("json") }, "Export all (JSON)"), el("button", { type: "button", onclick: () => d.exportAll("md") }, "Export all (Markdown)")),
            el("p", { class: "hint" }, "JSON has everything and can be imported again. Markdown has what is shown, without files and other versions."),
            el("div", { class: "row" }, el("button", { type: "button", onclick: () => input.click() }, "Import…"), input),
            el("p", { class: "hint" }, "Files of this page, and exports of Open WebUI and ChatGPT."),
            el("div", { class: "row" }, el("button", { type: "button", class: "danger", onclick: () => d.removeAll() }, "Delete all conversations…"))];
  }
}

