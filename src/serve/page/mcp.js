// A client of MCP servers over streamable HTTP: https://modelcontextprotocol.io. The browser connects; the page's policy allows
// only the servers of --mcp.
const PROTOCOL = "2025-06-18", PAGES = 50, WAIT = 120000;

export class McpServer {
  #session = null;
  #version = PROTOCOL;
  #next = 1;
  #ready = null;

  constructor(name, url) {
    Object.assign(this, { name, url, tools: [], error: null });
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
    const tools = [];
    let cursor;
    for (let i = 0; i < PAGES; i++) {
      const page = await this.#call("tools/list", cursor ? { cursor } : {});
      tools.push(...(Array.isArray(page.tools) ? page.tools : []));
      cursor = page.nextCursor;
      if (!cursor) break;
    }
    this.tools = tools.filter((t) => typeof t?.name === "string").map((t) => ({ name: t.name, title: String(t.title ?? t.annotations?.title ?? t.name),
      description: String(t.description ?? ""), schema: t.inputSchema ?? { type: "object", properties: {} }, readOnly: t.annotations?.readOnlyHint === true }));
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
    if (!(await this.connect())) throw new Error(this.error);
    const result = await this.#call("tools/call", { name: tool, arguments: args }, signal);
    const parts = (Array.isArray(result.content) ? result.content : []).map((p) => (p.type === "text" ? String(p.text) : p.type === "resource" ? String(p.resource?.text ?? p.resource?.uri ?? "") : `[${p.type}]`));
    const text = parts.join("\n") || (result.structuredContent ? JSON.stringify(result.structuredContent) : "");
    return { text, failed: result.isError === true };
  }
}
