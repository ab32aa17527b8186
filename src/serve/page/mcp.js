// A client of MCP servers over streamable HTTP: https://modelcontextprotocol.io. The browser connects; the page's policy allows
// only the servers of --mcp.
const PROTOCOL = "2025-06-18", PAGES = 50, WAIT = 120000;
const VARIABLE = /\{(\w+)\}/g, TEMPLATE = /^[^{}]*(?:\{\w+\}[^{}]*)+$/; // of addresses: the simplest form of RFC 6570

const words = (v, most = 2000) => (typeof v === "string" ? v.slice(0, most) : "");

// A resource or an image of a server as a file: {name, mimeType, text or blob}.
function asFile({ name, uri, mimeType, text, blob }) {
  const bytes = typeof blob === "string" ? Uint8Array.from(atob(blob), (c) => c.charCodeAt(0)) : words(text, Infinity);
  return new File([bytes], words(name, 200) || words(uri, 2000).split(/[/:]+/).filter(Boolean).at(-1) || "file", { type: words(mimeType, 100) });
}

// The parts of a prompt: texts, and what can be attached.
function read(parts) {
  const texts = [], files = [];
  for (const p of parts.flat().filter(Boolean)) {
    if (p.type === "text") texts.push(words(p.text, Infinity));
    else if (p.type === "image") files.push(asFile({ name: "image", mimeType: p.mimeType, blob: p.data }));
    else if (p.type === "resource" && p.resource) files.push(asFile(p.resource));
    else texts.push(`[${words(p.uri ?? p.type, 200)}]`);
  }
  return { text: texts.join("\n"), files };
}

export class McpServer {
  #session = null;
  #version = PROTOCOL;
  #next = 1;
  #ready = null;

  constructor(name, url) {
    Object.assign(this, { name, url, tools: [], prompts: [], resources: [], templates: [], error: null });
  }

  // A message; the response with this id, if it has one. Replies come as JSON, or as a stream of events.
  async #send(message, signal) {
    const headers = { "Content-Type": "application/json", Accept: "application/json, text/event-stream" };
    if (this.#session) headers["Mcp-Session-Id"] = this.#session;
    if (message.method !== "initialize") headers["MCP-Protocol-Version"] = this.#version;
    const limit = AbortSignal.timeout(WAIT);
    const response = await fetch(this.url, { method: "POST", headers, body: JSON.stringify({ jsonrpc: "2.0", ...message }), signal: signal ? AbortSignal.any([signal, limit]) : limit, credentials: "omit", redirect: "error" });
    this.#session = response.headers.get("Mcp-Session-Id") ?? this.#session;
    if (response.status === 404 && this.#session) { // the session has ended
      this.#session = this.#ready = null;
      throw new Error("the MCP server has ended the session; try again");
    }
    if (!response.ok) throw new Error(`the MCP server answers ${response.status}`);
    if (message.id === undefined) return null;
    const reply = response.headers.get("Content-Type")?.includes("text/event-stream") ? await this.#fromStream(response, message.id) : await response.json();
    if (reply?.error) throw new Error(String(reply.error.message ?? "an error of the MCP server"));
    if (!reply?.result) throw new Error("the MCP server's reply has no result");
    return reply.result;
  }

