// What the MCP servers offer. Tools are for the model: each is off until the user allows it, to be asked before every call, or
// always. Prompts and resources are for the user: they are read at a click, and put where the message is written.
import { $, el, toast } from "/page/dom.js";
import { McpServer } from "/page/mcp.js";

const KEPT = "quern.tools", NAME = 64;

export class Tools {
  servers = [];
  insert = async () => {}; // ({text, files}): into the message that is being written
  #rights = {};

  constructor() {
    this.#read();
    addEventListener("storage", (e) => e.key === KEPT && this.#read());
  }

  #read() {
    try {
      this.#rights = JSON.parse(localStorage.getItem(KEPT)) ?? {};
    } catch {
      this.#rights = {};
    }
  }

  // A right belongs to the address, so that another server of the same name does not inherit it.
  #key = (server, tool) => `${server.url} ${tool.name}`;
  right = (server, tool) => this.#rights[this.#key(server, tool)] ?? "off";

  allow(server, tool, right) {
    this.#rights[this.#key(server, tool)] = right;
    localStorage.setItem(KEPT, JSON.stringify(this.#rights));
  }

  setServers(list) {
    if (this.servers.length === list.length && list.every((s, i) => this.servers[i].url === s.url && this.servers[i].name === s.name)) return;
    this.servers = list.map((s) => new McpServer(s.name, s.url));
  }

  get some() {
    return this.servers.length > 0;
  }

  async connect() {
    await Promise.all(this.servers.map((s) => s.connect()));
  }

  // What the model may call, as the API wants it: {list, find(name)}.
  async allowed() {
    const found = new Map();
    if (this.servers.some((s) => Object.keys(this.#rights).some((k) => k.startsWith(s.url + " ") && this.#rights[k] !== "off"))) await this.connect();
    for (const server of this.servers)
      for (const tool of server.tools) {
        if (this.right(server, tool) === "off") continue;
        const plain = `${server.name}_${tool.name}`.replace(/[^A-Za-z0-9_-]/g, "_").slice(0, NAME - 3);
        let name = plain;
        for (let i = 2; found.has(name); i++) name = `${plain}_${i}`;
        found.set(name, { server, tool });
      }
    return { find: (name) => found.get(name),
      list: [...found].map(([name, { tool }]) => ({ type: "function", function: { name, description: tool.description, parameters: tool.schema } })) };
  }

  // The dialog: every server with its tools.
  async show() {
    $("tools-body").replaceChildren(el("p", { class: "faint" }, "Connecting…"));
    if (!$("tools-dialog").open) $("tools-dialog").showModal();
    await this.connect();
    $("tools-body").replaceChildren(...this.servers.map((s) => this.#section(s)));
  }

  #section(server) {
    const head = el("div", { class: "server-head" }, el("h3", {}, server.name), el("span", { class: "faint" }, server.url));
    if (server.error) return el("section", {}, head, el("p", { class: "problem" }, `Not connected: ${server.error}.`));
    const lists = [["Tools", server.tools, this.#row], ["Prompts", server.prompts, this.#prompt], ["Resources", server.resources, this.#resource], ["Resources by name", server.templates, this.#template]].filter(([, all]) => all.length);
    return el("section", {}, head, ...lists.flatMap(([name, all, row]) => [el("h4", {}, name), el("ul", { class: "tool-list", "aria-label": `${name} of ${server.name}` }, ...all.map((v) => row.call(this, server, v)))]),
              lists.length ? null : el("p", { class: "faint" }, "It offers nothing."));
  }

  // Reads something of a server and puts it into the message.
  async #take(what, read) {
    try {
      const found = await read();
      $("tools-dialog").close();
      await this.insert(found);
    } catch (e) {
      toast(`${what.title} cannot be read: ${e.message}`);
    }
  }

  // A row with fields to fill in.
  #form(what, about, label, button, read) {
    const boxes = what.fields.map((f) => el("label", { class: "field" }, f.title ?? f.name, el("input", { name: f.name, required: f.required === true, title: String(f.description ?? ""), placeholder: f.required === true ? "" : "optional", autocomplete: "off" })));
    const form = el("form", { onsubmit: (e) => {
      e.preventDefault();
      const given = Object.fromEntries([...new FormData(form)].filter(([, v]) => v !== ""));
      this.#take(what, () => read(given));
    } }, ...boxes, el("button", { "aria-label": label }, button));
    return el("li", { class: boxes.length ? "long" : "" }, el("div", {}, el("strong", {}, what.title), el("p", { class: "faint" }, about)), form);
  }

  #prompt(server, p) {
    return this.#form(p, p.description.slice(0, 300), `Insert the prompt ${p.title}`, "Insert", (given) => server.prompt(p.name, given));
  }

  #template(server, t) {
    return this.#form(t, [t.description.slice(0, 300), t.uri].filter(Boolean).join(" · "), `Attach ${t.title}`, "Attach", async (given) => ({ text: "", files: await server.resource(t, given) }));
  }

  #resource(server, r) {
    const attach = el("button", { type: "button", "aria-label": `Attach ${r.title}`, onclick: () => this.#take(r, async () => ({ text: "", files: await server.resource(r) })) }, "Attach");
    return el("li", {}, el("div", {}, el("strong", {}, r.title), el("p", { class: "faint" }, [r.description.slice(0, 300), r.uri, r.type].filter(Boolean).join(" · "))), attach);
  }

  #row(server, tool) {
    const choose = el("select", { "aria-label": `${tool.title}: when it may be called`, onchange: () => this.allow(server, tool, choose.value) },
      el("option", { value: "off" }, "Off"), el("option", { value: "ask" }, "Ask each time"), el("option", { value: "always" }, "Always allow"));
    choose.value = this.right(server, tool);
    return el("li", {}, el("div", {}, el("strong", {}, tool.title), el("p", { class: "faint" }, tool.description.slice(0, 300))), choose);
  }
}
