"""A model is fetched from the chat page: through the server's manager, from a Hub of the tests."""
import pytest

from browser import ready, watched
from test_hub import env, hub  # noqa: F401  (fixtures)
from test_names import llama, managed, weights  # noqa: F401  (fixtures)

pytestmark = pytest.mark.slow


def test_a_model_is_fetched_and_answers(chromium, managed):  # noqa: F811
    c = chromium.new_context(viewport={"width": 1100, "height": 800})
    c.add_init_script("localStorage.setItem('quern.key', 'boss')")
    page = watched(c)
    page.goto(managed.url)
    ready(page)
    page.click("#model-button")
    page.fill("#pull-name", "llama3.2")
    page.keyboard.press("Enter")
    page.wait_for_selector("#pull-state >> text=llama3.2 is there")
    page.click("[data-model='llama3.2']")
    page.wait_for_selector("#model-name >> text=llama3.2")
    page.click("#model-button")
    page.fill("#pull-name", "no-such-model-at-all")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('#pull-state').textContent.includes('no-such-model-at-all')")
    page.problems.clear()  # the browser itself logs an error's status
    c.close()
