"""The open model of the library, and who uses it: it is closed when nobody does."""
from __future__ import annotations

import ctypes as c
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Optional

from ._library import lib
from .errors import ClosedError

if TYPE_CHECKING:
    from ._dispatch import Dispatcher


class Handle:
    """Calls into a model count as its users. ``close`` ends what runs, waits for the users, and closes it."""

    def __init__(self, address: int) -> None:
        self.address: Optional[int] = address
        self.dispatcher: Optional[Dispatcher] = None
        self.streams: weakref.WeakSet[Any] = weakref.WeakSet()  # those that are read by their callers
        self._users = 0
        self._closing = False
        self._changed = threading.Condition()

    @contextmanager
    def use(self) -> Iterator[int]:
        """The model, which stays open inside the block."""
        with self._changed:
            if self._closing or self.address is None:
                raise ClosedError("the model is closed")
            self._users += 1
        try:
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
