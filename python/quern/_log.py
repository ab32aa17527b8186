"""The library's messages go to Python's logger "quern"."""
from __future__ import annotations

import logging

from ._library import LOG, lib

logger = logging.getLogger("quern")
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)


def _write(arg: int | None, level: int, line: bytes) -> None:
    try:
        logger.log(_LEVELS[min(max(level, 0), 3)], "%s", line.decode("utf-8", "replace"))
    except Exception:  # a handler that fails must not reach the library
        pass


_callback = LOG(_write)


def set_log_level(level: int) -> None:
    """Which messages the library makes at all: ``logging.ERROR`` to ``logging.DEBUG``. Info at first."""
    lib.quern_log(_callback, None, 3 if level <= logging.DEBUG else 2 if level <= logging.INFO else
                  1 if level <= logging.WARNING else 0)


def detach() -> None:
    """No message reaches Python any more: at its end."""
    lib.quern_log(LOG(0), None, 0)


set_log_level(logging.INFO)
