"""Models."""
from __future__ import annotations

import asyncio
import atexit
import ctypes as c
import json
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Literal, NoReturn, Optional, TypeVar, Union, overload

from . import _log
from ._dispatch import Dispatcher
from ._handle import Handle, close_all
from ._library import PROGRESS, ErrorStruct, Options, encode, lib, path_bytes, text_at, texts, utf8
from ._request import (OPTIONS, Adapters, AllOptions, Messages, PlainOptions, RequestOptions, ToolChoice, Tools, adapter_text,
                       id_array, items_of, whole_number)
from ._stream import Stream
from .aio import AsyncStream
from .errors import Error
from .results import Result

if TYPE_CHECKING:
    import numpy
    from typing_extensions import Unpack

T = TypeVar("T")
Progress = Callable[[str, int, int], Any]


def _at_exit() -> None:
    close_all()
    _log.detach()


atexit.register(_at_exit)


def _close_handle(handle: Handle) -> None:
    """Of a model that is no longer referenced. The dispatcher cannot wait for itself."""
    if handle.dispatcher and threading.current_thread() is handle.dispatcher.thread:
        threading.Thread(target=handle.close, name="quern-close").start()
    else:
        handle.close()


class _ProgressCall:
    """The C callback of a caller's function. What that raises, Ctrl-C too, ends a download and is raised again."""

    def __init__(self, call: Optional[Progress]) -> None:
        self._call = call
        self.raised: Optional[BaseException] = None
        self.function = PROGRESS(self._run)

    def _run(self, arg: Optional[int], what: bytes, done: int, total: int) -> int:
        try:
            if self.raised is None and self._call is not None:
                self._call(what.decode(), done, total)
        except BaseException as e:
            self.raised = e
        return 1 if self.raised is not None else 0


def _adapter_options(adapters: Union[Mapping[str, str], Sequence[str], None]) -> list[str]:
    if not adapters:
        return []
    if isinstance(adapters, Mapping):
        return [f"{name}={os.fspath(path)}" for name, path in adapters.items()]
    return [os.fspath(a) for a in adapters]


