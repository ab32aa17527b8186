"""Language models on the CPU and on NVIDIA GPUs.

    import quern

    m = quern.Model("smollm2")
    print(m.chat("Why is the sky blue?").text)
    for text in m.chat("Tell me a story.", stream=True, max_tokens=200):
        print(text, end="", flush=True)

Models are fetched by name or opened from a path. One engine serves all threads and event loops of the process, 32 requests
at once by default. Errors are ``quern.Error`` and carry the library's sentence.
"""
from ._library import lib as _lib
from ._log import set_log_level
from ._request import OPTIONS
from ._stream import Stream
from .aio import AsyncModel, AsyncStream
from .errors import ClosedError, DeviceError, Error, ModelError, ResourceError, UnreachableError, UsageError
from .model import Model
from .results import Piece, Result, TokenLogprob, ToolCall

__version__: str = _lib.quern_version().decode()
__all__ = [
    "AsyncModel", "AsyncStream", "ClosedError", "DeviceError", "Error", "Model", "ModelError", "OPTIONS", "Piece",
    "ResourceError", "Result", "Stream", "TokenLogprob", "ToolCall", "UnreachableError", "UsageError", "set_log_level",
]
