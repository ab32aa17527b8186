// Where conversations are kept: IndexedDB, one record for each. Tabs tell each other over a channel what has changed. A record
// is read, merged and written in one transaction, so that two tabs never undo each other's changes.
import { headOf, merge } from "/page/conversation.js";
import { newId } from "/page/dom.js";

const NAME = "quern", VERSION = 1, DRAFT = "quern.draft.";

const done = (request) => new Promise((yes, no) => {
  request.onsuccess = () => yes(request.result);
  request.onerror = () => no(request.error);
});
const finished = (t) => new Promise((yes, no) => {
  t.oncomplete = yes;
  t.onabort = t.onerror = () => no(t.error ?? new DOMException("the transaction was aborted", "AbortError"));
});

// The id of this tab, the same after a reload.
export const tab = sessionStorage.getItem("quern.tab") ?? newId();
sessionStorage.setItem("quern.tab", tab);

// Events: "change" {id, removed} from other tabs; "list" where the list is another one; "full" {error}; "room".
export class Store extends EventTarget {
  #db = null; // null: there is no storage here, and all is kept in memory
  #memory = { conversations: new Map(), heads: new Map(), drafts: new Map(), removed: new Map() };
  #unsaved = new Map(); // what did not fit, by id
  #channel = new BroadcastChannel("quern");
  #listening = new Map();
  full = null; // the error of the last write; null = it fitted

  static async open() {
    const s = new Store();
    try {
      const request = indexedDB.open(NAME, VERSION);
      request.onupgradeneeded = () => {
        for (const name of ["conversations", "heads", "drafts", "removed"]) request.result.createObjectStore(name, { keyPath: "id" });
      };
      s.#db = await done(request);
      s.#db.onversionchange = () => s.#db.close();
      navigator.storage?.persist?.().catch(() => {});
    } catch (e) {
      s.full = e;
    }
    s.#channel.onmessage = (e) => s.#heard(e.data);
    await s.#adopt();
    return s;
  }

  get kept() {
    return this.#db !== null;
  }

