"""doc/tour.md: every file that it links and every function that it names exists."""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOUR = (ROOT / "doc" / "tour.md").read_text()
CODE = "\n".join(p.read_text() for p in (ROOT / "src").rglob("*.[ch]"))


def test_files_exist():
    links = re.findall(r"\]\(([^)#]+)\)", TOUR)
    assert len(links) > 20
    missing = [link for link in links if not (ROOT / "doc" / link).exists()]
    assert not missing


def test_functions_are_defined_in_the_tree():
    names = [n for n in re.findall(r"`([a-z][a-z0-9_]+)`", TOUR) if "_" in n and n != "response_format"]
    assert len(names) > 20
    missing = [n for n in names if not re.search(rf"^[a-z][\w *]*\b{n}\(", CODE, re.M)]
    assert not missing


def test_it_is_short():
    assert len(TOUR.splitlines()) <= 120
