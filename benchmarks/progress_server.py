"""An MCP server over stdio whose tools report progress or a change, and say when that was written.

`step` reports once and returns `PAUSE` later. `count` reports a hundred times within a second. `touch` announces a
change of the resource `CLOCK`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

__all__: list[str] = []

PAUSE = 0.02
STEPS, EVERY = 100, 0.01
TOOLS = ("step", "count", "touch")
CLOCK = "clock://now"
REVISION = "2025-11-25"


def send(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def report(token: Any, progress: int, total: int) -> None:
    params = {"progressToken": token, "progress": progress, "total": total, "message": str(time.monotonic_ns())}
    send({"method": "notifications/progress", "params": params})


def touch() -> str:
    """When the change was announced."""
    stamp = str(time.monotonic_ns())
    send({"method": "notifications/resources/updated", "params": {"uri": CLOCK}})
    return stamp


def call(params: dict[str, Any]) -> dict[str, Any]:
    if params["name"] == "touch":
        return {"content": [{"type": "text", "text": touch()}], "isError": False}
    token = params.get("_meta", {}).get("progressToken")
    steps, pause = (1, PAUSE) if params["name"] == "step" else (STEPS, EVERY)
    for number in range(steps):
        report(token, number + 1, steps)
        time.sleep(pause)
    return {"content": [{"type": "text", "text": str(time.monotonic_ns())}], "isError": False}


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "tools/call":
        return call(params)
    about = {
        "capabilities": {"tools": {}, "resources": {"subscribe": True}},
        "serverInfo": {"name": "progress", "version": "1"},
    }
    tools = [{"name": name, "description": "Reports progress.", "inputSchema": {"type": "object"}} for name in TOOLS]
    known = {
        "initialize": {"protocolVersion": REVISION, **about},
        "tools/list": {"tools": tools},
        "resources/list": {"resources": [{"uri": CLOCK, "name": "clock"}]},
        "resources/templates/list": {"resourceTemplates": []},
        "resources/subscribe": {},
        "ping": {},
    }
    return known.get(method)


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = result_of(message["method"], message.get("params") or {})
            unknown = {"error": {"code": -32601, "message": "Method not found"}}
            send({"id": message["id"], **(unknown if result is None else {"result": result})})


if __name__ == "__main__":
    main()
