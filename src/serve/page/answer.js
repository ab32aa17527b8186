// Makes an answer: sends the conversation, takes the stream, runs the tools that the model calls, and goes on until it has
// answered. The message is changed in place; changed() tells the page.
//
// The server keeps a reply for a while by the id that the page gives it. It is in the message (`stream`), so that after a
// reload, or when the network was away, the same reply is read again from its beginning and goes on.
import { ApiError, connection, endStream, events, Offline, postJson, resume } from "/page/api.js";
import { apiMessages } from "/page/conversation.js";
import { newId } from "/page/dom.js";
import { tab } from "/page/store.js";

const ROUNDS = 16; // of calls in one answer

const newStep = () => ({ text: "", reasoning: "", calls: [] });

export class Answer {
  // conversation, message: an empty one, or one to go on with; before: the messages that it answers;
  // reattach: only where its reply is still to be had
  constructor({ conversation, message, before, model, fields, tools, changed, confirm, reattach = false }) {
    Object.assign(this, { conversation, message, before, model, fields, tools, changed, confirm, reattach });
    this.abort = new AbortController();
    this.first = 0;
  }

  stop() {
    this.abort.abort();
    if (this.message.stream) endStream(this.message.stream.id);
  }

  async run() {
    const m = this.message, start = performance.now();
    Object.assign(m, { state: "streaming", tab, error: undefined, finish: undefined });
    if (!m.steps.length) m.steps.push(newStep());
    m.stats ??= { tokens: 0, writing: 0 };
    try {
      await this.#rounds();
      m.state = this.lost ? "interrupted" : "done";
    } catch (e) {
      m.state = e.name === "AbortError" ? "stopped" : "failed";
      if (m.state === "failed") m.error = e instanceof Error ? e.message : String(e);
      this.failure = e;
    }
    if (this.first) m.stats.first ??= (this.first - start) / 1000;
    m.rev++;
    delete m.stream;
    delete m.tab;
    delete m.beat;
    this.changed();
  }

  // Once more after the server was away: what has come is kept.
  async #rounds() {
    for (let lost = 0; ;) {
      try {
        return await this.#all();
      } catch (e) {
        if (!(e instanceof Offline) || lost++ >= 20) throw e;
        this.message.waiting = "connection";
        this.changed();
        await Promise.race([connection.back(), new Promise((_, no) => this.abort.signal.addEventListener("abort", () => no(new DOMException("stopped", "AbortError"))))]);
        delete this.message.waiting;
      }
    }
  }

  async #all() {
    const allowed = await this.tools.allowed();
    for (let i = 0; i < ROUNDS; i++) {
      const step = this.message.steps.at(-1);
      if (!step.calls.length) await this.#stream(step, allowed);
      if (!step.calls.length || this.lost) return;
      for (const call of step.calls) if (call.result === undefined) await this.#call(call, allowed);
      this.message.steps.push(newStep());
      this.#touch();
    }
    throw new Error(`the model has called tools ${ROUNDS} times in one answer`);
  }

  #touch() {
    this.message.rev++;
    this.message.beat = Date.now();
    this.changed();
  }

  #body(allowed) {
    const messages = apiMessages(this.conversation, [...this.before, this.message]);
    return { model: this.model, messages, stream: true, stream_options: { include_usage: true }, ...this.fields,
             ...(allowed.list.length ? { tools: allowed.list } : {}) };
  }

  // The reply that was being read, if the server still has it; else a new one.
  async #reply(step, allowed) {
    const m = this.message, signal = this.abort.signal, old = m.stream && (await resume(m.stream.id, { signal }));
    if (old) {
      step.text = step.text.slice(0, m.stream.length);
      m.stats.tokens = m.stream.tokens;
    } else if (this.reattach && m.stream) {
      this.lost = true;
      return null;
    } else {
      m.stream = { id: newId(), length: step.text.length, tokens: m.stats.tokens };
      this.#touch();
    }
    if (!step.text) step.reasoning = ""; // what was interrupted in its reasoning begins again
    return old ?? postJson("/v1/chat/completions", this.#body(allowed), { signal, headers: { "X-Stream-Id": m.stream.id } });
  }

  async #stream(step, allowed) {
    const m = this.message, partial = new Map(), response = await this.#reply(step, allowed), began = m.stats.tokens;
    let begun = 0, reasoned = 0, pieces = 0, ended = false;
    if (!response) return;
    this.reattach = false;
    for await (const data of events(response)) {
      if (data === "[DONE]") {
        ended = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(500, chunk.error.message ?? "an error of the server");
      if (chunk.usage) m.stats.prompt = chunk.usage.prompt_tokens, m.stats.tokens = began + chunk.usage.completion_tokens;
      const choice = chunk.choices?.[0], delta = choice?.delta;
      if (choice?.finish_reason) m.finish = choice.finish_reason;
      if (!delta || !(delta.content || delta.reasoning_content || delta.tool_calls)) continue;
      const now = performance.now();
      this.first ||= now;
      begun ||= now;
      if (delta.reasoning_content) step.reasoning += delta.reasoning_content, reasoned ||= now;
      if (delta.content) step.text += delta.content;
      if (reasoned && (delta.content || delta.tool_calls)) step.seconds ??= (now - reasoned) / 1000;
      for (const part of delta.tool_calls ?? []) this.#part(partial, part);
      pieces++;
      m.stats.writing += begun === now ? 0 : now - this.last;
      this.last = now;
      if (m.stats.tokens < began + pieces) m.stats.tokens = began + pieces;
      this.#touch();
    }
    if (!ended && !m.finish) {
      connection.lost();
      throw new Offline("the connection was lost");
    }
    delete m.stream;
    if (reasoned) step.seconds ??= (this.last - reasoned) / 1000;
    step.calls = [...partial.values()];
  }

  #part(partial, part) {
    const call = partial.get(part.index ?? 0) ?? { id: part.id || `call_${partial.size}`, name: "", arguments: "", status: "asked" };
    partial.set(part.index ?? 0, call);
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }

  // A call: shown, confirmed where the user wants to be asked, and its result or the reason why there is none.
  async #call(call, allowed) {
    const known = allowed.find(call.name);
    let args;
    const end = (status, result) => {
      Object.assign(call, { status, result });
      this.#touch();
    };
    try {
      args = JSON.parse(call.arguments || "{}");
    } catch {
      return end("failed", "The arguments are not JSON.");
    }
    if (!known) return end("failed", "There is no such tool.");
    if (this.tools.right(known.server, known.tool) !== "always") {
      call.status = "confirm";
      this.#touch();
      const said = await this.confirm(call, this.abort.signal);
      if (said === "always") this.tools.allow(known.server, known.tool, "always");
      if (said === "no") return end("refused", "The user did not allow this call.");
    }
    call.status = "running";
    this.#touch();
    try {
      const { text, failed } = await known.server.call(known.tool.name, args, this.abort.signal);
      end(failed ? "failed" : "done", text);
    } catch (e) {
      if (this.abort.signal.aborted) throw new DOMException("stopped", "AbortError");
      end("failed", `The call failed: ${e.message}`);
    }
  }
}
