"""A browser for the tests of the pages, and what they do with it."""
import json
import os
import shutil
from contextlib import contextmanager

RED, BLUE = (  # one pixel each
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGO4pKwBAALoAR75J2kYAAAAAElFTkSuQmCC",
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGOQs7kEAAGoAS0OpBBzAAAAAElFTkSuQmCC")
LAN_NAME = "quern.lan"  # a name of this machine that browsers trust no more than any other
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def ready(page):
    page.wait_for_selector("body[data-ready]", state="attached")


# A promise that is kept when the page has written what it shows: transactions end in the order in which they begin.
WRITTEN = """new Promise((written) => {
    const request = indexedDB.open("quern");
    request.onsuccess = () => {
        const t = request.result.transaction(["conversations", "heads", "drafts"], "readwrite");
        t.oncomplete = () => { request.result.close(); written(); };
    };
})"""


def reload(page):
    page.evaluate(WRITTEN)
    page.reload()
    ready(page)


@contextmanager
def opened(browser, url, check=True, **context):
    """A page with a storage of its own; what the browser complains about fails the test."""
    c = browser.new_context(**{"viewport": {"width": 1100, "height": 800}} | context)
    page = watched(c)
    page.goto(url)
    ready(page)
    yield page
    c.close()
    assert not check or page.problems == []


def watched(context):
    page = context.new_page()
    page.set_default_timeout(float(os.environ.get("QUERN_PATIENCE", 120)) * 1000)  # a busy machine is slow, not wrong
    page.problems, page.requests = [], []
    page.on("console", lambda m: m.type in ("error", "warning") and page.problems.append(m.text))
    page.on("pageerror", lambda e: page.problems.append(str(e)))
    page.on("request", lambda r: page.requests.append(r.url))
    return page


def shot(page, name):
    """A picture, where QUERN_SHOTS says where to put it."""
    if folder := os.environ.get("QUERN_SHOTS"):
        page.screenshot(path=f"{folder}/{name}.png")


def ask(page, text):
    page.fill("#text", text)
    page.press("#text", "Enter")


def finished(page):
    """The answer is there, and nothing runs."""
    page.wait_for_selector(".turn.assistant[aria-busy=false] .foot button")
    page.wait_for_selector("#stop", state="hidden")


def limit(page, **values):
    page.click("#settings-open")
    for name, value in values.items():
        page.fill(f"#settings [name={name}]", str(value))
        page.dispatch_event(f"#settings [name={name}]", "change")
    page.click("#settings-close")


def serious(page):
    """What axe-core finds, as far as it is serious: [(rule, where)]"""
    from axe_playwright_python.sync_playwright import Axe
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [(v["id"], n["target"], n.get("failureSummary", "")[:300]) for v in found if v["impact"] in ("serious", "critical") for n in v["nodes"]]


def focused(page):
    """What has the focus, by its id, its label or its class."""
    return page.evaluate("document.activeElement.id || document.activeElement.getAttribute('aria-label') || document.activeElement.className")


def chunk(**delta):
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) + "\n\n"


def event_stream(text, size=7):
    return "".join(chunk(content=text[i:i + size]) for i in range(0, len(text), size)) + "data: [DONE]\n\n"


def fulfil(text, sent=None):
    """Answers the page's request with this text."""
    def reply(route):
        if sent is not None:
            sent.append(json.loads(route.request.post_data))
        route.fulfill(status=200, content_type="text/event-stream", body=event_stream(text))
    return reply


def drop(page, kind, name, mime, data):
    """kind: "paste" or "drop"; data: base64"""
    page.evaluate("""([kind, name, mime, data]) => {
        const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0)), all = new DataTransfer();
        all.items.add(new File([bytes], name, { type: mime }));
        const target = document.querySelector(kind === "paste" ? "#text" : "main");
        target.dispatchEvent(kind === "paste" ? new ClipboardEvent("paste", { clipboardData: all, bubbles: true, cancelable: true })
                                              : new DragEvent("drop", { dataTransfer: all, bubbles: true, cancelable: true }));
    }""", [kind, name, mime, data])
