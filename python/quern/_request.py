"""From Python's arguments to the C struct of a request."""
from __future__ import annotations

import ctypes as c
import json
import math
import operator
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, TypedDict, Union

from ._library import Image, Request, encode, lib, texts
from .errors import UsageError
from .results import schema_methods

Messages = Union[str, Sequence[Mapping[str, Any]]]
Adapters = Union[str, Sequence[str], Mapping[str, float], None]
Tools = Optional[Sequence[Mapping[str, Any]]]
#: "auto", "none", "required", a name, or a function as in OpenAI's API
ToolChoice = Union[str, Mapping[str, Any], None]
#: A path, or the bytes of a file.
ImageFile = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview]
Images = Union[ImageFile, Sequence[ImageFile]]

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
    "images": "an image or a list of them, paths or the bytes of files: for the parts {'type': 'image'} of the messages, else before "
              "the text of the last one; of complete, for each <__media__>, else before the text",
    "template_args": "more variables of the chat template, such as {'enable_thinking': False}",
}


class PlainOptions(TypedDict, total=False):
    """The types of OPTIONS, for type checkers."""

    max_tokens: Optional[int]
    temperature: Optional[float]
    top_p: Optional[float]
    min_p: Optional[float]
    top_k: Optional[int]
    seed: Optional[int]
    stop: Union[str, Sequence[str], None]
    grammar: Optional[str]
    regex: Optional[str]
    choices: Optional[Sequence[str]]
    adapters: Adapters
    logprobs: Union[bool, int, None]
    sampling: Optional[Mapping[str, Any]]
    timeout: Optional[float]
    salt: Optional[int]
    reasoning_tokens: Optional[int]
    ignore_end: bool
    images: Optional[Images]
    template_args: Optional[Mapping[str, Any]]


class AllOptions(PlainOptions, total=False):
    schema: Any


def whole_number(name: str, value: Any, least: int, most: int) -> int:
    """An int, or what counts as one, such as numpy's."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise UsageError(f"{name} is {value!r}; it has to be a whole number from {least} to {most}")
    return number


def _number(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise UsageError(f"{name} is {value!r}; it has to be a number")
    return number


def items_of(name: str, value: Any, of: str) -> list[Any]:
    """The items of a list, which a text and a dict are not."""
    if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(value, Iterable):
        raise UsageError(f"{name} has to be a list of {of}, not {type(value).__name__}")
    return list(value)


def _json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as why:
        raise UsageError(f"{name} cannot be written as JSON: {why}") from why


def adapter_text(adapters: Adapters) -> Optional[str]:
    if not adapters:
        return None
    if isinstance(adapters, str):
        return adapters
    if isinstance(adapters, Mapping):
        return ",".join(f"{name}:{_number(f'the scale of {name}', scale):g}" for name, scale in adapters.items())
    return ",".join(map(str, items_of("adapters", adapters, "names")))


def schema_source(schema: Any) -> Any:
    """What a schema is read from: a JSON schema, a pydantic model, or pydantic's adapter of another type."""
    if schema is None or isinstance(schema, (Mapping, bool)) or schema_methods(schema):
        return schema
    try:
        from pydantic import TypeAdapter

        if not isinstance(schema, (str, bytes)):
            return TypeAdapter(schema)
    except Exception:  # there is no pydantic, or it does not know the type
        pass
    raise UsageError(f"schema has to be a pydantic model, a type that pydantic knows, or a JSON schema as a dict, not {schema!r}")


