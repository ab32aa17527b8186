"""Chunks of the library as Python's values, and the result that grows from them."""
from __future__ import annotations

import ctypes as c
from typing import Any, Optional

from ._library import CALL, REASONING, Chunk, ErrorStruct, lib, text_at
from .errors import Error
from .results import Piece, Result, TokenLogprob, ToolCall


class Reader:
    """Reads one stream: pieces as they come, and the result. One thread at a time."""

    def __init__(self, stream: int, top: int, schema: Any) -> None:
        self.stream = c.c_void_p(stream)
        self.result: Result[Any] = Result(_schema=schema)
        self.done = False
        self.error: Optional[Error] = None
        self._top = top
        self._chunk = Chunk()
        self._why = ErrorStruct()

    def next(self, seconds: float) -> Optional[list[Piece]]:
        """What has come; None: nothing yet. Waits up to so many seconds. At the end ``done``, or ``error``."""
        got = lib.quern_next(self.stream, seconds, c.byref(self._chunk), c.byref(self._why))
        if got == 0:
            return None
        if got < 0:
            self.error = self._why.exception()
            self.done = True
            return []
        return self._take(self._chunk)

    def _take(self, chunk: Chunk) -> list[Piece]:
        result = self.result
        if chunk.count > chunk.echoed:
            result.ids += chunk.ids[chunk.echoed:chunk.count]
        if chunk.logprobs:
            self._logprobs(chunk)
        pieces = ([self._piece(chunk.pieces[i]) for i in range(chunk.piece_count)] if chunk.pieces else
                  [Piece("text", text_at(chunk.text, chunk.text_length))] if chunk.text_length else [])
        for piece in pieces:
            if piece.kind == "text":
                result.text += piece.text
            elif piece.kind == "reasoning":
                result.reasoning += piece.text
        if chunk.done:
            self.done = True
            result.finish_reason = chunk.finish_reason.decode()
            result.prompt_tokens = chunk.prompt_tokens
            result.cached_tokens = chunk.cached_tokens
            result.seconds = chunk.seconds
            result.first_seconds = chunk.first_seconds
        return pieces

    def _logprobs(self, chunk: Chunk) -> None:
        rows = self.result.logprobs = self.result.logprobs or []
        for i in range(chunk.echoed, chunk.count):
            best = [chunk.top[i * self._top + k] for k in range(self._top)] if chunk.top else []
            rows.append(TokenLogprob(chunk.ids[i], chunk.logprobs[i], [(b.id, b.logprob) for b in best if b.id >= 0]))

    def _piece(self, p: Any) -> Piece:
        text = text_at(p.text, p.text_length)
        if p.part != CALL:
            return Piece("reasoning" if p.part == REASONING else "text", text)
        calls = self.result.tool_calls
        if p.name is not None:
            calls.append(ToolCall((p.id or b"").decode(), p.name.decode()))
        calls[-1].text += text
        return Piece("call", text, calls[-1] if p.name is not None else None, bool(p.more))

    def cancel(self) -> None:
        """Takes effect within a step; any thread, while the stream is open."""
        lib.quern_cancel(self.stream)

    def close(self) -> None:
        lib.quern_stream_close(self.stream)