  #tell(event) {
    this.#channel.postMessage({ ...event, tab });
  }

  #heard(event) {
    if (event.kind === "who") this.#tell({ kind: "here", open: this.open });
    else if (event.kind === "here") for (const f of this.#listening.values()) f(event);
    else {
      this.dispatchEvent(new CustomEvent("change", { detail: event }));
      this.dispatchEvent(new CustomEvent("list"));
    }
  }

  // What other tabs have open: an id each.
  async others() {
    const found = [], key = newId();
    this.#listening.set(key, (e) => found.push(e.open));
    this.#tell({ kind: "who" });
    await new Promise((f) => setTimeout(f, 120));
    this.#listening.delete(key);
    return found;
  }

  async #read(store, id) {
    if (!this.#db) return id === undefined ? [...this.#memory[store].values()] : this.#memory[store].get(id);
    const from = this.#db.transaction(store).objectStore(store);
    return done(id === undefined ? from.getAll() : from.get(id));
  }

  async heads() {
    const all = new Map((await this.#read("heads")).map((h) => [h.id, h]));
    for (const c of this.#unsaved.values()) all.set(c.id, headOf(c));
    return [...all.values()].sort((a, b) => b.changed - a.changed);
  }

  async load(id) {
    const kept = await this.#read("conversations", id), unsaved = this.#unsaved.get(id);
    return kept && unsaved ? merge(kept, unsaved) : unsaved ?? kept;
  }

  // The conversation as it is now in the store, with what other tabs have added; null: another tab has deleted it.
  async save(c) {
    if (!this.#db) return this.#keep(c);
    try {
      const t = this.#db.transaction(["conversations", "heads", "removed"], "readwrite"), over = finished(t);
      const stores = Object.fromEntries(["conversations", "heads", "removed"].map((n) => [n, t.objectStore(n)]));
      over.catch(() => {});
      const gone = await done(stores.removed.get(c.id)), old = gone ? null : await done(stores.conversations.get(c.id));
      if (gone) return null;
      const merged = old ? merge(old, c) : c;
      stores.conversations.put(merged);
      stores.heads.put(headOf(merged));
      await over;
      this.#unsaved.delete(c.id);
      this.#room();
      this.#tell({ kind: "change", id: c.id });
      return merged;
    } catch (e) {
      this.#unsaved.set(c.id, structuredClone(c));
      this.#fail(e);
      return c;
    }
  }

  #keep(c) {
    if (this.#memory.removed.has(c.id)) return null;
    this.#memory.conversations.set(c.id, structuredClone(c));
    this.#memory.heads.set(c.id, headOf(c));
    return c;
  }

  #fail(e) {
    this.full = e;
    this.dispatchEvent(new CustomEvent("full", { detail: e }));
  }

  // There is room again: what did not fit goes in.
  #room() {
    if (!this.full) return;
    this.full = null;
    this.dispatchEvent(new CustomEvent("room"));
    for (const c of [...this.#unsaved.values()]) this.save(c);
  }

  async remove(id) {
    this.#unsaved.delete(id);
    this.saveText(id, "");
    if (!this.#db) {
      for (const name of ["conversations", "heads", "drafts"]) this.#memory[name].delete(id);
      this.#memory.removed.set(id, { id });
      return;
    }
    const t = this.#db.transaction(["conversations", "heads", "drafts", "removed"], "readwrite"), over = finished(t);
    for (const name of ["conversations", "heads", "drafts"]) t.objectStore(name).delete(id);
    t.objectStore("removed").put({ id, at: Date.now() });
    await over;
    this.#tell({ kind: "change", id, removed: true });
    if (this.full) for (const c of [...this.#unsaved.values()]) this.save(c);
  }

  // After remove(): the same conversation is there again.
  async restore(c) {
    if (this.#db) await done(this.#db.transaction("removed", "readwrite").objectStore("removed").delete(c.id));
    this.#memory.removed.delete(c.id);
    return this.save(c);
  }

  // The draft of a message: its text is written at every key, so that no reload loses a word; its files when they change.
  draftText(id) {
    return localStorage.getItem(DRAFT + id) ?? "";
  }

  async draftFiles(id) {
    return (await this.#read("drafts", id))?.files ?? [];
  }

  saveText(id, text) {
    try {
      if (text) localStorage.setItem(DRAFT + id, text);
      else localStorage.removeItem(DRAFT + id);
    } catch (e) {
      this.#fail(e);
    }
  }

  async saveFiles(id, files) {
    if (!this.#db) return void this.#memory.drafts.set(id, { id, files });
    try {
      const to = this.#db.transaction("drafts", "readwrite").objectStore("drafts");
      await done(files.length ? to.put({ id, files }) : to.delete(id));
    } catch (e) {
      this.#fail(e);
    }
  }

  // The ids of all drafts.
  async drafts() {
    const texts = Object.keys(localStorage).filter((k) => k.startsWith(DRAFT)).map((k) => k.slice(DRAFT.length));
    return [...new Set([...texts, ...(await this.#read("drafts")).map((d) => d.id)])];
  }

  // Every conversation, one after the other: found(c) returns false to end it.
  async each(found) {
    for (const h of await this.heads()) {
      const c = await this.load(h.id);
      if (c && found(c) === false) return;
    }
  }

  async usage() {
    const e = await navigator.storage?.estimate?.();
    return e?.quota ? { used: e.usage, quota: e.quota } : null;
  }

  // Conversations of an earlier version of this page, which kept them in localStorage.
  async #adopt() {
    const text = localStorage.getItem("quern.conversations");
    if (!text || !this.#db) return;
    try {
      const { importOld } = await import("/page/transfer.js");
      for (const c of importOld(JSON.parse(text))) await this.save(c);
      if (!this.full) localStorage.removeItem("quern.conversations");
    } catch { /* it is left as it is */ }
  }
}
