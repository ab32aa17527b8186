"""Tools of MCP servers in the chat page: the mcp package is the server."""
import json
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from browser import ask, chunk, finished, focused, opened, reload, serious
from server import Server, until

pytest.importorskip("mcp", reason="the package mcp is not installed")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module", params=["events", pytest.param("json", marks=pytest.mark.slow)])
def tools(request, binary, tiny):
    """-> (server with --mcp, address of the MCP server)"""
    port, own = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    mcp = subprocess.Popen([sys.executable, Path(__file__).with_name("mcp_server.py"), str(port), f"http://127.0.0.1:{own}"] + ["--json"] * (request.param == "json"))
    s = Server(binary, *tiny, "--mcp", f"calc={url}/mcp", "--mcp", "gone=http://127.0.0.1:9/mcp", port=own)

    def there():
        try:
            return calls(url) == ""
        except OSError:
            return False
    until(there)
    yield s, url
    mcp.kill()
    s.kill()


def calls(url):
    return urllib.request.urlopen(url + "/count").read().decode()


def plays(sent, *replies):
    """A model that gives these replies, one a request."""
    left = list(replies)

    def reply(route):
        sent.append(json.loads(route.request.post_data))
        route.fulfill(status=200, content_type="text/event-stream", body=left.pop(0) + "data: [DONE]\n\n")
    return reply


