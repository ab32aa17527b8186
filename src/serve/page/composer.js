// Where a message is written: it grows with its text, takes files by button, paste and drop, and keeps a draft of each
// conversation.
import { $, bytes, el, icon, iconButton, toast } from "/page/dom.js";
import { readFiles } from "/page/files.js";

const LONG_PASTE = 8000; // characters; a longer text becomes a file

export function fileChip(f, remove) {
  const picture = f.kind === "image" ? el("img", { src: f.url, alt: f.name, class: "thumbnail" }) : el("span", { class: "file-icon" }, icon("file"));
  const words = el("span", { class: "file-words" }, el("span", { class: "file-name" }, f.name), el("span", { class: "faint" }, f.kind === "image" ? "image" : `${f.kind === "pdf" ? "PDF, " : ""}${bytes(f.text.length)}`));
  return el("div", { class: "chip " + f.kind, title: f.name }, picture, f.kind === "image" ? null : words, remove && iconButton("close", `Remove ${f.name}`, remove, { class: "small" }));
}

export class Composer {
  #files = [];
  #id = null; // of the conversation whose draft this is
  #opened = null; // a promise: all of the draft is there

  // sees(): whether the model takes images; pages(): whether a PDF becomes images
  constructor({ store, send, stop, sees, pages }) {
    Object.assign(this, { store, send, stop, sees, pages });
    this.text = $("text");
    this.text.addEventListener("input", () => {
      this.#grow();
      if (this.#id) this.store.saveText(this.#id, this.text.value);
    });
    this.text.addEventListener("keydown", (e) => {
      if (e.key !== "Enter" || e.shiftKey || e.isComposing || (matchMedia("(pointer: coarse)").matches && !e.ctrlKey)) return;
      e.preventDefault();
      this.submit();
    });
    $("ask").addEventListener("submit", (e) => {
      e.preventDefault();
      this.submit();
    });
    $("stop").addEventListener("click", () => this.stop());
    $("attach").addEventListener("click", () => $("file").click());
    $("file").addEventListener("change", () => {
      this.add([...$("file").files]);
      $("file").value = "";
    });
    this.text.addEventListener("paste", (e) => this.#paste(e));
    this.#takeDrops();
  }

  #paste(e) {
    const files = [...e.clipboardData.files], text = e.clipboardData.getData("text/plain");
    if (!files.length && text.length <= LONG_PASTE) return;
    e.preventDefault();
    this.add(files.length ? files : [new File([text], "pasted.txt", { type: "text/plain" })]);
  }

  #takeDrops() {
    let depth = 0;
    const hasFiles = (e) => e.dataTransfer?.types.includes("Files"), show = (yes) => document.body.classList.toggle("dropping", yes);
    addEventListener("dragenter", (e) => hasFiles(e) && ++depth && show(true));
    addEventListener("dragleave", (e) => hasFiles(e) && --depth <= 0 && show(false));
    addEventListener("dragover", (e) => hasFiles(e) && e.preventDefault());
    addEventListener("drop", (e) => {
      depth = 0;
      show(false);
      if (!hasFiles(e)) return;
      e.preventDefault();
      this.add([...e.dataTransfer.files]);
    });
  }

  async add(files) {
    for (const file of files) {
      try {
        const read = await readFiles(file, { sees: this.sees(), pages: this.pages() });
        this.#files.push(...read);
        if (read[0].kind === "image" && !this.sees()) toast("This model does not see images: it will refuse the message.");
      } catch (e) {
        toast(`${file.name || "This file"} cannot be attached: ${e.message}`);
      }
    }
    await this.#filesChanged();
  }

  async #filesChanged() {
    if (this.#id) await this.store.saveFiles(this.#id, this.#files);
    this.#show();
    this.#grow();
  }

  #show() {
    $("strip").hidden = !this.#files.length;
    $("strip").replaceChildren(...this.#files.map((f) => fileChip(f, () => {
      this.#files = this.#files.filter((o) => o !== f);
      this.#filesChanged();
      this.text.focus();
    })));
  }

  #grow() {
    this.text.classList.add("measure");
    this.text.style.height = "0";
    this.text.style.height = Math.min(this.text.scrollHeight, innerHeight * 0.4) + "px";
    this.text.classList.remove("measure");
    $("send").disabled = !this.text.value.trim() && !this.#files.length;
  }

  // The draft of this conversation. Its files come a moment later: what is written or attached meanwhile stays.
  open(id) {
    this.#id = id;
    this.put(this.store.draftText(id));
    this.#opened = this.store.draftFiles(id).then((files) => {
      if (this.#id !== id || !files.length) return;
      this.#files.unshift(...files);
      return this.#filesChanged();
    }).catch((e) => toast(`The files of the draft cannot be read: ${e.message}`));
  }

  // Adds to what is there.
  async insert({ text, files }) {
    if (text) {
      this.text.value = [this.text.value.trimEnd(), text].filter(Boolean).join("\n\n");
      this.text.dispatchEvent(new Event("input"));
    }
    this.text.focus();
    if (files.length) await this.add(files);
  }

  put(text, files = []) {
    this.text.value = text;
    this.#files = files;
    this.#show();
    this.#grow();
  }

  async submit() {
    await this.#opened;
    const text = this.text.value, files = this.#files;
    if (!text.trim() && !files.length) return;
    if (this.send(text.trim(), files) === false) return;
    this.put("");
    this.store.saveText(this.#id, "");
    this.store.saveFiles(this.#id, []);
  }

  busy(yes) {
    $("send").hidden = yes;
    $("stop").hidden = !yes;
  }
}
