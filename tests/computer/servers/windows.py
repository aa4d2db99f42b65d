"""An MCP server in raw JSON-RPC whose resources are those in a file, read anew for each list: `windows.py FILE`.

Its tool `announce` says that the list has changed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CAPABILITIES = {"tools": {}, "resources": {"subscribe": True, "listChanged": True}}
ABOUT = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "windows", "version": "1"}}


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


for line in sys.stdin:
    request = json.loads(line)
    match request["method"]:
        case "initialize":
            result: dict[str, Any] = {**ABOUT, "capabilities": CAPABILITIES}
        case "tools/list":
            result = {"tools": [{"name": "announce", "inputSchema": {"type": "object"}}]}
        case "resources/list":
            result = {"resources": json.loads(Path(sys.argv[1]).read_text())}
        case "tools/call":
            send(method="notifications/resources/list_changed")
            result = {"content": []}
        case "resources/subscribe" | "resources/unsubscribe" | "ping":
            result = {}
        case _:
            if "id" in request:
                send(id=request["id"], error={"code": -32601, "message": "Method not found"})
            continue
    send(id=request["id"], result=result)
