"""The status page in a real browser."""
from browser import watched


def test_the_status_page_shows_what_runs(chromium, page_server):
    s = page_server
    c = chromium.new_context(viewport={"width": 1200, "height": 900})
    page = watched(c)
    page.goto(s.url + "/status")
    page.wait_for_selector(".pill.good")
    requests = lambda: page.evaluate("""[...document.querySelectorAll('#routes tr')].map(r => [...r.cells].map(c => c.textContent))""")
    assert all(r[0] not in ("/metrics", "/models", "/usage", "/status", "/page/*") for r in requests())
    s.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8})
    s.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8})
    page.wait_for_function("() => [...document.querySelectorAll('#routes tr')].some(r => r.cells[0].textContent == '/chat/completions' && Number(r.cells[1].textContent) >= 2)")
    page.wait_for_function("() => [...document.querySelectorAll('.figure')].some(f => f.textContent.startsWith('First token') && / m?s$/.test(f.children[1].textContent))")
    figures = dict(page.evaluate("[...document.querySelectorAll('.figure')].map(f => [f.children[0].textContent, f.children[1].textContent])"))
    assert figures["First token, median"].endswith(("ms", "s")) and figures["In the queue"] == "0"
    assert page.locator("#plots .plot").count() == 6 and page.locator("#plots polyline").count() >= 6
    model = page.inner_text("#models tr:has-text('tiny')")
    assert "loaded" in model and "cpu" in model and "B" in model
    assert page.locator("#devices tr").count() == 1
    page.reload()
    page.wait_for_selector("#usage:not([hidden]) rect.bar-1", state="attached")
    assert "no key" in page.inner_text("#keys")
    # numbers stand below each other
    edges = page.evaluate("[...document.querySelectorAll('#models td.n, #routes td.n')].map(c => getComputedStyle(c).textAlign)")
    assert set(edges) == {"right"}
    page.set_viewport_size({"width": 360, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.problems == []
    c.close()
