"""An MCP server in raw JSON-RPC over stdio that offers what is in a file: `skill_server.py OFFER.json`.

The file is `{"resources": […], "contents": {uri: […]}}`, and is read again when it changes. Its tool `tell` sends any
notification. With `"page": n` the list comes in pages of n; `"capabilities"` replaces what it declares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OFFER = Path(sys.argv[1])
TELL = {
    "name": "tell",
    "description": "Sends a notification.",
    "inputSchema": {"type": "object", "properties": {"method": {"type": "string"}, "params": {"type": "object"}}},
}


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def listed(offer: dict[str, Any], cursor: str | None) -> dict[str, Any]:
    resources, size = offer["resources"], offer.get("page", 10**9)
    start = int(cursor or 0)
    more = {"nextCursor": str(start + size)} if start + size < len(resources) else {}
    return {"resources": resources[start : start + size], **more}


known: tuple[int, dict[str, Any]] = (0, {})


def offered() -> dict[str, Any]:
    global known
    changed = OFFER.stat().st_mtime_ns
    if known[0] != changed:
        known = changed, json.loads(OFFER.read_text())
    return known[1]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    offer = offered()
    match method:
        case "initialize":
            capabilities = offer.get("capabilities", {"tools": {}, "resources": {"listChanged": True}})
            about = {"name": "skills", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": about}
        case "tools/list":
            return {"tools": [TELL]}
        case "tools/call":
            send(**params["arguments"])
            return {"content": []}
        case "resources/list":
            return listed(offer, params.get("cursor"))
        case "resources/read":
            contents = offer["contents"].get(params["uri"])
            return None if contents is None else {"contents": contents}
        case "ping":
            return {}
    return None


for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked or "method" not in asked:
        continue
    result = answer(asked["method"], asked.get("params") or {})
    if result is None:
        send(id=asked["id"], error={"code": -32601, "message": "no such thing"})
    else:
        send(id=asked["id"], result=result)
