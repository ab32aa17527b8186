"""Nothing that was written in the chat page is lost: tabs, reloads, restarts, many conversations, a full storage."""
import json
import socket
import threading

import pytest

from browser import ask, finished, fulfil, opened, ready, reload, watched
from server import Server, events, until

FILL = """([count, size]) => new Promise((done, failed) => {
    const open = indexedDB.open("quern");
    open.onsuccess = () => {
        const t = open.result.transaction(["conversations", "heads"], "readwrite"), now = Date.now();
        for (let i = 0; i < count; i++) {
            const id = String(i).padStart(32, "0"), changed = now - i * 7200000, title = `Chat number ${i}`;
            const messages = { q: { id: "q", parent: null, role: "user", text: `question ${i}` + "x".repeat(size), files: [], created: changed, rev: 1 },
                               a: { id: "a", parent: "q", role: "assistant", model: "m", state: "done", steps: [{ text: `answer ${i}`, reasoning: "", calls: [] }], created: changed, rev: 1 } };
            t.objectStore("conversations").put({ id, title, model: "m", system: "", pinned: false, leaf: "a", stamps: {}, created: changed, changed, messages });
            t.objectStore("heads").put({ id, title, changed, pinned: false, model: "m" });
        }
        t.oncomplete = () => { open.result.close(); done(); };
        t.onabort = () => { open.result.close(); failed(t.error); };
    };
})"""


def endless(route):
    """Asks for a text that only a stop can end."""
    route.continue_(post_data=json.dumps(json.loads(route.request.post_data) | {"ignore_eos": True, "max_tokens": 1500}))


def text(page):
    return page.evaluate("[...document.querySelectorAll('.turn.assistant .markdown')].map(n => n.textContent).join('')")


def test_two_tabs_keep_what_both_write(chromium, page_server):
    with opened(chromium, page_server.url) as one:
        one.route("**/v1/chat/completions", fulfil("from the first tab"))
        ask(one, "shared question")
        finished(one)
        two = watched(one.context)
        two.route("**/v1/chat/completions", fulfil("from the second tab"))
        two.goto(one.url)
        ready(two)
        two.wait_for_selector("text=from the first tab")
        # both answer the same question at once: two versions more
        one.click("[aria-label=Regenerate]")
        two.click("[aria-label=Regenerate]")
        finished(one)
        finished(two)
        for page in (one, two):
            page.wait_for_selector(".turn.assistant .versions >> text=/3$/")
        # a title of one tab, a message of the other
        one.hover("#list li")
        one.click("#list li .menu-button")
        one.click(".menu >> text=Rename")
        one.fill(".rename", "A better title")
        ask(two, "a second question")
        one.press(".rename", "Enter")
        finished(two)
        two.wait_for_selector("#list >> text=A better title")
        one.wait_for_selector("text=a second question")
        # a new conversation of one is in the list of the other; deleted in one, it is gone in the other
        two.keyboard.press("Alt+n")
        ask(two, "only in two")
        finished(two)
        one.wait_for_selector("#list >> text=only in two")
        one.hover("#list li:has-text('only in two')")
        one.click("#list li:has-text('only in two') .menu-button")
        one.click(".menu >> text=Delete")
        two.wait_for_selector("#toast >> text=deleted in another tab")
        reload(one)
        one.wait_for_function("() => document.querySelectorAll('#list li').length == 1")
        assert one.problems == [] and two.problems == []


def test_what_is_newer_wins_and_no_message_goes(tab):
    """A tab that reads an old record does not undo a new title; messages of both stay."""
    title, ids, leaf = tab.evaluate("""async () => {
        const { newConversation, addMessage, setField, absorb, merge } = await import("/page/conversation.js");
        const one = newConversation(), q = addMessage(one, { role: "user", text: "q" }), two = structuredClone(one);
        addMessage(two, { id: "b", role: "user", text: "b", parent: q.id });
        two.stamps.leaf = Date.now() + 5;
        one.title = "new", one.stamps.title = Date.now() + 1;
        addMessage(one, { id: "a", role: "user", text: "a", parent: q.id });
        const both = merge(two, one);
        absorb(one, two, "a");  // this tab is making a: its leaf stays
        return [both.title + one.title, Object.keys(both.messages).length + Object.keys(one.messages).length, both.leaf + one.leaf];
    }""")
    assert (title, ids, leaf) == ("newnew", 6, "ba")