  async #fromStream(response, id) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", data = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the MCP server's stream ended without a reply");
      const all = (rest + value).split(/\r?\n/);
      rest = all.pop();
      for (const line of all) {
        if (line.startsWith("data:")) data += line.slice(5).trim();
        if (line || !data) continue;
        const message = JSON.parse(data);
        data = "";
        if (message.id === id && ("result" in message || "error" in message)) {
          reader.cancel().catch(() => {});
          return message;
        }
      }
    }
  }

  #call(method, params, signal) {
    return this.#send({ id: this.#next++, method, params }, signal);
  }

  async #open() {
    const hello = await this.#call("initialize", { protocolVersion: PROTOCOL, capabilities: {}, clientInfo: { name: "quern", version: "1" } });
    this.#version = typeof hello.protocolVersion === "string" ? hello.protocolVersion : PROTOCOL;
    await this.#send({ method: "notifications/initialized" });
    const can = hello.capabilities ?? {}, list = (kind) => (can[kind] ? this.#list(kind + "/list", kind) : []);
    const about = (v) => ({ name: v.name, title: words(v.title ?? v.annotations?.title ?? v.name, 200), description: words(v.description) });
    this.tools = (await list("tools")).map((t) => ({ ...about(t), schema: t.inputSchema ?? { type: "object", properties: {} } }));
    this.prompts = (await list("prompts")).map((p) => ({ ...about(p), fields: (Array.isArray(p.arguments) ? p.arguments : []).filter((a) => typeof a?.name === "string") }));
    this.resources = (await list("resources")).filter((r) => typeof r.uri === "string").map((r) => ({ ...about(r), uri: r.uri, type: words(r.mimeType, 100) }));
    const templates = can.resources ? await this.#list("resources/templates/list", "resourceTemplates").catch(() => []) : []; // not every server has them
    this.templates = templates.filter((t) => TEMPLATE.test(t.uriTemplate)).map((t) => ({ ...about(t), uri: t.uriTemplate, fields: [...t.uriTemplate.matchAll(VARIABLE)].map(([, name]) => ({ name, required: true })) }));
  }

  // All pages of a list of named things.
  async #list(method, field) {
    const all = [];
    for (let i = 0, cursor; i < PAGES && (!i || cursor); i++) {
      const page = await this.#call(method, cursor ? { cursor } : {});
      all.push(...(Array.isArray(page[field]) ? page[field] : []));
      cursor = page.nextCursor;
    }
    return all.filter((v) => typeof v?.name === "string");
  }

  async #ask(method, params, signal) {
    if (!(await this.connect())) throw new Error(this.error);
    return this.#call(method, params, signal);
  }

  // Connects once; what went wrong is in `error`.
  async connect() {
    this.#ready ??= this.#open();
    try {
      await this.#ready;
      this.error = null;
    } catch (e) {
      this.#ready = null;
      this.error = e.name === "TypeError" ? "it cannot be reached, or it does not allow this page's origin (CORS)" : e.message;
    }
    return !this.error;
  }

  // The result as text, for the model.
  async call(tool, args, signal) {
    const result = await this.#ask("tools/call", { name: tool, arguments: args }, signal);
    const parts = (Array.isArray(result.content) ? result.content : []).map((p) => (p.type === "text" ? String(p.text) : p.type === "resource" ? String(p.resource?.text ?? p.resource?.uri ?? "") : `[${p.type}]`));
    const text = parts.join("\n") || (result.structuredContent ? JSON.stringify(result.structuredContent) : "");
    return { text, failed: result.isError === true };
  }

  // A prompt with its arguments filled in: {text, files}.
  async prompt(name, args) {
    const { messages } = await this.#ask("prompts/get", { name, arguments: args }), all = Array.isArray(messages) ? messages : [];
    const said = all.map((m) => ({ mine: m?.role === "user", ...read([m?.content]) })), both = said.some((m) => !m.mine);
    return { text: said.filter((m) => m.text).map((m) => (both ? (m.mine ? "User: " : "Assistant: ") : "") + m.text).join("\n\n"), files: said.flatMap((m) => m.files) };
  }

  // A resource as files: one, or those of a folder. given: what stands for the variables of a template
  async resource({ uri: address, name }, given) {
    const uri = given ? address.replace(VARIABLE, (_, variable) => encodeURIComponent(given[variable] ?? "")) : address, { contents } = await this.#ask("resources/read", { uri }), all = Array.isArray(contents) ? contents : [];
    return all.filter(Boolean).map((c) => asFile({ name: all.length === 1 ? name : undefined, ...c }));
  }
}