class Model:
    """An open model: the weights, one engine, and as many requests at once as ``streams``. Any thread may call it.

    ``model`` is a path (a GGUF file, or a folder with safetensors) or a name as the program takes it: "smollm2",
    "user/repo:Q4_K_M", a URL. What is not on this machine is fetched. None is the default model.

    ``adapters``: LoRA adapters by name, {name: path} or ["name=path:scale"]; a request chooses some of them.
    ``mmproj``: the file with the tower for images; None is what is in the model or beside it.
    ``embed``: only for ``embed``, which then needs less memory. ``progress(what, done, total)`` is called while the model is
    fetched and loaded. The other arguments are those of the program's flags of the same names.
    """

    def __init__(self, model: Union[str, os.PathLike[str], None] = None, *, device: Optional[str] = None, ctx: int = 0,
                 threads: int = 0, streams: int = 32, queue: int = 0, draft: int = 0, draft_model: Optional[str] = None,
                 chat_template: Optional[str] = None, adapters: Union[Mapping[str, str], Sequence[str], None] = None,
                 embed: bool = False, cache_dir: Optional[str] = None, cache_bytes: int = 0, deterministic: bool = False,
                 exact: bool = False, offline: bool = False, mmproj: Union[str, os.PathLike[str], None] = None,
                 progress: Optional[Progress] = None) -> None:
        call = _ProgressCall(progress)
        options = Options()
        lib.quern_options_init(c.byref(options), c.sizeof(Options))
        for name, number, most in (("ctx", ctx, 2**32 - 1), ("threads", threads, 2**31 - 1), ("streams", streams, 2**32 - 1),
                                   ("queue", queue, 2**32 - 1), ("draft", draft, 2**32 - 1), ("cache_bytes", cache_bytes, 2**64 - 1)):
            setattr(options, name, whole_number(name, number, 0, most))
        for name, text in (("device", device), ("chat_template", chat_template)):
            setattr(options, name, None if text is None else encode(text))
        for name, path in (("draft_model", draft_model), ("cache_dir", cache_dir), ("mmproj", mmproj)):
            setattr(options, name, None if path is None else path_bytes(path))
        lora = texts(_adapter_options(adapters))
        options.lora = c.cast(lora, c.POINTER(c.c_char_p))
        options.embed, options.deterministic, options.exact = int(embed), int(deterministic), int(exact)
        options.offline = int(offline)
        options.progress = call.function
        self._open_options = dict(device=device, ctx=ctx, threads=threads, offline=True)
        self._embedder: Optional[Model] = None
        why = ErrorStruct()
        name_bytes = None if model is None else path_bytes(model)
        address = lib.quern_open(name_bytes, c.byref(options), c.byref(why))
        if call.raised is not None:
            if address:
                lib.quern_close(c.c_void_p(address))
            raise call.raised
        if not address:
            raise why.exception()
        self._handle = Handle(address)
        self._finalizer = weakref.finalize(self, _close_handle, self._handle)
        self._finalizer.atexit = False  # _at_exit does it
        self.info: dict[str, Any] = self._read_info()

    def _read_info(self) -> dict[str, Any]:
        with self._handle.use() as model:
            text = lib.quern_info(c.c_void_p(model))
        if not text:
            raise MemoryError("quern: the facts of the model")
        try:
            return dict(json.loads(c.string_at(text)))
        finally:
            lib.quern_free(c.c_void_p(text))

    # ---- what it is ----

    @property
    def name(self) -> str:
        return str(self.info["name"])

    @property
    def context(self) -> int:
        """Tokens that prompt and answer may have together."""
        return int(self.info["context"])

    @property
    def adapters(self) -> list[str]:
        """The names of its adapters."""
        return [str(a["name"]) for a in self.info["adapters"]]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a quern.Model cannot be copied or pickled: open one in each process")

    def __repr__(self) -> str:
        return f"<quern.Model {self.name} on {self.info['device']}{', closed' if self._handle.closed else ''}>"

    # ---- answers ----

    @overload
    def chat(self, messages: Messages, *, stream: Literal[True], tools: Tools = ..., tool_choice: ToolChoice = ...,
             parallel_tool_calls: bool = ..., **options: Unpack[AllOptions]) -> Stream: ...

    @overload
    def chat(self, messages: Messages, *, stream: Literal[False] = ..., schema: type[T], tools: Tools = ...,
             tool_choice: ToolChoice = ..., parallel_tool_calls: bool = ..., **options: Unpack[PlainOptions]) -> Result[T]: ...

    @overload
    def chat(self, messages: Messages, *, stream: Literal[False] = ..., tools: Tools = ..., tool_choice: ToolChoice = ...,
             parallel_tool_calls: bool = ..., **options: Unpack[AllOptions]) -> Result[Any]: ...

    @overload
    def chat(self, messages: Messages, *, stream: bool, tools: Tools = ..., tool_choice: ToolChoice = ...,
             parallel_tool_calls: bool = ..., **options: Unpack[AllOptions]) -> Union[Stream, Result[Any]]: ...

    def chat(self, messages: Messages, *, stream: bool = False, tools: Tools = None, tool_choice: ToolChoice = None,
             parallel_tool_calls: bool = True, **options: Any) -> Union[Stream, Result[Any]]:
        """Answers a conversation: a text, or messages as in OpenAI's API, also with images as data: URLs. An assistant's message
        at its end is continued.

        stream=True returns a ``Stream``, which yields the text piece by piece; leaving the loop cancels the request.
        tools: functions as in OpenAI's API; tool_choice: "auto", "none", "required", or a name.

        Options (``quern.OPTIONS``):
        """
        made = Stream(self, self._handle, RequestOptions(options).chat(messages, tools, tool_choice, parallel_tool_calls))
        return made if stream else made.wait()

    def parse(self, messages: Messages, schema: type[T], **options: Unpack[PlainOptions]) -> T:
        """An answer as an instance of a pydantic model: ``chat(messages, schema=schema).parsed``."""
        answer: Result[T] = self.chat(messages, schema=schema, **options)
        return answer.parsed

    @overload
    def complete(self, prompt: Union[str, Sequence[int]], *, stream: Literal[True], **options: Unpack[AllOptions]) -> Stream: ...

    @overload
    def complete(self, prompt: Union[str, Sequence[int]], *, stream: Literal[False] = ..., schema: type[T],
                 **options: Unpack[PlainOptions]) -> Result[T]: ...

    @overload
    def complete(self, prompt: Union[str, Sequence[int]], *, stream: Literal[False] = ...,
                 **options: Unpack[AllOptions]) -> Result[Any]: ...

    @overload
    def complete(self, prompt: Union[str, Sequence[int]], *, stream: bool,
                 **options: Unpack[AllOptions]) -> Union[Stream, Result[Any]]: ...

    def complete(self, prompt: Union[str, Sequence[int]], *, stream: bool = False, **options: Any) -> Union[Stream, Result[Any]]:
        """Continues a text, or token ids, without a chat template. Options as of ``chat``."""
        made = Stream(self, self._handle, RequestOptions(options).raw(prompt))
        return made if stream else made.wait()

    # ---- asyncio ----

    def _dispatch(self) -> Dispatcher:
        """The thread that reads this model's asyncio streams."""
        with self._handle.lock, self._handle.use() as model:
            if self._handle.dispatcher is None:
                self._handle.dispatcher = Dispatcher(model)
            return self._handle.dispatcher

    @overload
    def achat(self, messages: Messages, *, stream: Literal[False] = ..., schema: type[T], tools: Tools = ...,
              tool_choice: ToolChoice = ..., parallel_tool_calls: bool = ...,
              **options: Unpack[PlainOptions]) -> AsyncStream[Result[T]]: ...

    @overload
    def achat(self, messages: Messages, *, stream: Literal[False] = ..., tools: Tools = ..., tool_choice: ToolChoice = ...,
              parallel_tool_calls: bool = ..., **options: Unpack[AllOptions]) -> AsyncStream[Result[Any]]: ...

    @overload
    def achat(self, messages: Messages, *, stream: bool, tools: Tools = ..., tool_choice: ToolChoice = ...,
              parallel_tool_calls: bool = ..., **options: Unpack[AllOptions]) -> AsyncStream[Any]: ...

    def achat(self, messages: Messages, *, stream: bool = False, tools: Tools = None, tool_choice: ToolChoice = None,
              parallel_tool_calls: bool = True, **options: Any) -> AsyncStream[Any]:
        """``await m.achat(...)``, or ``async for text in m.achat(..., stream=True)``; otherwise as ``chat``."""
        return AsyncStream(self, RequestOptions(options).chat(messages, tools, tool_choice, parallel_tool_calls), stream)

    @overload
    def acomplete(self, prompt: Union[str, Sequence[int]], *, stream: Literal[False] = ..., schema: type[T],
                  **options: Unpack[PlainOptions]) -> AsyncStream[Result[T]]: ...

    @overload
    def acomplete(self, prompt: Union[str, Sequence[int]], *, stream: Literal[False] = ...,
                  **options: Unpack[AllOptions]) -> AsyncStream[Result[Any]]: ...

    @overload
    def acomplete(self, prompt: Union[str, Sequence[int]], *, stream: bool, **options: Unpack[AllOptions]) -> AsyncStream[Any]: ...

    def acomplete(self, prompt: Union[str, Sequence[int]], *, stream: bool = False, **options: Any) -> AsyncStream[Any]:
        """As ``complete``, for asyncio."""
        return AsyncStream(self, RequestOptions(options).raw(prompt), stream)

    async def aembed(self, text: Union[str, Sequence[str]], **options: Any) -> Any:
        """As ``embed``, for asyncio."""
        return await asyncio.get_running_loop().run_in_executor(None, lambda: self.embed(text, **options))

    # ---- vectors and tokens ----

    def _vectors(self) -> Model:
        """Itself, or the same model opened once more for vectors alone: the weights are shared by the system."""
        if not self.info["generates"]:
            return self
        with self._handle.lock:
            self._handle.check()
            if self._embedder is None:
                self._embedder = Model(self.info["path"], embed=True, **self._open_options)  # type: ignore[arg-type]
            return self._embedder

    @overload
    def embed(self, text: str, *, prompt: Optional[str] = ...,  # type: ignore[overload-overlap]
              numpy: Literal[False] = ...) -> list[float]: ...  # a text is a sequence of texts, too

    @overload
    def embed(self, text: Sequence[str], *, prompt: Optional[str] = ..., numpy: Literal[False] = ...) -> list[list[float]]: ...

    @overload
    def embed(self, text: Union[str, Sequence[str]], *, prompt: Optional[str] = ..., numpy: Literal[True]) -> numpy.ndarray[Any, Any]: ...

    def embed(self, text: Union[str, Sequence[str]], *, prompt: Optional[str] = None, numpy: bool = False) -> Any:
        """The vector of a text, or of each text of a list, of length 1. prompt: the name of a text that the model's files put
        before it ("query", "document"). numpy=True returns an array over the library's memory."""
        one = isinstance(text, str)
        raw = [utf8(t) for t in ([text] if isinstance(text, str) else items_of("text", text, "texts, or a text"))]
        if not raw:
            return _numpy().zeros((0, self.info["width"]), dtype="float32") if numpy else []
        lengths = (c.c_size_t * len(raw))(*map(len, raw))
        out = c.POINTER(c.c_float)()
        why = ErrorStruct()
        with self._vectors()._handle.use() as model:
            width = lib.quern_embed_many(c.c_void_p(model), (c.c_char_p * len(raw))(*raw), lengths, len(raw),
                                         None if prompt is None else encode(prompt), c.byref(out), c.byref(why))
        if width < 0:
            raise why.exception()
        rows = _Floats(out, len(raw) * width)
        if numpy:
            array = rows.array().reshape(len(raw), width)
            return array[0] if one else array
        values = rows.values
        lists = [list(values[i * width:(i + 1) * width]) for i in range(len(raw))]
        return lists[0] if one else lists

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text. special: parse control tokens in it, and add what the model adds (BOS)."""
        data = utf8(text)
        return self._ids(lambda model, out, why: lib.quern_tokenize(model, data, len(data), int(special), out, why))

    def prompt_ids(self, messages: Messages, *, tools: Tools = None, **options: Unpack[AllOptions]) -> list[int]:
        """The ids of a conversation's prompt, as ``chat`` gives them to the model."""
        request = RequestOptions(dict(options)).chat(messages, tools, None, True)
        return self._ids(lambda model, out, why: lib.quern_prompt(model, c.byref(request.struct), out, why))

    def _ids(self, call: Callable[[c.c_void_p, Any, Any], int]) -> list[int]:
        ids = c.POINTER(c.c_int32)()
        why = ErrorStruct()
        with self._handle.use() as model:
            n = call(c.c_void_p(model), c.byref(ids), c.byref(why))
        if n < 0:
            raise why.exception()
        try:
            return ids[:n] if n else []
        finally:
            lib.quern_free(c.cast(ids, c.c_void_p))

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids. special: with control tokens."""
        array = id_array("ids", ids)
        out = c.c_void_p()
        why = ErrorStruct()
        with self._handle.use() as model:
            n = lib.quern_detokenize(c.c_void_p(model), array, len(array), int(special), c.byref(out), c.byref(why))
        if n < 0:
            raise why.exception()
        try:
            return text_at(out.value, n)
        finally:
            lib.quern_free(out)

    def logits(self, prompt: Union[str, Sequence[int]], *, all: bool = False, adapters: Adapters = None) -> numpy.ndarray[Any, Any]:
        """The logits of the next token, (vocabulary,), or with ``all`` those after each token, (tokens, vocabulary): a numpy
        array over the library's memory, without a copy."""
        array = id_array("a prompt", self.tokenize(prompt, special=True) if isinstance(prompt, str) else prompt)
        lora = adapter_text(adapters)
        out = c.POINTER(c.c_float)()
        why = ErrorStruct()
        _numpy()
        with self._handle.use() as model:
            rows = lib.quern_logits(c.c_void_p(model), array, len(array), 0 if all else max(len(array) - 1, 0),
                                    None if lora is None else encode(lora), c.byref(out), c.byref(why))
        if rows < 0:
            raise why.exception()
        width = int(self.info["vocabulary"])
        found: numpy.ndarray[Any, Any] = _Floats(out, rows * width).array().reshape(rows, width)
        return found if all else found.reshape(width)

    # ---- its end ----

    def close(self) -> None:
        """Ends what runs, and frees the model. It is also freed when it is no longer referenced."""
        with self._handle.lock:
            embedder, self._embedder = self._embedder, None
        if embedder is not None:
            embedder.close()
        self._handle.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


if Model.chat.__doc__:  # Python has none with -OO
    Model.chat.__doc__ += "".join(f"            {name}: {meaning}\n" for name, meaning in OPTIONS.items())


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as why:
        raise Error("this needs numpy: pip install numpy", 64) from why
    return numpy


class _Floats:
    """Floats of the library, freed when neither it nor an array over them is referenced."""

    def __init__(self, pointer: Any, count: int) -> None:
        address = c.cast(pointer, c.c_void_p).value
        self.values = (c.c_float * count).from_address(address or 0)
        weakref.finalize(self.values, lib.quern_free, c.c_void_p(address))

    def array(self) -> Any:
        return _numpy().frombuffer(self.values, dtype="float32")
