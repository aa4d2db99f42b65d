"""An MCP server in raw JSON-RPC, of one revision: `recorder.py REVISION`. Its tool `seen` returns all it has read."""

from __future__ import annotations

import json
import sys
from typing import Any

REVISION = sys.argv[1]
IS_MODERN = REVISION == "2026-07-28"
ABOUT = {
    "capabilities": {"tools": {}, "resources": {"subscribe": True}, "logging": {}},
    "serverInfo": {"name": "recorder", "version": "1"},
}
SCHEMA = {"type": "object"}
WRONG = {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "not a token"}}}
TOOLS = [{"name": "seen", "inputSchema": SCHEMA}, {"name": "wrong", "inputSchema": WRONG}]
CACHED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if IS_MODERN else {}
MODERN = {"server/discover": {"supportedVersions": [REVISION], **ABOUT, **CACHED}}
RESULTS: dict[str, Any] = {
    **(MODERN if IS_MODERN else {"initialize": {"protocolVersion": REVISION, **ABOUT}}),
    "tools/list": {"tools": TOOLS, **CACHED},
    "resources/list": {"resources": [], **CACHED},
    "logging/setLevel": {},
    "ping": {},
}
seen: list[Any] = []

for line in sys.stdin:
    message = json.loads(line)
    seen.append(message)
    if "id" not in message or "method" not in message:
        continue
    method = message["method"]
    result = {"content": [], "structuredContent": {"seen": seen}} if method == "tools/call" else RESULTS.get(method)
    error = {"error": {"code": -32601, "message": "Method not found"}}
    answer = error if result is None else {"result": result}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
