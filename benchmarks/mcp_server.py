"""An MCP server over stdio, written by hand so that it costs the same whoever asks: `mcp_server.py desk 100 10 0.005`.

It has so many tools, so many windows that can be subscribed to, and takes so many seconds to answer. It counts what it
is asked, and every one of its tools answers with those counts, by method.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

Params = dict[str, Any]

NAME, TOOLS, WINDOWS, DELAY = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
UNKNOWN_METHOD = {"code": -32601, "message": "Method not found"}

asked: Counter[str] = Counter()


def tool(number: int) -> dict[str, Any]:
    text = {"type": "string", "description": "What to look for."}
    limit = {"type": "integer", "minimum": 1, "maximum": 100, "default": 10}
    schema = {"type": "object", "properties": {"text": text, "limit": limit}, "required": ["text"]}
    return {"name": f"{NAME}_{number}", "description": f"Tool {number} of {NAME}: finds things.", "inputSchema": schema}


def window(number: int) -> dict[str, Any]:
    uri = f"window://org.example.{NAME}/{number}?priority={number * 7 % 100}"
    return {"uri": uri, "name": f"window {number}", "mimeType": "text/plain"}


def initialize(params: Params) -> dict[str, Any]:
    wanted = params.get("protocolVersion")
    return {
        "protocolVersion": wanted if wanted in REVISIONS else REVISIONS[-1],
        "capabilities": {"tools": {}, "resources": {"subscribe": True}},
        "serverInfo": {"name": NAME, "version": "1"},
    }


def call_tool(params: Params) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(asked)}], "isError": False}


def read_resource(params: Params) -> dict[str, Any]:
    text = f"What {params['uri']} shows. " * 10
    return {"contents": [{"uri": params["uri"], "mimeType": "text/plain", "text": text}]}


METHODS: dict[str, Callable[[Params], dict[str, Any]]] = {
    "initialize": initialize,
    "ping": lambda params: {},
    "tools/list": lambda params: {"tools": [tool(number) for number in range(TOOLS)]},
    "tools/call": call_tool,
    "resources/list": lambda params: {"resources": [window(number) for number in range(WINDOWS)]},
    "resources/read": read_resource,
    "resources/subscribe": lambda params: {},
    "resources/unsubscribe": lambda params: {},
}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    method = METHODS.get(request["method"])
    asked[request["method"]] += 1
    outcome = {"result": method(request.get("params") or {})} if method else {"error": UNKNOWN_METHOD}
    return {"jsonrpc": "2.0", "id": request["id"], **outcome}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "method" in message and "id" in message:
            time.sleep(DELAY)
            print(json.dumps(answer(message)), flush=True)


if __name__ == "__main__":
    main()
