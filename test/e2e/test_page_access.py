"""Who can use the pages, and how: keys, plain HTTP, the keyboard, screen readers, small and large screens, strict policy."""
import json
import subprocess
from pathlib import Path
from urllib.parse import urlparse

import pytest

from browser import LAN_NAME, ask, finished, focused, fulfil, limit, opened, ready, reload, serious, watched
from server import Server

RICH = Path(__file__).with_name("page_sample.md").read_text()
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; worker-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'"


@pytest.fixture(scope="module")
def locked(binary, tiny, tmp_path_factory):
    """A server with keys."""
    folder = tmp_path_factory.mktemp("keys")
    (folder / "keys").write_text("user-key\n")
    (folder / "admin").write_text("admin-key\n")
    s = Server(binary, *tiny, "--api-key-file", folder / "keys", "--admin-key-file", folder / "admin")
    yield s
    s.stop()


def test_no_key_a_wrong_one_and_the_right_one(chromium, locked):
    c = chromium.new_context(viewport={"width": 1100, "height": 800})
    page = watched(c)
    page.goto(locked.url)
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key-dialog [name=key]", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-dialog[open] .problem >> text=does not accept")
    page.fill("#key-dialog [name=key]", "user-key")
    page.click("text=Use this key")
    ready(page)
    page.wait_for_selector("#model-name >> text=tiny")
    page.click("#model-button")
    page.wait_for_selector(".model-row")
    assert page.locator("#models >> text=Unload").count() == 0 and not page.is_visible("#model-pull")  # not for this key
    page.keyboard.press("Escape")
    reload(page)  # the key is kept
    page.wait_for_selector("#model-name >> text=tiny")
    assert not page.is_visible("#key-dialog")
    page.evaluate("localStorage.setItem('quern.key', 'revoked')")  # while the page is open
    ask(page, "hello")
    page.wait_for_selector("#key-dialog[open]")
    page.click("#key-dialog >> text=Cancel")
    finished(page)
    assert "API key" in page.inner_text(".turn.assistant .note")
    c.close()


@pytest.mark.slow
def test_an_admin_loads_and_unloads(chromium, locked):
    c = chromium.new_context(viewport={"width": 1100, "height": 800})
    c.add_init_script("localStorage.setItem('quern.key', 'admin-key')")
    page = watched(c)
    page.goto(locked.url)
    ready(page)
    page.click("#model-button")
    page.click("[aria-label='Unload tiny']")
    page.wait_for_selector("[aria-label='Load tiny']")
    assert page.locator("#model-state.unloaded").count() == 1
    page.click("[aria-label='Load tiny']")
    page.wait_for_selector("[aria-label='Unload tiny']:not([disabled])")
    assert page.problems == []
    c.close()


@pytest.mark.slow
def test_the_models_of_a_folder(chromium, binary, tiny, tmp_path):
    """Names stay with the answers that they gave; the picker searches."""
    for i in range(7):
        (tmp_path / f"model-{i}.gguf").symlink_to(tiny[0])
    s = Server(binary, "--models-dir", tmp_path, *tiny[1:3], "--ctx", "2048")
    with opened(chromium, s.url) as page:
        limit(page, max_tokens=8)
        page.route("**/v1/chat/completions", fulfil("text"))
        ask(page, "first")
        finished(page)
        page.click("#model-button")
        page.fill("#model-search", "del-5")
        page.wait_for_function("() => document.querySelectorAll('.model-row').length == 1")
        assert "135M" in page.inner_text(".model-row") or "Q4_0" in page.inner_text(".model-row")
        page.click(".model-row")
        page.click("[aria-label=Regenerate]")
        page.wait_for_selector(".versions >> text=2/2")
        finished(page)
        assert page.inner_text(".turn.assistant .who") == "model-5"
        page.click("[aria-label='Earlier version']")
        page.wait_for_selector(".versions >> text=1/2")
        assert page.inner_text(".turn.assistant .who") == "model-0"
        page.unroute("**/v1/chat/completions")  # a model that is not in memory is loaded, and the page says so
        page.click("[aria-label=Regenerate]")
        page.wait_for_selector(".versions >> text=3/3")
        finished(page)
    s.kill()


def test_plain_http_on_a_name_of_the_network(chromium, binary, tiny):
    """No secure context: no clipboard API, no randomUUID. Ids, copying, tabs and storage work."""
    s = Server(binary, *tiny, "--allowed-host", LAN_NAME)
    with opened(chromium, f"http://{LAN_NAME}:{s.port}") as page:
        assert page.evaluate("isSecureContext") is False
        page.route("**/v1/chat/completions", fulfil("Some *text*.\n\n```sh\nls -l\n```\n"))
        ask(page, "hello")
        finished(page)
        for button, wanted in (("Copy code", "ls -l"), ("Copy answer", "Some *text*.\n\n```sh\nls -l\n```\n")):
            page.click(f"[aria-label='{button}']")
            page.focus("#text")
            page.keyboard.press("Control+a")
            page.keyboard.press("Control+v")
            assert page.input_value("#text") == wanted
        reload(page)
        page.wait_for_selector(".turn.assistant >> text=Some text.")
    s.kill()


