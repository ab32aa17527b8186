"""Exceptions. Each carries the library's sentence: what is wrong, where, and what to do."""
from __future__ import annotations


class Error(Exception):
    """What the library refuses or fails at. ``code`` is the exit code that the program would give."""

    code = 70

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        if code is not None:
            self.code = code


class UsageError(Error, ValueError):
    """An argument is wrong."""

    code = 64


class ModelError(Error):
    """The model is missing, damaged or not supported, or its file was changed while it was in use."""

    code = 65


class UnreachableError(Error, ConnectionError):
    """A hub or a server does not reply."""

    code = 69


class DeviceError(Error):
    """The GPU failed."""

    code = 70


class ResourceError(Error, MemoryError):
    """Out of memory, disk, context or places in the queue."""

    code = 75


class ClosedError(Error):
    """The model is closed."""

    code = 64


_KINDS: dict[int, type[Error]] = {
    64: UsageError,
    65: ModelError,
    69: UnreachableError,
    70: DeviceError,
    73: ResourceError,
    74: ModelError,
    75: ResourceError,
}


def from_code(code: int, text: str) -> Error:
    """The exception of an error code."""
    return _KINDS.get(code, Error)(text, code)
