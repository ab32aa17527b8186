"""From Python's arguments to the C struct of a request."""
from __future__ import annotations

import ctypes as c
import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from ._library import Request, encode, lib, texts
from .errors import UsageError

Messages = Union[str, Sequence[Mapping[str, Any]]]
Adapters = Union[str, Sequence[str], Mapping[str, float], None]

#: Options that chat and complete share, beside those of their own signatures, with their meaning.
OPTIONS: dict[str, str] = {
    "max_tokens": "most tokens of the answer (default: until the model ends, or the context is full)",
    "temperature": "0 = always the best token (default: the model's)",
    "top_p": "nucleus sampling (default: the model's)",
    "min_p": "least probability, relative to the best token's (default: the model's)",
    "top_k": "number of tokens to sample from; 0 = all (default: the model's)",
    "seed": "the same seed gives the same answer (default: a random one)",
    "stop": "a text or a list of texts that end the answer",
    "schema": "a pydantic model or a JSON schema that the answer satisfies: result.parsed",
    "grammar": "a GBNF grammar for the answer",
    "regex": "a regular expression that the whole answer matches",
    "choices": "the answer is one of these texts",
    "adapters": "adapters for this request: a name, a list of names, or {name: scale}",
    "logprobs": "True = result.logprobs; a number = also this many best tokens at each place (at most 20)",
    "sampling": "more sampling fields by name, such as {'repeat_penalty': 1.1}",
    "timeout": "seconds after which the request fails",
    "salt": "a number: requests share cached prefixes only with those of the same one",
    "reasoning_tokens": "budget of reasoning, after which it is closed and the answer follows",
    "ignore_end": "True = go on after the model's end token, until max_tokens",
    "template_args": "more variables of the chat template, such as {'enable_thinking': False}",
}


def adapter_text(adapters: Adapters) -> Optional[str]:
    if not adapters:
        return None
    if isinstance(adapters, str):
        return adapters
    if isinstance(adapters, Mapping):
        return ",".join(f"{name}:{scale:g}" for name, scale in adapters.items())
    return ",".join(adapters)


def schema_text(schema: Any) -> str:
    """The text of a JSON schema: of a pydantic model, a dict, or True."""
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    elif not isinstance(schema, (Mapping, bool)):
        raise UsageError(f"schema has to be a pydantic model or a JSON schema, not {type(schema).__name__}")
    return json.dumps(schema)


def messages_text(messages: Messages) -> str:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    try:
        return json.dumps(list(messages))
    except (TypeError, ValueError) as why:
        raise UsageError(f"messages cannot be written as JSON: {why}") from why


def _text(keep: list[Any], value: Optional[str]) -> Optional[bytes]:
    data = None if value is None else encode(value)
    keep.append(data)
    return data


def _list(keep: list[Any], value: Union[str, Sequence[str], None]) -> Any:
    if value is None:
        return None
    array = texts([value] if isinstance(value, str) else list(value))
    keep.append(array)
    return c.cast(array, c.POINTER(c.c_char_p))


def _number(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(f"{name} is {value!r}; it has to be a whole number from {least} to {most}")
    return value


class RequestOptions:
    """A request before it is submitted: the C struct, and what its pointers need."""

    def __init__(self, options: dict[str, Any]) -> None:
        unknown = [name for name in options if name not in OPTIONS]
        if unknown:
            raise TypeError(f"there is no option '{unknown[0]}'; the options are {', '.join(OPTIONS)}")
        self.struct = Request()
        self.keep: list[Any] = []
        self.schema = options.get("schema")
        lib.quern_request_init(c.byref(self.struct), c.sizeof(Request))
        self._sampling(options)
        self._format(options)
        self._rest(options)

    def _sampling(self, o: dict[str, Any]) -> None:
        r = self.struct
        if o.get("max_tokens") is not None:
            r.max_tokens = _number("max_tokens", o["max_tokens"], 1, 2**31)
        for name in ("temperature", "top_p", "min_p"):
            if o.get(name) is not None:
                value = float(o[name])
                if math.isnan(value):
                    raise UsageError(f"{name} is not a number")
                setattr(r, name, value)
        if o.get("top_k") is not None:
            r.top_k = _number("top_k", o["top_k"], 0, 1 << 20)
        seed = o.get("seed")
        r.seed = random.getrandbits(52) if seed is None else _number("seed", seed, -2**63, 2**64 - 1) % 2**64
        if o.get("sampling"):
            r.sampling = _text(self.keep, json.dumps(dict(o["sampling"])))

    def _format(self, o: dict[str, Any]) -> None:
        r = self.struct
        if self.schema is not None:
            r.json_schema = _text(self.keep, schema_text(self.schema))
        r.grammar = _text(self.keep, o.get("grammar"))
        r.regex = _text(self.keep, o.get("regex"))
        r.choices = _list(self.keep, o.get("choices"))
        r.stop = _list(self.keep, o.get("stop"))

    def _rest(self, o: dict[str, Any]) -> None:
        r = self.struct
        r.lora = _text(self.keep, adapter_text(o.get("adapters")))
        logprobs = o.get("logprobs")
        if logprobs is not None and logprobs is not False:
            r.logprobs = 1
            r.top_logprobs = 0 if logprobs is True else _number("logprobs", logprobs, 0, 20)
        if o.get("timeout") is not None:
            r.seconds = float(o["timeout"])
        if o.get("salt") is not None:
            r.salt = _number("salt", o["salt"], 0, 2**64 - 1)
        if o.get("reasoning_tokens") is not None:
            r.reasoning_tokens = _number("reasoning_tokens", o["reasoning_tokens"], 0, 2**31 - 1)
        r.ignore_end = int(bool(o.get("ignore_end")))
        if o.get("template_args"):
            r.template_args = _text(self.keep, json.dumps(dict(o["template_args"])))

    def chat(self, messages: Messages, tools: Optional[Sequence[Mapping[str, Any]]], tool_choice: Optional[str],
             parallel: bool) -> RequestOptions:
        r = self.struct
        r.messages = _text(self.keep, messages_text(messages))
        r.parse = 1
        if tools:
            r.tools = _text(self.keep, json.dumps(list(tools)))
        r.tool_choice = _text(self.keep, tool_choice)
        r.single_call = 0 if parallel else 1
        return self

    def raw(self, prompt: Union[str, Sequence[int]]) -> RequestOptions:
        r = self.struct
        if isinstance(prompt, str):
            r.raw = _text(self.keep, prompt)
            return self
        ids = id_array(prompt)
        self.keep.append(ids)
        r.ids = c.cast(ids, c.POINTER(c.c_int32))
        r.id_count = len(prompt)
        return self


def id_array(ids: Sequence[int]) -> Any:
    """Token ids as a C array."""
    try:
        return (c.c_int32 * len(ids))(*[_number("a token id", int(i), 0, 2**31 - 1) for i in ids])
    except TypeError as why:
        raise UsageError(f"a list of token ids was expected: {why}") from why
