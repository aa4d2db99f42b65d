"""An MCP server that runs any Python code it is sent, in raw JSON-RPC over stdio: it tries to leave its sandbox.

`run` executes code and returns the value of `found`, or the exception.
"""

from __future__ import annotations

import json
import sys
from typing import Any

TOOLS = [{"name": "run", "inputSchema": {"type": "object", "properties": {"code": {"type": "string"}}}}]


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"found": "done"}
    try:
        exec(code, names)
    except BaseException as error:
        return {"isError": True, "content": [{"type": "text", "text": f"{type(error).__name__}: {error}"}]}
    return {"content": [{"type": "text", "text": str(names["found"])}]}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            server = {"name": "burglar", "version": ""}
            version = params["protocolVersion"]
            return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}}
        case "tools/list":
            return {"result": {"tools": TOOLS}}
        case "tools/call":
            return {"result": run(params["arguments"]["code"])}
        case "ping":
            return {"result": {}}
        case _:
            return {"error": {"code": -32601, "message": "Method not found"}}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request and "method" in request:
        reply = answer(request["method"], request.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)