def kept(page):
    """The answers in the storage: messages as they are written there."""
    return page.evaluate("""() => new Promise((done) => {
        const open = indexedDB.open("quern");
        open.onsuccess = () => {
            const all = open.result.transaction("conversations").objectStore("conversations").getAll();
            all.onsuccess = () => {
                open.result.close();
                done(all.result.flatMap((c) => Object.values(c.messages)).filter((m) => m.role == "assistant"));
            };
        };
    })""")


def stream_id(page):
    """Waits until an answer that comes is written into the storage; the id of its stream."""
    found = []
    until(lambda: found.extend(m["stream"]["id"] for m in kept(page) if m.get("stream") and len(m["steps"][0]["text"]) > 40) or found, 120)
    return found[0]


def written(server, stream):
    """What the server has sent in a stream."""
    status, _, body = server.request("GET", f"/v1/streams/{stream}")
    assert status == 200
    return "".join(e["choices"][0]["delta"].get("content") or "" for e in events(body) if e["choices"])


def whole(page):
    """The one answer, once it is written as complete."""
    until(lambda: [m["state"] for m in kept(page)] == ["done"], 120)
    return kept(page)[0]["steps"][0]["text"]


def posts(page):
    return [u for u in page.requests if u.endswith("/v1/chat/completions")]


def test_a_reload_in_the_middle_of_a_stream(chromium, page_server):
    """The page reads the same answer again, and to its end: no second request, no word lost or doubled."""
    with opened(chromium, page_server.url, check=False) as page:
        page.route("**/v1/chat/completions", endless)
        ask(page, "Go on and on")
        stream = stream_id(page)
        reload(page)
        finished(page)
        assert page.locator(".turn").count() == 2 and "interrupted" not in page.inner_text(".turn.assistant")
        assert len(posts(page)) == 1 and any(u.endswith(stream) for u in page.requests)
        page.wait_for_selector(".turn.assistant .meta >> text=1500 tokens")
        assert whole(page) == written(page_server, stream)


@pytest.mark.slow
def test_an_answer_whose_stream_is_gone_can_be_continued(chromium, page_server):
    with opened(chromium, page_server.url, check=False) as page:
        page.route("**/v1/chat/completions", endless)
        page.route("**/v1/streams/*", lambda r: r.fulfill(status=404, json={"error": {"message": "there is no such stream"}}))
        ask(page, "Go on and on")
        stream_id(page)
        reload(page)
        page.wait_for_selector("text=This answer was interrupted")
        page.unroute("**/v1/streams/*")
        before = text(page)
        assert len(before) > 20
        page.click("[aria-label=Continue]")
        page.wait_for_function(f"() => document.querySelector('.turn.assistant .markdown')?.textContent.length > {len(before) + 40}")
        page.keyboard.press("Escape")
        finished(page)
        assert page.locator(".turn").count() == 2 and text(page).startswith(before[:20])


@pytest.mark.slow
def test_a_closed_tab_leaves_its_answer_to_the_next(chromium, page_server):
    with opened(chromium, page_server.url, check=False) as page:
        page.route("**/v1/chat/completions", endless)
        ask(page, "Go on and on")
        stream, address = stream_id(page), page.url
        other = watched(page.context)
        page.close()
        other.goto(address)
        other.wait_for_selector(".turn.assistant .meta >> text=1500 tokens")
        assert posts(other) == [] and whole(other) == written(page_server, stream)


class Wire:
    """A network between browser and server that can be cut: every connection is closed, and new ones are refused."""

    def __init__(self, port):
        self.to, self.cut, self.ends = port, False, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            if self.cut:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self.to))
            self.ends += [near, far]
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(a, b), daemon=True).start()

    def pump(self, a, b):
        try:
            while data := a.recv(65536):
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def break_off(self):
        self.cut = True
        for s in self.ends:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


@pytest.mark.slow
def test_a_network_that_goes_and_comes_back(chromium, page_server):
    """The server still has the answer: the page reads it on."""
    wire = Wire(page_server.port)
    with opened(chromium, wire.url, check=False) as page:
        page.route("**/v1/chat/completions", endless)
        ask(page, "Go on and on")
        stream = stream_id(page)
        wire.break_off()
        page.wait_for_selector("#banner-offline:not([hidden]) >> text=The server does not answer")
        wire.cut = False
        page.wait_for_selector("#banner-offline", state="hidden")  # by itself
        finished(page)
        assert len(posts(page)) == 1 and whole(page) == written(page_server, stream)
    wire.listener.close()


