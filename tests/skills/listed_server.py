"""An MCP server in raw JSON-RPC over stdio with the extension for skills: `listed_server.py OFFER.json`.

It speaks MCP 2026-07-28. The file is `{"pages": [[entry, …], …], "contents": {uri: text or base64 in a list}}`, and is
read for each request. With `"endless"` the first page repeats under ever new cursors. Its tool `tell` has it announce a
change of its resources.
"""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path
from typing import Any

OFFER = Path(sys.argv[1])
EXTENSION = "io.modelcontextprotocol/skills"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
INFO = {"_meta": {"io.modelcontextprotocol/serverInfo": {"name": "listed", "version": "1"}}}
TELL = {"name": "tell", "description": "Announces a change.", "inputSchema": {"type": "object"}}
FRESH = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "private"}
numbers = count(1)
listening: list[Any] = []


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def page(offer: dict[str, Any], cursor: str | None) -> dict[str, Any]:
    if offer.get("endless"):
        return {"skills": [], "nextCursor": str(next(numbers))}
    at = int(cursor or 0)
    following = {"nextCursor": str(at + 1)} if at + 1 < len(offer["pages"]) else {}
    return {"skills": [each for page in offer["pages"][at : at + 1] for each in page], **following}


def answer(number: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    offer = json.loads(OFFER.read_text())
    match method:
        case "server/discover":
            capabilities = {"tools": {}, "resources": {"listChanged": True}, "extensions": {EXTENSION: {}}}
            return {"supportedVersions": ["2026-07-28"], "capabilities": capabilities, **FRESH, **INFO}
        case "tools/list":
            return {"tools": [TELL], **FRESH}
        case "tools/call":
            for each in listening:
                params = {"_meta": {SUBSCRIPTION: each}}
                send(method="notifications/resources/list_changed", params=params)
            return {"content": [], "resultType": "complete"}
        case "resources/list":
            return {"resources": [], **FRESH}
        case "skills/list":
            return {**page(offer, params.get("cursor")), **FRESH}
        case "resources/read":
            content = offer["contents"].get(params["uri"])
            kind = {"blob": content[0]} if isinstance(content, list) else {"text": content}
            return None if content is None else {"contents": [{"uri": params["uri"], **kind}], **FRESH}
        case "subscriptions/listen":
            listening.append(number)
            noted = {"_meta": {SUBSCRIPTION: number}, "notifications": params.get("notifications", {})}
            send(method="notifications/subscriptions/acknowledged", params=noted)
            return {}
    return None


for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked or "method" not in asked:
        continue
    result = answer(asked["id"], asked["method"], asked.get("params") or {})
    if result is None:
        send(id=asked["id"], error={"code": -32602, "message": "no such thing"})
    elif result:
        send(id=asked["id"], result=result)
