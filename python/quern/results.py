"""What a model returns."""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Generic, Optional, TypeVar

from .errors import UsageError

T = TypeVar("T")

# What gives a schema, and what reads JSON by it: of pydantic's models, of its TypeAdapter, of models of pydantic 1.
_METHODS = (("model_json_schema", "model_validate_json"), ("json_schema", "validate_json"), ("schema", "parse_raw"))


def schema_methods(schema: Any) -> Optional[tuple[str, str]]:
    """The names of both; None: it is a JSON schema, or none."""
    return next((m for m in _METHODS if hasattr(schema, m[0]) and hasattr(schema, m[1])), None)


@dataclass
class ToolCall:
    """A call of a tool that the model asks for. ``arguments`` is the parsed JSON object."""

    id: str
    name: str
    text: str = ""  #: the arguments as the model wrote them

    @property
    def arguments(self) -> dict[str, Any]:
        value = json.loads(self.text or "{}")
        return value if isinstance(value, dict) else {}

    def message(self) -> dict[str, Any]:
        """As it stands in ``tool_calls`` of an assistant's message."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.text}}


@dataclass
class Piece:
    """A part of what the model writes: ``kind`` is "text", "reasoning" or "call"."""

    kind: str
    text: str
    call: Optional[ToolCall] = None  #: of a call that begins; its text grows until it is complete
    more: bool = False  #: of a call: its arguments are not complete yet


@dataclass
class TokenLogprob:
    """A token and the natural logarithm of its probability; ``top``: the best ones at its place, with theirs."""

    id: int
    logprob: float
    top: list[tuple[int, float]] = field(default_factory=list)


@dataclass
class Result(Generic[T]):
    """A whole answer. ``str(result)`` is its text."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str = ""  #: "stop", "length", "tool_calls" or "cancelled"
    ids: list[int] = field(default_factory=list)
    logprobs: Optional[list[TokenLogprob]] = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    _schema: Any = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.text

    @property
    def completion_tokens(self) -> int:
        return len(self.ids)

    @property
    def parsed(self) -> T:
        """The answer to a request with a schema: an instance of the pydantic model, or the JSON value."""
        if self._schema is None:
            raise UsageError("the request had no schema: there is nothing to parse")
        if self.finish_reason in ("length", "cancelled"):
            raise UsageError(f"the answer ended ({self.finish_reason}) after {len(self.ids)} tokens, before its JSON was "
                             "complete: raise max_tokens")
        methods = schema_methods(self._schema)
        value: T = getattr(self._schema, methods[1])(self.text) if methods else json.loads(self.text)
        return value

    def message(self) -> dict[str, Any]:
        """The assistant's message, for the next turn of the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.message() for call in self.tool_calls]
        return message
