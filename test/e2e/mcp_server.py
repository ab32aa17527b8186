"""An MCP server for the tests, of the mcp package: mcp_server.py PORT ORIGIN. Counts its calls at /count."""
import base64
import sys

import uvicorn
from mcp.server.fastmcp import FastMCP
from mcp.server.fastmcp.prompts import base
from mcp.server.transport_security import TransportSecuritySettings
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse

from browser import RED

port, origin = int(sys.argv[1]), sys.argv[2]
calls = []
server = FastMCP("tests", json_response="--json" in sys.argv,
                 transport_security=TransportSecuritySettings(allowed_hosts=[f"127.0.0.1:{port}"], allowed_origins=[origin]))


@server.tool()
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    calls.append("add")
    return str(a + b)


@server.tool()
def erase(path: str) -> str:
    """Deletes a file."""
    calls.append("erase")
    raise ValueError(f"no file {path}")


@server.prompt()
def review(code: str, tone: str = "kind") -> str:
    """Asks for a review."""
    calls.append("review")
    return f"Review this in a {tone} tone:\n{code}"


@server.prompt(title="A dialogue")
def dialogue() -> list:
    calls.append("dialogue")
    return [base.UserMessage("What is 1 + 1?"), base.AssistantMessage("2")]


@server.resource("notes://today", title="Notes of today", mime_type="text/markdown")
def notes() -> str:
    calls.append("notes")
    return "# Notes\n- buy flour\n"


@server.resource("notes://of/{day}", title="Notes of a day", mime_type="text/plain")
def notes_of(day: str) -> str:
    calls.append("notes_of")
    return f"Notes of {day}."


@server.resource("picture://red", mime_type="image/png")
def red() -> bytes:
    calls.append("red")
    return base64.b64decode(RED)


@server.custom_route("/count", methods=["GET"])
async def count(request):
    return PlainTextResponse(",".join(calls))


app = CORSMiddleware(server.streamable_http_app(), allow_origins=[origin], allow_methods=["*"], allow_headers=["*"], expose_headers=["Mcp-Session-Id"])
uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