def test_the_keyboard_alone(chromium, page_server):
    with opened(chromium, page_server.url) as page:
        page.route("**/v1/chat/completions", fulfil("An answer."))
        focus = lambda: focused(page)
        assert focus() == "text"
        page.keyboard.type("a question")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("second line")
        page.keyboard.press("Enter")
        finished(page)
        assert page.inner_text(".bubble") == "a question\nsecond line"
        page.keyboard.press("Alt+m")
        page.wait_for_selector(".model-row")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_selector("#models", state="hidden")
        assert focus() == "model-button"
        page.keyboard.press("Alt+s")
        page.wait_for_selector("#settings[open]")
        assert focus() == "tab-generation"
        page.keyboard.press("ArrowDown")
        assert page.get_attribute("#tab-output", "aria-selected") == "true"
        page.keyboard.press("Escape")
        page.wait_for_selector("#settings", state="hidden")
        assert focus() == "model-button"  # where it was
        page.keyboard.press("Alt+k")
        assert focus() == "search"
        page.keyboard.press("ArrowDown")  # into the list
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector(".menu")
        page.keyboard.press("Enter")  # Rename
        page.keyboard.type("By keys")
        page.keyboard.press("Enter")
        page.wait_for_selector("#list >> text=By keys")
        seen = set()
        page.focus("#text")
        for _ in range(60):  # every control of the page is reached, and one leaves it again
            page.keyboard.press("Tab")
            seen.add(focus())
        assert {"Copy answer", "Regenerate", "Edit message", "model-button", "search", "settings-open", "theme", "attach"} <= seen


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(chromium, page_server, scheme):
    pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    with opened(chromium, page_server.url, color_scheme=scheme, reduced_motion="reduce") as page:
        page.route("**/v1/chat/completions", fulfil(RICH))
        assert serious(page) == []
        ask(page, "Show it")
        finished(page)
        page.wait_for_selector(".hljs-keyword")
        assert serious(page) == []
        page.click("#model-button")
        page.wait_for_selector(".model-row")
        assert serious(page) == []
        page.keyboard.press("Escape")
        page.click("#settings-open")
        for tab in ("generation", "output", "presets", "general", "data"):
            page.click(f"#tab-{tab}")
            assert serious(page) == [], tab
        page.click("#settings-close")
        page.goto(page_server.url + "/status")
        page.wait_for_selector("#models td")
        assert serious(page) == []


def test_nothing_is_loaded_from_elsewhere_and_the_policy_is_strict(chromium, page_server):
    with opened(chromium, page_server.url) as page:
        page.route("**/v1/chat/completions", fulfil(RICH + "\n\n![x](https://example.org/x.png)"))
        ask(page, "Show it")
        finished(page)
        page.wait_for_selector(".katex")
        assert {urlparse(u).netloc for u in page.requests if not u.startswith(("data:", "blob:"))} == {urlparse(page_server.url).netloc}
        for path in ("/", "/status"):
            status, headers, body = page_server.request("GET", path, Accept="text/html")
            assert status == 200 and headers["content-security-policy"] == POLICY
            assert b"<script>" not in body and b" style=" not in body and b"onclick" not in body
        blocked = page.evaluate("""() => new Promise((done) => {
            document.addEventListener("securitypolicyviolation", (e) => done(e.effectiveDirective));
            fetch("https://example.org/").catch(() => {});
        })""")
        assert blocked == "connect-src"
        page.problems.clear()


def test_assets_are_packed_and_known_again(page_server):
    status, headers, packed = page_server.request("GET", "/page/app.js", Accept_Encoding="gzip")
    assert status == 200 and headers["content-encoding"] == "gzip" and packed[:2] == b"\x1f\x8b"
    status, plain_headers, plain = page_server.request("GET", "/page/app.js")
    assert "content-encoding" not in plain_headers and b"import" in plain and len(plain) > len(packed)
    status, again, body = page_server.request("GET", "/page/app.js", If_None_Match=headers["etag"])
    assert (status, body) == (304, b"") and again["etag"] == headers["etag"]
    assert page_server.request("GET", "/page/none.js")[0] == 404
    assert b"marked" in page_server.request("GET", "/page/licences.txt")[2]


@pytest.mark.parametrize("size", [(360, 640), pytest.param((820, 1180), marks=pytest.mark.slow), pytest.param((3840, 2160), marks=pytest.mark.slow)])
def test_fits_every_screen(chromium, page_server, size):
    with opened(chromium, page_server.url, viewport=dict(zip(("width", "height"), size))) as page:
        page.route("**/v1/chat/completions", fulfil(RICH + "\n\n" + "x" * 300))
        fits = lambda: page.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert fits() and page.is_visible("#send") and page.is_visible("#examples")
        ask(page, "A long word: " + "y" * 300)
        finished(page)
        assert fits()
        if size[0] <= 820:
            assert not page.is_visible("#side")
            page.click("#menu")
            page.wait_for_selector("#new", state="visible")
            page.click("#new")
            page.wait_for_selector("#side", state="hidden")
            page.click("#menu")
        page.click("#settings-open")
        assert fits() and page.is_visible("#settings-close")
        page.click("#settings-close")


