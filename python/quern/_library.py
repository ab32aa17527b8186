"""The C library, by ctypes: its structs as include/quern.h has them, its functions, and how it is found."""
from __future__ import annotations

import ctypes as c
import os
from pathlib import Path
from typing import Any

from .errors import Error, from_code

ABI = 1
SONAME = "libquern.so.1"

TEXT, REASONING, CALL = 0, 1, 2


class ErrorStruct(c.Structure):
    _fields_ = [("code", c.c_int), ("text", c.c_char * 768)]

    def exception(self) -> Error:
        return from_code(self.code, self.text.decode("utf-8", "replace"))


PROGRESS = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_char_p, c.c_uint64, c.c_uint64)
LOG = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)


class Image(c.Structure):
    _fields_ = [("bytes", c.c_char_p), ("length", c.c_size_t)]


class Options(c.Structure):
    _fields_ = [
        ("size", c.c_size_t), ("device", c.c_char_p), ("chat_template", c.c_char_p), ("ctx", c.c_uint32),
        ("threads", c.c_int), ("deterministic", c.c_int), ("exact", c.c_int), ("streams", c.c_uint32),
        ("queue", c.c_uint32), ("draft", c.c_uint32), ("draft_model", c.c_char_p), ("embed", c.c_int),
        ("lora", c.POINTER(c.c_char_p)), ("cache_dir", c.c_char_p), ("cache_bytes", c.c_uint64),
        ("offline", c.c_int), ("progress", PROGRESS), ("progress_arg", c.c_void_p),
        ("mmproj", c.c_char_p),
    ]


class Request(c.Structure):
    _fields_ = [
        ("size", c.c_size_t), ("messages", c.c_char_p), ("prompt", c.c_char_p), ("raw", c.c_char_p),
        ("system", c.c_char_p), ("max_tokens", c.c_uint32), ("seed", c.c_uint64), ("greedy", c.c_int),
        ("temperature", c.c_double), ("top_p", c.c_double), ("min_p", c.c_double), ("top_k", c.c_int32),
        ("stop", c.POINTER(c.c_char_p)), ("json_schema", c.c_char_p), ("grammar", c.c_char_p), ("regex", c.c_char_p),
        ("choices", c.POINTER(c.c_char_p)), ("lora", c.c_char_p), ("logprobs", c.c_int), ("top_logprobs", c.c_uint32),
        ("echo", c.c_int), ("prompt_only", c.c_int), ("seconds", c.c_double), ("salt", c.c_uint64),
        ("text", c.c_void_p), ("arg", c.c_void_p), ("ids", c.POINTER(c.c_int32)), ("id_count", c.c_size_t),
        ("tools", c.c_char_p), ("tool_choice", c.c_char_p), ("single_call", c.c_int), ("template_args", c.c_char_p),
        ("parse", c.c_int), ("sampling", c.c_char_p), ("reasoning_tokens", c.c_int32), ("ignore_end", c.c_int),
        ("notify", c.c_int), ("images", c.POINTER(Image)), ("image_count", c.c_size_t),
    ]


class Piece(c.Structure):
    _fields_ = [("part", c.c_int), ("more", c.c_int), ("text", c.c_void_p), ("text_length", c.c_size_t),
                ("name", c.c_char_p), ("id", c.c_char_p)]


class Probability(c.Structure):
    _fields_ = [("id", c.c_int32), ("logprob", c.c_float)]


class Chunk(c.Structure):
    _fields_ = [
        ("text", c.c_void_p), ("text_length", c.c_size_t), ("ids", c.POINTER(c.c_int32)),
        ("logprobs", c.POINTER(c.c_float)), ("count", c.c_size_t), ("echoed", c.c_size_t), ("done", c.c_int),
        ("finish_reason", c.c_char_p), ("prompt_tokens", c.c_uint32), ("cached_tokens", c.c_uint32),
        ("queued_seconds", c.c_double), ("first_seconds", c.c_double), ("seconds", c.c_double),
        ("top", c.POINTER(Probability)), ("pieces", c.POINTER(Piece)), ("piece_count", c.c_size_t),
    ]


class Event(c.Structure):
    _fields_ = [("stream", c.c_void_p), ("arg", c.c_void_p)]