def test_a_restart_of_the_server_in_the_middle_of_a_stream(chromium, binary, tiny):
    server = Server(binary, *tiny)
    with opened(chromium, server.url, check=False) as page:
        page.route("**/v1/chat/completions", endless)
        ask(page, "Go on and on")
        page.wait_for_function("() => document.querySelector('.turn.assistant .markdown')?.textContent.length > 60")
        server.kill()
        page.wait_for_selector("#banner-offline:not([hidden]) >> text=The server does not answer")
        before = text(page)
        assert page.locator("text=network error").count() == 0 and len(before) > 40
        again = Server(binary, *tiny, port=server.port)
        try:
            page.click("#banner-offline button")
            page.wait_for_selector("#banner-offline", state="hidden")
            page.wait_for_function(f"() => document.querySelector('.turn.assistant .markdown')?.textContent.length > {len(before) + 40}")
            assert text(page).startswith(before[:20])
            page.keyboard.press("Escape")
            finished(page)
        finally:
            again.kill()


@pytest.mark.slow
def test_five_hundred_conversations(chromium, page_server):
    with opened(chromium, page_server.url) as page:
        page.evaluate(FILL, [500, 2000])
        reload(page)
        page.wait_for_selector("#list li")
        assert page.locator("#list li").count() < 150  # the rest when it is scrolled to
        page.evaluate("() => { const l = document.querySelector('#list'); const t = setInterval(() => l.scrollTop = l.scrollHeight, 30); setTimeout(() => clearInterval(t), 20000); }")
        page.wait_for_function("() => document.querySelectorAll('#list li').length == 500")
        page.fill("#search", "answer 321")
        page.wait_for_function("() => document.querySelectorAll('#list li').length == 1")
        assert page.inner_text("#list .title") == "Chat number 321"
        page.click("#list .open")
        page.wait_for_selector("text=answer 321")
        groups = page.evaluate("(document.querySelector('#search').value = '', document.querySelector('#search').dispatchEvent(new Event('input')), 1)")
        page.wait_for_function("() => document.querySelectorAll('#list h2').length > 2")
        assert groups == 1 and page.locator("#list h2").all_inner_texts()[:2] == ["Today", "Yesterday"]


def test_a_full_storage_says_so_and_loses_nothing(chromium, page_server):
    with opened(chromium, page_server.url, check=False) as page:
        cdp = page.context.new_cdp_session(page)
        cdp.send("Storage.overrideQuotaForOrigin", {"origin": page_server.url, "quotaSize": 250_000})
        page.route("**/v1/chat/completions", fulfil("a short answer"))
        ask(page, "kept before")
        finished(page)
        page.keyboard.press("Alt+n")
        ask(page, "does not fit " + "z" * 300_000)
        page.wait_for_selector("#banner-full:not([hidden]) >> text=storage for the page is full")
        finished(page)
        assert page.locator("#list li").count() == 2  # both are listed, none was deleted
        with page.expect_download() as d:
            page.click("#banner-full >> text=Export all")
        all_of_it = json.loads(open(d.value.path()).read())
        assert sorted(c["title"][:11] for c in all_of_it["conversations"]) == ["does not fi", "kept before"]
        cdp.send("Storage.overrideQuotaForOrigin", {"origin": page_server.url})
        ask(page, "there is room again")
        page.wait_for_selector("#banner-full", state="hidden")
        finished(page)
        reload(page)
        page.wait_for_function("() => document.querySelectorAll('#list li').length == 2")
        assert page.locator(".turn").count() == 4


@pytest.mark.slow
def test_conversations_of_the_earlier_page_are_taken_over(chromium, page_server):
    with opened(chromium, page_server.url) as page:
        page.evaluate("""() => localStorage.setItem("quern.conversations", JSON.stringify([{ id: "1", title: "Old one", model: "m",
            system: "Be kind.", turns: [{ role: "user", content: "hello" }, { role: "assistant", content: "hi", reasoning: "greet" }] }]))""")
        reload(page)
        page.click("#list >> text=Old one")
        page.wait_for_selector(".turn.assistant >> text=hi")
        assert page.evaluate("localStorage.getItem('quern.conversations')") is None


@pytest.mark.slow
def test_no_storage_at_all(chromium, page_server):
    """A browser that gives the page no IndexedDB: it works, and says that nothing is kept."""
    c = chromium.new_context()
    c.add_init_script("Object.defineProperty(window, 'indexedDB', { value: { open() { throw new DOMException('no', 'SecurityError'); } } })")
    page = watched(c)
    page.goto(page_server.url)
    ready(page)
    assert "keeps nothing" in page.inner_text("#banner-full")
    page.route("**/v1/chat/completions", fulfil("still here"))
    ask(page, "hello")
    finished(page)
    assert page.locator("#list li").count() == 1
    c.close()
