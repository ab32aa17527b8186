// The list of conversations at the side: grouped by day, searched by title and text, renamed, pinned, exported, deleted.
import { $, arrows, el, icon, iconButton } from "/page/dom.js";
import { messageText } from "/page/conversation.js";

const DAY = 86400000, STEP = 60; // rows that are made at once

function group(h, now) {
  if (h.pinned) return "Pinned";
  const midnight = new Date(now).setHours(0, 0, 0, 0), age = midnight - h.changed;
  if (age <= 0) return "Today";
  if (age <= DAY) return "Yesterday";
  if (age <= 7 * DAY) return "Previous 7 days";
  if (age <= 30 * DAY) return "Previous 30 days";
  return new Date(h.changed).toLocaleDateString("en", { month: "long", year: "numeric" });
}

export class History {
  #heads = [];
  #found = null; // ids that match the search; null = no search
  #shown = STEP;
  #search = 0;
  #late = false; // the list has changed while something was open in it

  // open(id), rename(id, title), pin(id, yes), remove(id), exportOne(id, kind), copyOne(id), current()
  constructor(store, actions) {
    Object.assign(this, { store, actions });
    $("search").addEventListener("input", () => this.search($("search").value));
    $("search").addEventListener("keydown", (e) => e.key === "Escape" && $("search").value && (e.stopPropagation(), ($("search").value = ""), this.search("")));
    $("list").addEventListener("scroll", () => {
      const l = $("list");
      if (l.scrollHeight - l.scrollTop - l.clientHeight < 300 && this.#shown < this.#heads.length) {
        this.#shown += STEP;
        this.#paint();
      }
    });
    arrows($("side"), ".open");
    document.addEventListener("pointerdown", (e) => !e.target.closest(".menu, .menu-button") && this.#closeMenu());
  }

  async refresh() {
    this.#heads = await this.store.heads();
    this.#paint();
  }

  // Titles at once, texts as they are read.
  async search(text) {
    const wanted = text.trim().toLowerCase(), mine = ++this.#search;
    this.#shown = STEP;
    if (!wanted) {
      this.#found = null;
      return this.#paint();
    }
    const found = (this.#found = new Map(this.#heads.filter((h) => h.title.toLowerCase().includes(wanted)).map((h) => [h.id, ""])));
    this.#paint();
    await this.store.each((c) => {
      if (mine !== this.#search) return false;
      for (const m of found.has(c.id) ? [] : Object.values(c.messages)) {
        const body = messageText(m), at = body.toLowerCase().indexOf(wanted);
        if (at < 0) continue;
        found.set(c.id, body.slice(Math.max(0, at - 20), at + 60).replace(/\s+/g, " "));
        break;
      }
    });
    if (mine === this.#search) this.#paint();
  }

  #paint() {
    if ($("list").querySelector(".rename, .menu")) return void (this.#late = true); // not under the user's hands
    this.#late = false;
    const now = Date.now(), out = [], heads = this.#heads.filter((h) => !this.#found || this.#found.has(h.id));
    const order = [...heads.filter((h) => h.pinned), ...heads.filter((h) => !h.pinned)];
    let name = null, list = null;
    const focused = document.activeElement?.closest?.("#list li")?.dataset.id;
    for (const h of order.slice(0, this.#shown)) {
      const g = group(h, now);
      if (g !== name) {
        list = el("ul", { "aria-label": g });
        out.push(el("h2", {}, g), list);
        name = g;
      }
      list.append(this.#row(h));
    }
    if (!order.length) out.push(el("p", { class: "faint pad" }, this.#found ? "Nothing found" : "Your conversations will be here."));
    $("list").replaceChildren(...out);
    if (focused) $("list").querySelector(`li[data-id="${focused}"] .open`)?.focus();
  }

  #row(h) {
    const open = el("button", { type: "button", class: "open", onclick: () => this.actions.open(h.id), "aria-current": h.id === this.actions.current() ? "page" : null },
      el("span", { class: "title" }, h.title || "New chat"), this.#found?.get(h.id) ? el("span", { class: "faint excerpt" }, this.#found.get(h.id)) : null);
    const more = iconButton("more", `Options of ${h.title || "this chat"}`, () => this.#menu(h, li), { class: "menu-button small", "aria-haspopup": "menu" });
    const li = el("li", { "data-id": h.id }, open, more);
    return li;
  }

  #closeMenu() {
    document.querySelector("#list .menu")?.remove();
    if (this.#late) this.#paint();
  }

  #menu(h, li) {
    const was = li.querySelector(".menu");
    this.#closeMenu();
    if (was) return;
    const a = this.actions, item = (name, text, run, kind = "") => el("button", { type: "button", role: "menuitem", class: kind, onclick: () => { this.#closeMenu(); run(); } }, icon(name), text);
    const menu = el("div", { class: "menu", role: "menu", "aria-label": "Options" }, item("edit", "Rename", () => this.#rename(h, li)), item("pin", h.pinned ? "Unpin" : "Pin", () => a.pin(h.id, !h.pinned)),
      item("copy", "Copy as Markdown", () => a.copyOne(h.id)), item("save", "Export as JSON", () => a.exportOne(h.id, "json")), item("save", "Export as Markdown", () => a.exportOne(h.id, "md")), item("trash", "Delete", () => a.remove(h.id), "danger"));
    arrows(menu, "[role=menuitem]");
    menu.addEventListener("keydown", (e) => {
      if (e.key !== "Escape" && e.key !== "Tab") return;
      e.stopPropagation();
      this.#closeMenu();
      li.querySelector(".menu-button").focus();
    });
    li.append(menu);
    const below = $("list").getBoundingClientRect().bottom - menu.getBoundingClientRect().bottom;
    menu.classList.toggle("above", below < 0 && li.offsetTop > menu.offsetHeight);
    menu.firstChild.focus();
  }

  #rename(h, li) {
    const box = el("input", { class: "rename", maxlength: 200, "aria-label": "Title" });
    let over = false;
    const end = (keep) => {
      if (over) return;
      over = true;
      const title = box.value.trim();
      box.remove();
      if (keep && title && title !== h.title) this.actions.rename(h.id, title);
      else this.#paint();
    };
    box.value = h.title;
    box.addEventListener("keydown", (e) => {
      if (e.key === "Enter") end(true);
      if (e.key === "Escape") e.stopPropagation(), end(false);
    });
    box.addEventListener("blur", () => end(true));
    li.replaceChildren(box);
    box.select();
  }
}
