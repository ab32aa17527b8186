"""Streams that the caller's own thread reads."""
from __future__ import annotations

import ctypes as c
import threading
from collections.abc import Iterator
from typing import Any, Optional

from ._chunk import Reader
from ._handle import Handle
from ._library import ErrorStruct, lib
from ._request import RequestOptions
from .errors import ClosedError
from .results import Piece, Result

WAIT = 0.1  # seconds in the library at most: then signals, such as Ctrl-C, are handled


def submit(handle: Handle, request: RequestOptions) -> Reader:
    """Gives a request to the engine."""
    why = ErrorStruct()
    with handle.use() as model:
        stream = lib.quern_submit(c.c_void_p(model), c.byref(request.struct), c.byref(why))
    if not stream:
        raise why.exception()
    return Reader(stream, request.struct.top_logprobs, request.schema)


class Stream:
    """Pieces of an answer as they come: ``for text in stream``. Leaving the loop cancels the request. ``pieces()`` also has
    reasoning and calls of tools; ``result`` is what has come so far, and the whole answer in the end."""

    def __init__(self, owner: Any, handle: Handle, request: RequestOptions) -> None:
        self._owner = owner  # the model stays open while there is a stream
        self._reading = threading.Lock()
        self._alive = threading.Lock()  # guards _reader
        self._queue: list[Piece] = []
        self._error: Optional[Exception] = None
        self._reader: Optional[Reader] = None  # None: it is freed
        reader = submit(handle, request)
        self.result: Result[Any] = reader.result
        self._reader = reader
        handle.streams.add(self)
        if handle.closed:  # meanwhile
            self.close()

    def _pull(self) -> Optional[Piece]:
        """The next piece; None at the end."""
        while not self._queue:
            with self._reading:
                reader = self._reader
                if reader is None:
                    if self._error:
                        raise self._error
                    return None
                self._queue += reader.next(WAIT) or []
                if reader.done:
                    self._error = reader.error
                    self._free()
        return self._queue.pop(0)

    def _free(self) -> None:
        """No call of the library uses it: _reading is held."""
        with self._alive:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
            if not self.result.finish_reason:
                self.result.finish_reason = "cancelled"

    def pieces(self) -> Iterator[Piece]:
        """Text, reasoning and calls, in their order."""
        try:
            while (piece := self._pull()) is not None:
                yield piece
        finally:  # also where the loop is left
            self.close()

    def __iter__(self) -> Iterator[str]:
        for piece in self.pieces():
            if piece.kind == "text" and piece.text:
                yield piece.text

    def __next__(self) -> str:
        while (piece := self._pull()) is not None:
            if piece.kind == "text" and piece.text:
                return piece.text
        raise StopIteration

    def wait(self) -> Result[Any]:
        """Reads it to its end."""
        for _ in self.pieces():
            pass
        return self.result

    def cancel(self) -> None:
        """Ends the request within a step; any thread."""
        with self._alive:
            if self._reader is not None:
                self._reader.cancel()

    def close(self) -> None:
        """Cancels the request, if it runs, and frees it."""
        self.cancel()
        with self._reading:
            self._free()

    def forget(self) -> None:
        """In a forked process: it cannot go on."""
        if self._reader is not None:
            self._error = ClosedError("the request was begun before this process was forked")
        self._reading, self._alive, self._reader = threading.Lock(), threading.Lock(), None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_reader", None) is not None:
            self.close()
