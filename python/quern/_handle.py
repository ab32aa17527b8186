"""The open model of the library, and who uses it: it is closed when nobody does."""
from __future__ import annotations

import ctypes as c
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Optional

from ._library import lib
from .errors import ClosedError

if TYPE_CHECKING:
    from ._dispatch import Dispatcher


_open: weakref.WeakSet[Handle] = weakref.WeakSet()


class Handle:
    """Calls into a model count as its users. ``close`` ends what runs, waits for the users, and closes it."""

    def __init__(self, address: int) -> None:
        self.address: Optional[int] = address
        self.dispatcher: Optional[Dispatcher] = None
        self.streams: weakref.WeakSet[Any] = weakref.WeakSet()  # those that are read by their callers
        self.lock = threading.Lock()  # guards what its model makes later
        self._users = 0
        self._closing = False
        self._forked = False
        self._changed = threading.Condition()
        _open.add(self)

    def check(self) -> None:
        """Raises ClosedError where it cannot be used."""
        if self._forked:
            raise ClosedError("the model was opened before this process was forked: open it in this process")
        if self._closing or self.address is None:
            raise ClosedError("the model is closed")

    @contextmanager
    def use(self) -> Iterator[int]:
        """The model, which stays open inside the block."""
        with self._changed:
            self.check()
            self._users += 1
        try:
            assert self.address is not None
            yield self.address
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closing

    def close(self) -> None:
        with self._changed:
            if self._closing:
                while self.address is not None:
                    self._changed.wait()
                return
            self._closing = True
        for stream in list(self.streams):
            stream.close()
        if self.dispatcher:
            self.dispatcher.stop()
        with self._changed:
            while self._users:
                self._changed.wait()
        address = self.address
        lib.quern_close(c.c_void_p(address))
        with self._changed:
            self.address = None
            self._changed.notify_all()

    def forget(self) -> None:
        """In a forked process, which has none of the engine's threads: it is closed, and nothing is freed. Locks may be held by
        threads that are not here."""
        self._forked = self._closing = True
        self.address = None
        self.lock = threading.Lock()
        self._changed = threading.Condition()
        for stream in list(self.streams):
            stream.forget()
        if self.dispatcher:
            self.dispatcher.forget()


def close_all() -> None:
    for handle in list(_open):
        handle.close()


def _forget_all() -> None:
    for handle in list(_open):
        handle.forget()


os.register_at_fork(after_in_child=_forget_all)
