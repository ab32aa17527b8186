"""Each house rule of scripts/check can fail. (make test runs the script itself over the tree.)"""
import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "check"


def load_script():
    loader = importlib.machinery.SourceFileLoader("house", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("house", loader))
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


house = load_script()
LIMITS = house.read_limits((ROOT / "CONTRIBUTING.md").read_text())


def lines(found):
    return [n for n, _ in found]


def test_limits_come_from_the_page():
    assert set(LIMITS) == {"lines of a function", "lines of a file", "columns of a line", "kilobytes of a file"}
    assert house.read_limits("| what | usual | limit |\n| lines of a file | 8 | 1,234, tables excepted |\n") == {
        "lines of a file": 1234}


@pytest.mark.parametrize("path, header, kept", [
    ("src/run/runner.c", "device/cpu/cpu.h", False),
    ("src/run/runner.c", "device/cuda/gpu.h", False),
    ("src/tool/info.c", "device/cuda/layout.h", False),
    ("src/run/runner.c", "device/device.h", True),
    ("src/tool/bench_kernels.c", "device/cpu/kernels.h", True),
    ("src/tool/doctor.c", "device/cuda/variants.h", True),
    ("src/device/split.c", "device/cpu/cpu.h", True),
    ("src/model/llama.c", "run/engine.h", False),
    ("src/run/engine.c", "model/model.h", True),
    ("src/run/engine.c", "engine.h", False),
    ("src/lang/token/tok.h", "lang/chat/chat.h", False),
    ("src/lang/jinja/jinja.c", "lang/grammar/grammar.h", False),
    ("src/lang/chat/chat.c", "lang/token/tokenizer.h", True),
    ("src/lang/jinja/jinja.c", "lang/jinja/jinja.h", True),
])
def test_includes(path, header, kept):
    text = f'/* A comment. */\n#include "{header}"\n#include <string.h>\n'
    assert lines(house.check_includes(path, text)) == ([] if kept else [2])


def test_bytes():
    most = 1000 * LIMITS["kilobytes of a file"]
    assert [path for path, _, _ in house.check_bytes({"a.png": most, "b.whl": most + 1}, LIMITS)] == ["b.whl"]


def test_width():
    most = LIMITS["columns of a line"]
    assert lines(house.check_width("src/a.c", "x" * most + "\n" + "x" * (most + 1) + "\n", LIMITS)) == [2]


def test_sizes():
    most = LIMITS["lines of a function"]
    body = "    x();\n"
    fits, long = ("int f(void)\n{\n" + body * n + "}\n" for n in (most - 1, most))
    assert lines(house.check_sizes("src/a.c", fits + long, LIMITS)) == [most + 4]
    most = LIMITS["lines of a file"]
    assert lines(house.check_sizes("src/a.c", "int x;\n" * (most + 1), LIMITS)) == [most + 1]
    assert not lines(house.check_sizes("src/a.c", "    {1, 2},\n" * (most + 1), LIMITS))


def test_calls():
    code = house.without_comments('/* free(x) */\nfree(x);\nops->free(x);\nputs("gets(x)");\nstrcpy(a, b);\n')
    assert lines(house.check_calls("src/run/a.c", code)) == [2, 5]
    assert lines(house.check_calls("src/base/mem.c", code)) == [5]


def test_machine():
    assert lines(house.check_machine("doc/a.md", "fine\nsee " + "/ro" + "ot/x\n")) == [2]


def test_tags():
    codes = {"src/a.h": "struct one {\n};\nstruct one *get(struct one *x);\n",
             "src/b.cu": "\nenum one {\n    A\n};\n",
             "src/c.c": "struct two {\n};\n#else\nstruct two {\n};\n",
             "src/d.c": "struct three one(void)\n{\n}\nstatic struct four {\n} rows[];\n",
             "src/e.c": "struct three;\nunion four {\n};\n"}
    assert [(path, n) for path, n, _ in house.check_tags(codes)] == [("src/b.cu", 2), ("src/e.c", 2)]


def test_names():
    texts = {"src/run/engine.c": '/* ghost_name */\nint engine_run(void);\nsay("key_of_json");\nstem_##size\n',
             "doc/a.md": "page_word"}
    names, files = house.known_names(texts), house.known_files(texts)
    text = ("/* engine_run (engine.c, run/engine.c) reads key_of_json on sm_90a; stem; *.h */\n"
            "/* as ghost_name does */\n"
            "/* page_word */\n"
            "// see engine.h\n"
            "/* two\n * lines: serve/engine.c */\n"
            'int ghost_name; "engine.h"\n')
    assert sorted(lines(house.check_names("src/a.c", text, names, files))) == [2, 3, 4, 6]
    page = "See `src/run/engine.c`,\n[gone](../src/run/gone.c),\n[a](../doc/a.md), any_word, https://x.org/y.py\n"
    assert lines(house.check_names("doc/b.md", page, names, files)) == [2]
