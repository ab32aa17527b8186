"""One thread reads all asyncio streams of a model and hands their pieces to their event loops."""
from __future__ import annotations

import asyncio
import ctypes as c
import itertools
import threading
import weakref
from typing import Callable, Optional

from ._chunk import Reader
from ._library import Event, lib
from .results import Piece

MOST = 64  # streams that are taken at once


class Subscription:
    """A request of an event loop. ``take`` runs on that loop, as long as its object lives."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: weakref.WeakMethod[Callable[[list[Piece], bool], None]]) -> None:
        self.loop = loop
        self.take = take
        self.reader: Optional[Reader] = None  # the dispatcher's, once it is known
        self.cancelled = False


class Dispatcher:
    """Streams are read and freed by its thread alone. It ends with the model."""

    def __init__(self, model: int) -> None:
        self._model = c.c_void_p(model)
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        self._subscriptions: dict[int, Subscription] = {}
        self._keys = itertools.count(1)
        self._stopping = False
        self.thread = threading.Thread(target=self._run, name="quern", daemon=True)
        self.thread.start()

    def add(self, subscription: Subscription) -> int:
        """The key that the request has as its `arg`; before it is submitted."""
        with self._lock:
            key = next(self._keys)
            self._subscriptions[key] = subscription
            return key

    def drop(self, key: int) -> None:
        """The request was refused."""
        with self._drained:
            self._subscriptions.pop(key, None)
            self._drained.notify_all()

    def started(self, key: int, reader: Reader) -> None:
        with self._lock:
            s = self._subscriptions.get(key)
            if s is None:  # it has come to its end already: impossible without a reader
                return
            s.reader = reader
            if s.cancelled or self._stopping:
                reader.cancel()
        lib.quern_interrupt(self._model)  # events that came before are looked at again

    def cancel(self, key: int) -> None:
        """Ends a request within a step; any thread."""
        with self._lock:
            s = self._subscriptions.get(key)
            if s is not None:
                s.cancelled = True
                if s.reader is not None:
                    s.reader.cancel()

    def stop(self) -> None:
        """Ends all requests, and the thread."""
        with self._drained:
            self._stopping = True
            for s in self._subscriptions.values():
                if s.reader is not None:
                    s.reader.cancel()
            while self._subscriptions:
                self._drained.wait()
        lib.quern_interrupt(self._model)
        self.thread.join()

    def forget(self) -> None:
        """In a forked process, which has no such thread."""
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        self._subscriptions = {}

    def _run(self) -> None:
        events = (Event * MOST)()
        early: set[int] = set()  # keys whose readers are not known yet
        while True:
            n = lib.quern_ready(self._model, -1.0, events, MOST)
            keys = [events[i].arg for i in range(n)] + sorted(early)
            early.clear()
            with self._lock:
                if self._stopping and not self._subscriptions:
                    return
                found = [(k, self._subscriptions.get(k)) for k in keys]
            batches: dict[asyncio.AbstractEventLoop, list[tuple[Subscription, list[Piece], bool]]] = {}
            for key, s in found:
                if s is None:
                    continue
                if s.reader is None:
                    early.add(key)
                    continue
                self._read(key, s, batches)
            for loop, batch in batches.items():
                try:
                    loop.call_soon_threadsafe(_deliver, batch)
                except RuntimeError:  # the loop is closed
                    for s, _, done in batch:
                        if not done and s.reader is not None:
                            s.reader.cancel()

    def _read(self, key: int, s: Subscription,
              batches: dict[asyncio.AbstractEventLoop, list[tuple[Subscription, list[Piece], bool]]]) -> None:
        assert s.reader is not None
        pieces = s.reader.next(0.0)
        if pieces is None:
            return
        done = s.reader.done
        if done:
            with self._drained:
                reader, s.reader = s.reader, None
                self._subscriptions.pop(key, None)
                self._drained.notify_all()
            reader.close()
        batches.setdefault(s.loop, []).append((s, pieces, done))


def _deliver(batch: list[tuple[Subscription, list[Piece], bool]]) -> None:
    for s, pieces, done in batch:
        take = s.take()
        if take is not None:
            take(pieces, done)