_ERROR = c.POINTER(ErrorStruct)
_FLOATS = c.POINTER(c.POINTER(c.c_float))
_IDS = c.POINTER(c.POINTER(c.c_int32))
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "quern_version": (c.c_char_p, []),
    "quern_abi": (c.c_int, []),
    "quern_options_init": (None, [c.POINTER(Options), c.c_size_t]),
    "quern_request_init": (None, [c.POINTER(Request), c.c_size_t]),
    "quern_log": (None, [LOG, c.c_void_p, c.c_int]),
    "quern_open": (c.c_void_p, [c.c_char_p, c.POINTER(Options), _ERROR]),
    "quern_close": (None, [c.c_void_p]),
    "quern_info": (c.c_void_p, [c.c_void_p]),
    "quern_submit": (c.c_void_p, [c.c_void_p, c.POINTER(Request), _ERROR]),
    "quern_next": (c.c_int, [c.c_void_p, c.c_double, c.POINTER(Chunk), _ERROR]),
    "quern_cancel": (None, [c.c_void_p]),
    "quern_stream_close": (None, [c.c_void_p]),
    "quern_ready": (c.c_size_t, [c.c_void_p, c.c_double, c.POINTER(Event), c.c_size_t]),
    "quern_interrupt": (None, [c.c_void_p]),
    "quern_embed_many": (c.c_long, [c.c_void_p, c.POINTER(c.c_char_p), c.POINTER(c.c_size_t), c.c_size_t, c.c_char_p,
                                    _FLOATS, _ERROR]),
    "quern_logits": (c.c_long, [c.c_void_p, c.POINTER(c.c_int32), c.c_size_t, c.c_size_t, c.c_char_p, _FLOATS, _ERROR]),
    "quern_tokenize": (c.c_long, [c.c_void_p, c.c_char_p, c.c_size_t, c.c_int, _IDS, _ERROR]),
    "quern_detokenize": (c.c_long, [c.c_void_p, c.POINTER(c.c_int32), c.c_size_t, c.c_int, c.POINTER(c.c_void_p), _ERROR]),
    "quern_prompt": (c.c_long, [c.c_void_p, c.POINTER(Request), _IDS, _ERROR]),
    "quern_free": (None, [c.c_void_p]),
}


def _candidates() -> list[str]:
    """QUERN_LIBRARY, then the one beside this file, then the system's."""
    here = Path(__file__).parent / SONAME
    given = os.environ.get("QUERN_LIBRARY")
    return [given] if given else [str(here)] if here.exists() else [SONAME]


def _load() -> c.CDLL:
    path = _candidates()[0]
    try:
        library = c.CDLL(path)
    except OSError as why:
        raise ImportError(f"quern: the library cannot be loaded: {why}") from why
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            raise ImportError(f"quern: {path} has no {name}: it is another version than this package")
        function.restype = result
        function.argtypes = arguments
    if library.quern_abi() != ABI:
        raise ImportError(f"quern: {path} has ABI {library.quern_abi()}, this package needs {ABI}")
    return library


lib = _load()


def text_at(address: int | None, length: int) -> str:
    """The text of a C buffer; what is no UTF-8 becomes U+FFFD."""
    return c.string_at(address, length).decode("utf-8", "replace") if address and length else ""


def texts(items: list[str]) -> Any:
    """A NULL-terminated array of C strings."""
    return (c.c_char_p * (len(items) + 1))(*[encode(i) for i in items], None)


def utf8(text: str) -> bytes:
    """The bytes of a text."""
    if not isinstance(text, str):
        raise from_code(64, f"a text was expected, not {text!r}")
    try:
        return text.encode()
    except UnicodeEncodeError as why:
        raise from_code(64, f"the text cannot be written as UTF-8: {why.reason} at {why.start}") from why


def encode(text: str) -> bytes:
    """UTF-8 without U+0000, which would end a C string."""
    data = utf8(text)
    if b"\0" in data:
        raise from_code(64, "the text holds the character U+0000")
    return data


def path_bytes(path: str | os.PathLike[str]) -> bytes:
    """A path as the system has it, also one that is not UTF-8."""
    data = os.fsencode(path)
    if b"\0" in data:
        raise from_code(64, "the path holds the character U+0000")
    return data