def closed(schema: Any) -> Any:
    """A schema of pydantic without properties beside those that it names, unless it allows them: pydantic ignores them, and a
    model may write such properties until max_tokens."""
    if isinstance(schema, list):
        return [closed(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out = dict(schema)
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        if key in out:
            out[key] = {name: closed(s) for name, s in out[key].items()}
    for key in ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"):
        if key in out:
            out[key] = closed(out[key])
    if "properties" in out:
        out.setdefault("additionalProperties", False)
    return out


def schema_text(schema: Any) -> str:
    methods = schema_methods(schema)
    return _json("schema", closed(getattr(schema, methods[0])()) if methods else schema)


def image_bytes(images: Optional[Images]) -> list[bytes]:
    if images is None:
        return []
    if isinstance(images, (str, os.PathLike, bytes, bytearray, memoryview)):
        images = [images]
    found = []
    for image in images:
        if isinstance(image, (bytes, bytearray, memoryview)):
            found.append(bytes(image))
        elif isinstance(image, (str, os.PathLike)):
            with open(image, "rb") as f:
                found.append(f.read())
        else:
            raise UsageError(f"an image has to be a path or the bytes of a file, not {type(image).__name__}")
    return found


def _is_place(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image" and not {"image_url", "data"} & set(part)


def _placed(messages: Sequence[Mapping[str, Any]], images: int) -> list[Mapping[str, Any]]:
    """The messages, with places for images in the last one of the user where they have none."""
    out = list(messages)
    parts = [p for m in out if isinstance(m, Mapping) and isinstance(m.get("content"), list) for p in m["content"]]
    if not images or any(map(_is_place, parts)):
        return out
    for i in reversed(range(len(out))):
        if isinstance(out[i], Mapping) and out[i].get("role") == "user":
            content = out[i].get("content")
            text = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])
            out[i] = {**out[i], "content": [{"type": "image"}] * images + text}
            return out
    raise UsageError("images need a message of the user")


def messages_text(messages: Messages, images: int = 0) -> str:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return _json("messages", _placed(items_of("messages", messages, "messages, or a text"), images))


def tool_choice_text(choice: ToolChoice) -> Optional[str]:
    if isinstance(choice, Mapping):  # {"type": "function", "function": {"name": ...}}
        function = choice.get("function", choice)
        choice = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(choice, str):
            raise UsageError("tool_choice has to be a text, or a function with a name")
    return choice


def _text(keep: list[Any], value: Optional[str]) -> Optional[bytes]:
    data = None if value is None else encode(value)
    keep.append(data)
    return data


def _list(keep: list[Any], name: str, value: Union[str, Sequence[str], None]) -> Any:
    if value is None:
        return None
    array = texts([value] if isinstance(value, str) else items_of(name, value, "texts"))
    keep.append(array)
    return c.cast(array, c.POINTER(c.c_char_p))


class RequestOptions:
    """A request before it is submitted: the C struct, and what its pointers need."""

    def __init__(self, options: dict[str, Any]) -> None:
        unknown = [name for name in options if name not in OPTIONS]
        if unknown:
            raise TypeError(f"there is no option '{unknown[0]}'; the options are {', '.join(OPTIONS)}")
        self.struct = Request()
        self.keep: list[Any] = []
        self.schema = schema_source(options.get("schema"))
        self.images = image_bytes(options.get("images"))
        lib.quern_request_init(c.byref(self.struct), c.sizeof(Request))
        self._sampling(options)
        self._format(options)
        self._rest(options)

    def _sampling(self, o: dict[str, Any]) -> None:
        r = self.struct
        if o.get("max_tokens") is not None:
            r.max_tokens = whole_number("max_tokens", o["max_tokens"], 1, 2**31)
        for name in ("temperature", "top_p", "min_p"):
            if o.get(name) is not None:
                setattr(r, name, _number(name, o[name]))
        if o.get("top_k") is not None:
            r.top_k = whole_number("top_k", o["top_k"], 0, 1 << 20)
        seed = o.get("seed")
        r.seed = random.getrandbits(52) if seed is None else whole_number("seed", seed, -2**63, 2**64 - 1) % 2**64
        if o.get("sampling"):
            r.sampling = _text(self.keep, _json("sampling", o["sampling"]))

    def _format(self, o: dict[str, Any]) -> None:
        r = self.struct
        if self.schema is not None:
            r.json_schema = _text(self.keep, schema_text(self.schema))
        r.grammar = _text(self.keep, o.get("grammar"))
        r.regex = _text(self.keep, o.get("regex"))
        r.choices = _list(self.keep, "choices", o.get("choices"))
        if r.choices and r.choices[0] is None:
            raise UsageError("choices is empty: the answer would be one of none")
        r.stop = _list(self.keep, "stop", o.get("stop"))

    def _rest(self, o: dict[str, Any]) -> None:
        r = self.struct
        r.lora = _text(self.keep, adapter_text(o.get("adapters")))
        logprobs = o.get("logprobs")
        if logprobs is not None and logprobs is not False:
            r.logprobs = 1
            r.top_logprobs = 0 if logprobs is True else whole_number("logprobs", logprobs, 0, 20)
        if o.get("timeout") is not None:
            r.seconds = _number("timeout", o["timeout"])
            if r.seconds <= 0:
                raise UsageError(f"timeout is {o['timeout']!r}; it has to be more than 0 seconds")
        if o.get("salt") is not None:
            r.salt = whole_number("salt", o["salt"], 0, 2**64 - 1)
        if o.get("reasoning_tokens") is not None:
            r.reasoning_tokens = whole_number("reasoning_tokens", o["reasoning_tokens"], 0, 2**31 - 1)
        if self.images:
            array = (Image * len(self.images))(*[Image(data, len(data)) for data in self.images])
            self.keep.append(array)
            r.images = c.cast(array, c.POINTER(Image))
            r.image_count = len(self.images)
        r.ignore_end = int(bool(o.get("ignore_end")))
        if o.get("template_args"):
            r.template_args = _text(self.keep, _json("template_args", o["template_args"]))

    def chat(self, messages: Messages, tools: Tools, tool_choice: ToolChoice, parallel: bool) -> RequestOptions:
        r = self.struct
        r.messages = _text(self.keep, messages_text(messages, len(self.images)))
        r.parse = 1
        if tools:
            r.tools = _text(self.keep, _json("tools", items_of("tools", tools, "functions")))
        r.tool_choice = _text(self.keep, tool_choice_text(tool_choice))
        r.single_call = 0 if parallel else 1
        return self

    def raw(self, prompt: Union[str, Sequence[int]]) -> RequestOptions:
        r = self.struct
        if isinstance(prompt, str):
            r.raw = _text(self.keep, prompt)
            return self
        ids = id_array("a prompt", prompt)
        self.keep.append(ids)
        r.ids = c.cast(ids, c.POINTER(c.c_int32))
        r.id_count = len(ids)
        return self


def id_array(name: str, ids: Sequence[int]) -> Any:
    """Token ids as a C array."""
    items = items_of(name, ids, "token ids, or a text" if name == "a prompt" else "token ids")
    return (c.c_int32 * len(items))(*[whole_number("a token id", i, 0, 2**31 - 1) for i in items])
