"""An MCP server in raw JSON-RPC whose tools are those in a file, read anew for each list: `shifting.py FILE`.

The tool `announce`, which is always there, says that the list has changed. All others answer with their name and what
they were given, an `error` with a JSON-RPC error, and `ask` asks whether to go on (2025-11-25).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(sys.argv[1])
ANNOUNCE = {"name": "announce", "description": "Says that the list has changed.", "inputSchema": {"type": "object"}}
asking: dict[str, Any] = {}


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call(request: dict[str, Any]) -> None:
    name, arguments = request["params"]["name"], request["params"].get("arguments") or {}
    if name == "announce":
        send(method="notifications/tools/list_changed")
    if "error" in arguments:
        send(id=request["id"], error={"code": -32000, "message": arguments["error"]})
    elif arguments.get("ask"):
        asking["ask-1"] = request
        params = {"message": "Go on?", "requestedSchema": {"type": "object", "properties": {"ok": {"type": "string"}}}}
        send(id="ask-1", method="elicitation/create", params=params)
    else:
        finish(request)


def finish(request: dict[str, Any]) -> None:
    arguments = request["params"].get("arguments") or {}
    text = f"{request['params']['name']} {json.dumps(arguments)}"
    send(id=request["id"], result={"content": [{"type": "text", "text": text}]})


def handle(request: dict[str, Any]) -> None:
    match request["method"]:
        case "initialize":
            info = {"name": "shifting", "version": "1"}
            capabilities = {"tools": {"listChanged": True}}
            result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
            send(id=request["id"], result=result)
        case "tools/list":
            send(id=request["id"], result={"tools": [*json.loads(FILE.read_text("utf-8")), ANNOUNCE]})
        case "tools/call":
            call(request)
        case "ping":
            send(id=request["id"], result={})
        case _:
            send(id=request["id"], error={"code": -32601, "message": "Method not found"})


for line in sys.stdin:
    message = json.loads(line)
    if "method" in message and "id" in message:
        handle(message)
    elif message.get("id") in asking:
        finish(asking.pop(message["id"]))