def call(name, **arguments):
    text = json.dumps(arguments)
    return (chunk(tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": text[:5]}}])
            + chunk(tool_calls=[{"index": 0, "function": {"arguments": text[5:]}}]))


def test_tools_are_off_until_they_are_allowed(chromium, tools):
    server, url = tools
    with opened(chromium, server.url, check=False) as page:
        sent = []
        page.route("**/v1/chat/completions", plays(sent, chunk(content="no tools"), call("calc_add", a=2, b=3), chunk(content="It is 5."), call("calc_erase", path="/x"), chunk(content="Not done."),
                                                   call("calc_add", a=1, b=1), chunk(content="It is 2.")))
        ask(page, "What is 2 + 3?")
        finished(page)
        assert "tools" not in sent[0] and calls(url) == ""  # nothing without consent
        page.click("#tools-open")
        page.wait_for_selector(".tool-list li")
        assert "Adds two numbers." in page.inner_text("#tools-body") and "Not connected" in page.inner_text("#tools-body")
        page.select_option("[aria-label^=add]", "ask")
        page.select_option("[aria-label^=erase]", "ask")
        page.click("#tools-close")
        page.keyboard.press("Alt+n")
        ask(page, "What is 2 + 3?")
        page.wait_for_selector(".call.confirm >> text=Allow once")
        assert calls(url) == "" and [t["function"]["name"] for t in sent[1]["tools"]] == ["calc_add", "calc_erase"]
        assert '"a": 2' in page.inner_text(".call pre")
        page.click("text=Allow once")
        finished(page)
        assert calls(url) == "add" and page.inner_text(".turn.assistant .markdown >> nth=-1") == "It is 5."
        assert sent[2]["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": "5"}
        assert sent[2]["messages"][-2]["tool_calls"][0]["function"] == {"name": "calc_add", "arguments": '{"a": 2, "b": 3}'}
        ask(page, "Delete /x")  # refused
        page.wait_for_selector(".call.confirm >> text=Refuse")
        page.click("text=Refuse")
        finished(page)
        assert calls(url) == "add" and "did not allow" in sent[4]["messages"][-1]["content"]
        ask(page, "1 + 1?")  # always, from now on
        page.wait_for_selector(".call.confirm")
        page.click("text=Always allow")
        finished(page)
        assert calls(url) == "add,add"
        page.unroute("**/v1/chat/completions")
        page.route("**/v1/chat/completions", plays(sent, call("calc_add", a=4, b=4), chunk(content="8"), call("calc_erase", path="/y"), chunk(content="failed")))
        ask(page, "4 + 4?")
        finished(page)
        assert calls(url) == "add,add,add" and sent[-1]["messages"][-1]["content"] == "8"
        reload(page)  # calls stay with the conversation
        page.wait_for_function("() => document.querySelectorAll('.call').length == 4")
        page.click(".call summary >> nth=0")
        assert "5" in page.inner_text(".call >> nth=0")


def test_an_error_of_a_tool_goes_to_the_model(chromium, tools):
    server, url = tools
    with opened(chromium, server.url, check=False) as page:
        sent = []
        page.route("**/v1/chat/completions", plays(sent, call("calc_erase", path="/y"), call("unknown_tool"), chunk(content="I could not.")))
        page.click("#tools-open")
        page.select_option("[aria-label^=erase]", "always")
        page.click("#tools-close")
        ask(page, "Delete /y")
        finished(page)
        assert "no file /y" in sent[1]["messages"][-1]["content"] and page.locator(".call.failed").count() == 2
        assert sent[2]["messages"][-1]["content"] == "There is no such tool."


def test_prompts_and_resources_are_read_at_a_click(chromium, tools):
    server, url = tools
    before = calls(url)
    new = lambda: calls(url)[len(before):].strip(",")
    with opened(chromium, server.url, check=False) as page:
        sent = []
        page.route("**/v1/chat/completions", plays(sent, chunk(content="Read.")))
        page.fill("#text", "Mine first.")
        page.click("#tools-open")
        page.wait_for_selector("[aria-label='Prompts of calc'] li")
        assert new() == "" and "Asks for a review." in page.inner_text("#tools-body")  # nothing is read by itself
        page.click("[aria-label='Insert the prompt review']")  # what it requires is missing: the browser says so
        assert page.is_visible("#tools-dialog") and page.evaluate("document.activeElement.name") == "code"
        page.keyboard.type("x = 1")
        page.keyboard.press("Enter")
        page.wait_for_selector("#tools-dialog", state="hidden")
        assert page.input_value("#text") == "Mine first.\n\nReview this in a kind tone:\nx = 1"
        assert new() == "review" and page.evaluate("document.activeElement.id") == "text"
        page.fill("#text", "")
        page.click("#tools-open")
        page.click("[aria-label='Insert the prompt A dialogue']")
        page.wait_for_selector("#tools-dialog", state="hidden")
        assert page.input_value("#text") == "User: What is 1 + 1?\n\nAssistant: 2"
        for i, name in enumerate(("Notes of today", "red")):
            page.click("#tools-open")
            page.click(f"[aria-label='Attach {name}']")
            page.wait_for_selector("#tools-dialog", state="hidden")
            page.wait_for_function(f"() => document.querySelectorAll('#strip .chip').length == {i + 1}")
        page.click("#tools-open")
        page.fill("[aria-label='Resources by name of calc'] [name=day]", "monday")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelectorAll('#strip .chip').length == 3")
        assert new() == "review,dialogue,notes,red,notes_of"
        page.press("#text", "Enter")
        finished(page)
        image, words = sent[0]["messages"][0]["content"]
        assert image["image_url"]["url"].startswith("data:image/png;base64,") and "# Notes\n- buy flour" in words["text"] and "Notes of monday." in words["text"] and "tools" not in sent[0]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_dialog_for_everybody(chromium, tools, scheme):
    """By the keyboard alone, with the focus inside while it is open and back where it was; and for screen readers."""
    pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    server, url = tools
    with opened(chromium, server.url, check=False, color_scheme=scheme, reduced_motion="reduce") as page:
        press, choosers = page.keyboard.press, []
        page.on("filechooser", lambda c: choosers.append(c))  # early: the browser learns late that it is wanted

        def walk(box, most=60):
            """Tab until the focus is where it began; it never leaves the dialog for the page."""
            first, seen = focused(page), set()
            for _ in range(most):
                press("Tab")
                assert page.evaluate(f"document.activeElement === document.body || Boolean(document.activeElement.closest('{box}'))")
                seen.add(focused(page))
                if focused(page) == first:
                    break
            return seen

        for tab in ("generation", "output", "presets", "general", "data"):
            page.focus("#settings-open")
            press("Enter")
            page.wait_for_selector("#settings[open]")
            while focused(page) != f"tab-{tab}":
                press("ArrowDown")
            assert serious(page) == [], tab
            assert {"settings-close", "settings-panel"} <= walk("#settings")
            if tab == "data":
                page.focus("#settings-panel")
                for _ in range(20):
                    if page.evaluate("document.activeElement.textContent") == "Import…":
                        break
                    press("Tab")
                press("Enter")
                until(lambda: page.evaluate("1") and choosers)
            press("Escape")
            page.wait_for_selector("#settings", state="hidden")
            assert focused(page) == "settings-open"
        page.focus("#tools-open")
        press("Enter")
        page.wait_for_selector("[aria-label='Resources of calc'] li")
        assert serious(page) == []
        assert {"add: when it may be called", "Insert the prompt review", "Attach Notes of today", "tools-close"} <= walk("#tools-dialog")
        page.focus("[aria-label^=add]")
        press("ArrowDown")  # ask each time
        assert page.input_value("[aria-label^=add]") == "ask"
        press("Escape")
        page.wait_for_selector("#tools-dialog", state="hidden")
        assert focused(page) == "tools-open"
        press("Alt+m")
        page.wait_for_selector(".model-row")
        assert serious(page) == []
        press("Escape")
        assert focused(page) == "model-button"
        page.route("**/v1/chat/completions", plays([], call("calc_add", a=2, b=3), chunk(content="It is 5.")))
        page.focus("#text")
        page.keyboard.type("2 + 3?")
        press("Enter")
        page.wait_for_selector(".call.confirm")
        assert serious(page) == []
        page.focus(".call pre")
        press("Tab")
        press("Enter")  # Allow once
        finished(page)
        assert "It is 5." in page.inner_text(".turn.assistant")
        press("Alt+k")
        press("ArrowDown")
        press("Tab")
        press("Enter")
        page.wait_for_selector(".menu")
        assert serious(page) == []
        press("Escape")
        assert focused(page).startswith("Options of")


def test_the_policy_names_only_these_origins(chromium, tools, page_server):
    server, url = tools
    policy = server.request("GET", "/", Accept="text/html")[1]["content-security-policy"]
    assert policy.endswith(f"connect-src 'self' {url} http://127.0.0.1:9")
    assert page_server.request("GET", "/", Accept="text/html")[1]["content-security-policy"].endswith("connect-src 'self'")
    with opened(chromium, page_server.url) as page:
        assert not page.is_visible("#tools-open")
        assert page_server.ask("/session")["mcp"] == []


def test_a_wrong_option_is_said(quern, tiny):
    for bad in ("files", "a b=http://x", "a=http://x;script-src *", "a=ftp://x"):
        r = quern("serve", tiny[0], "--mcp", bad)
        assert r.code == 64 and "--mcp takes NAME=URL" in r.err
    r = quern("serve", tiny[0], "--mcp", "a=http://x", "--mcp", "a=http://y")
    assert r.code == 64 and "two MCP servers are called a" in r.err
