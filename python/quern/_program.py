"""The console script `quern`: the program that comes with the package."""
from __future__ import annotations

import os
import sys
from pathlib import Path


def path() -> Path:
    """Where the program is."""
    return Path(__file__).parent / "bin" / "quern"


def main() -> None:
    program = path()
    if not program.is_file():
        sys.exit("quern: this package was installed without the program; install the wheel")
    os.execv(program, ["quern", *sys.argv[1:]])
