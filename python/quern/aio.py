"""asyncio: the same engine, without a thread for each request."""
from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, TypeVar, Union, overload

from ._chunk import Reader
from ._dispatch import Dispatcher, Subscription
from ._request import AllOptions, Messages, PlainOptions, RequestOptions, ToolChoice, Tools
from ._stream import submit
from .results import Piece, Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .model import Model

T = TypeVar("T")
R = TypeVar("R")


class AsyncStream(Coroutine[Any, Any, R]):
    """A request of an event loop. ``await`` gives the whole answer (with ``stream=True`` the stream itself), ``async for`` its
    text piece by piece, ``pieces()`` also reasoning and calls of tools. Leaving the loop, or cancelling the task, cancels the
    request. It begins when it is awaited or read. It is a coroutine, too, for ``asyncio.run`` and ``create_task``."""

    def __init__(self, model: Model, request: RequestOptions, stream: bool) -> None:
        self._model = model
        self._request: Optional[RequestOptions] = request
        self._streams = stream
        self._pieces: list[Piece] = []
        self._wake: Optional[asyncio.Event] = None
        self._done = False
        self._key = 0
        self._dispatcher: Optional[Dispatcher] = None
        self._reader: Optional[Reader] = None
        self._error: Optional[Exception] = None
        self._coroutine: Optional[Coroutine[Any, Any, Any]] = None
        self.result: Result[Any] = Result()

    async def _start(self) -> None:
        if self._request is None:
            return
        request, self._request = self._request, None
        loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        dispatcher = self._dispatcher = self._model._dispatch()
        subscription = Subscription(loop, weakref.WeakMethod(self._take))
        self._key = dispatcher.add(subscription)
        request.struct.notify = 1
        request.struct.arg = self._key
        started = loop.run_in_executor(None, self._submit, dispatcher, request)
        try:
            await asyncio.shield(started)
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _submit(self, dispatcher: Dispatcher, request: RequestOptions) -> None:
        """On a thread of the executor: a long prompt or a large schema takes time."""
        try:
            reader = submit(self._model._handle, request)
        except BaseException:
            dispatcher.drop(self._key)
            raise
        self.result = reader.result
        self._reader = reader
        dispatcher.started(self._key, reader)

    def _take(self, pieces: list[Piece], done: bool) -> None:
        self._pieces += pieces
        if done:
            self._done = True
            self._error = self._reader.error if self._reader is not None else None
        if self._wake is not None:
            self._wake.set()

    async def _next(self) -> Optional[Piece]:
        """The next piece; None at the end."""
        try:
            await self._start()
            if self._wake is None:  # it was cancelled before it began
                self.result.finish_reason = "cancelled"
                return None
            while not self._pieces:
                if self._error is not None:
                    raise self._error
                if self._done:
                    return None
                self._wake.clear()
                await self._wake.wait()
            return self._pieces.pop(0)
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def _whole(self) -> Result[Any]:
        while await self._next() is not None:
            self._pieces.clear()
        return self.result

    async def _self(self) -> AsyncStream[R]:
        await self._start()
        return self

    def _run(self) -> Coroutine[Any, Any, Any]:
        return self._self() if self._streams else self._whole()

    def __await__(self) -> Generator[Any, Any, R]:
        return self._run().__await__()

    def send(self, value: Any) -> Any:
        if self._coroutine is None:
            self._coroutine = self._run()
        return self._coroutine.send(value)

    def throw(self, *exc: Any) -> Any:
        if self._coroutine is None:
            self._coroutine = self._run()
        return self._coroutine.throw(*exc)

    def close(self) -> None:
        """Cancels the request, if it runs."""
        if self._coroutine is not None:
            self._coroutine.close()
        if not self._done:
            self.cancel()

    async def __aenter__(self) -> AsyncStream[R]:
        return await self._self()

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def pieces(self) -> AsyncIterator[Piece]:
        """Text, reasoning and calls, in their order."""
        return _Pieces(self)

    def __aiter__(self) -> AsyncIterator[str]:
        return _Texts(self)

    def cancel(self) -> None:
        """Ends the request within a step; any thread."""
        self._request = None
        if self._dispatcher is not None:
            self._dispatcher.cancel(self._key)

    def __del__(self) -> None:
        if not getattr(self, "_done", True):
            self.cancel()


class _Loop:
    """An iterator that cancels the request when the loop drops it."""

    def __init__(self, stream: AsyncStream[Any]) -> None:
        self._stream = stream

    def __del__(self) -> None:
        self._stream.cancel()


class _Pieces(_Loop, AsyncIterator[Piece]):
    async def __anext__(self) -> Piece:
        piece = await self._stream._next()
        if piece is None:
            raise StopAsyncIteration
        return piece


class _Texts(_Loop, AsyncIterator[str]):
    async def __anext__(self) -> str:
        while (piece := await self._stream._next()) is not None:
            if piece.kind == "text" and piece.text:
                return piece.text
        raise StopAsyncIteration


class AsyncModel:
    """A model for asyncio: ``await m.chat(...)``, ``async for text in m.chat(..., stream=True)``. Takes a ``Model``, or its
    arguments; ``await AsyncModel.open(...)`` loads it without blocking the event loop."""

    def __init__(self, model: Union[Model, str, None] = None, **options: Any) -> None:
        from .model import Model

        self.model = model if isinstance(model, Model) else Model(model, **options)

    @classmethod
    async def open(cls, model: Optional[str] = None, **options: Any) -> AsyncModel:
        return await asyncio.get_running_loop().run_in_executor(None, lambda: cls(model, **options))

    @overload
    def chat(self, messages: Messages, *, stream: Literal[False] = ..., schema: type[T], tools: Tools = ...,
             tool_choice: ToolChoice = ..., parallel_tool_calls: bool = ...,
             **options: Unpack[PlainOptions]) -> AsyncStream[Result[T]]: ...

    @overload
    def chat(self, messages: Messages, *, stream: Literal[False] = ..., tools: Tools = ..., tool_choice: ToolChoice = ...,
             parallel_tool_calls: bool = ..., **options: Unpack[AllOptions]) -> AsyncStream[Result[Any]]: ...

    @overload
    def chat(self, messages: Messages, *, stream: bool, tools: Tools = ..., tool_choice: ToolChoice = ...,
             parallel_tool_calls: bool = ..., **options: Unpack[AllOptions]) -> AsyncStream[Any]: ...

    def chat(self, messages: Messages, *, stream: bool = False, tools: Tools = None, tool_choice: ToolChoice = None,
             parallel_tool_calls: bool = True, **options: Any) -> AsyncStream[Any]:
        """As ``Model.chat``."""
        return self.model.achat(messages, stream=stream, tools=tools, tool_choice=tool_choice,
                                parallel_tool_calls=parallel_tool_calls, **options)

    def complete(self, prompt: Union[str, Sequence[int]], *, stream: bool = False,
                 **options: Unpack[AllOptions]) -> AsyncStream[Any]:
        """As ``Model.complete``."""
        return self.model.acomplete(prompt, stream=stream, **options)

    async def embed(self, text: Any, **options: Any) -> Any:
        """As ``Model.embed``."""
        return await self.model.aembed(text, **options)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.model.close)

    async def __aenter__(self) -> AsyncModel:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