@pytest.mark.slow
def test_dark_and_light(chromium, page_server):
    with opened(chromium, page_server.url, color_scheme="dark") as page:
        ground = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = ground()
        page.click("#theme")
        light = ground()
        assert light != dark
        page.reload()
        assert ground() == light


@pytest.mark.slow
def test_the_progress_of_loading_and_downloading(chromium, page_server):
    """Replies of a server that loads a model, and of one that fetches one: Ollama's /api/pull."""
    model = lambda **status: {"id": "big", "max_model_len": 8192, "meta": {"n_params": 8e9, "size": 5e9, "type": "Q4_K_M", "capabilities": ["chat", "vision"]}, "status": status}
    state = {"now": model(value="loading", progress=0.4)}
    pulled = []

    def pull(route):
        pulled.append(route.request.post_data_json)
        lines = [{"status": "pulling manifest"}, {"status": "pulling", "digest": "x", "total": 100, "completed": 40}, {"status": "success"}]
        state["now"] = model(value="loaded", device="cuda", memory=6e9)
        route.fulfill(status=200, content_type="application/x-ndjson", body="".join(json.dumps(line) + "\n" for line in lines))
    with opened(chromium, page_server.url) as page:
        page.route("**/v1/models", lambda r: r.fulfill(json={"object": "list", "data": [state["now"]]}))
        page.route("**/api/pull", pull)
        reload(page)
        page.click("#model-button")
        assert page.wait_for_selector("#models progress").evaluate("n => n.value") == 0.4
        assert "8.0B · Q4_K_M · 5.0 GB · 8K context" in page.inner_text(".model-row") and "vision" in page.inner_text(".badges")
        page.fill("#pull-name", "qwen3:8b")
        page.keyboard.press("Enter")
        page.wait_for_selector("#pull-state >> text=qwen3:8b is there")
        assert pulled == [{"model": "qwen3:8b", "stream": True}]
        page.wait_for_selector(".model-row >> text=GPU · 6.0 GB in memory")


@pytest.mark.slow
def test_without_the_libraries_of_others(chromium, page_server, tmp_path):
    """What a build without them has in its page (the configuration is made, and its files are served): text and code, nothing else."""
    root = Path(__file__).resolve().parents[2]
    subprocess.run(["cmake", "-S", root, "-B", tmp_path, "-DQUERN_PAGE_LIBRARIES=OFF", "-DQUERN_CUDA=OFF", "-DQUERN_TESTS=OFF"], check=True, capture_output=True)
    names = (tmp_path / "page" / "assets.inc").read_text()
    assert "/page/app.js" in names and "/lib/" not in names
    c = chromium.new_context()
    page = watched(c)
    page.route("**/page/lib/**", lambda r: r.fulfill(status=404))
    page.route("**/page/libraries.js", lambda r: r.fulfill(content_type="text/javascript", body=(tmp_path / "page" / "libraries.js").read_text()))
    page.goto(page_server.url)
    ready(page)
    hostile = "Some *text* <script>window.pwned = 1</script> <img src=x onerror=window.pwned=2> [x](javascript:window.pwned=3) $x^2$"
    page.route("**/v1/chat/completions", fulfil(hostile + "\n\n```python\nx = 1\n```\nmore"))
    ask(page, "hello")
    finished(page)
    assert page.inner_text(".markdown .plain >> nth=0") == hostile
    assert page.inner_text(".code pre") == "x = 1" and page.evaluate("window.pwned") is None
    assert page.locator(".turn :is(script, img, a, .katex)").count() == 0
    page.set_input_files("#file", {"name": "a.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.4"})
    page.wait_for_selector("#toast >> text=built without a reader of PDF")
    assert not any("/lib/" in u for u in page.requests) and page.problems == []
    c.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_key_dialog_for_everybody(chromium, locked, scheme):
    """By the keyboard alone, and for screen readers."""
    pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    c = chromium.new_context(color_scheme=scheme, reduced_motion="reduce")
    page = watched(c)
    page.goto(locked.url)
    page.wait_for_selector("#key-dialog[open]")
    assert serious(page) == []
    assert page.evaluate("document.activeElement.name") == "key"
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-dialog[open] .problem >> text=does not accept")
    assert serious(page) == []
    page.keyboard.type("user-key")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")  # it is not kept
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.value") == "use"
    page.keyboard.press("Enter")
    ready(page)
    page.wait_for_selector("#model-name >> text=tiny")
    page.wait_for_function("() => document.activeElement.id == 'text'")
    assert page.evaluate("[sessionStorage.getItem('quern.key'), localStorage.getItem('quern.key')]") == ["user-key", None]
    c.close()
