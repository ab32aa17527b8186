"""Fills in what jinja2 makes of the snippets: test/e2e/make_jinja_snippets.py. The C test compares with what is
stored, the end-to-end test with jinja2 itself."""
import json
from pathlib import Path

from jinja_reference import render

PATH = Path(__file__).resolve().parents[1] / "data" / "jinja" / "snippets.json"

if __name__ == "__main__":
    data = json.loads(PATH.read_text())
    for s in data["snippets"]:
        got = render(s["template"], data["context"])
        for key in ("out", "error", "message"):
            s.pop(key, None)
        if "out" in got:
            s["out"] = got["out"]
        else:
            s["error"] = True
            if got["message"] is not None:
                s["message"] = got["message"]
    text = ",\n".join("  " + json.dumps(s, ensure_ascii=False) for s in data["snippets"])
    context = json.dumps(data["context"], ensure_ascii=False)
    PATH.write_text(f'{{"context": {context},\n "snippets": [\n{text}\n]}}\n')
