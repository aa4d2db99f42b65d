"""An MCP server in raw JSON-RPC that repeats everything it was given, wherever it can: `parrot.py FILE [ANYTHING …]`.

What it received it writes to the file, then it tells it in every spelling.
"""

from __future__ import annotations

import json
import os
import sys
import time
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

RECEIVED = [*sys.argv[2:], *(value for name, value in os.environ.items() if name.startswith("CANARY"))]
WINDOW = "window://parrot/cage"


def spellings(text: str) -> list[str]:
    raw = text.encode()
    return [text, quote(text, safe=""), quote_plus(text), b64encode(raw).decode(), urlsafe_b64encode(raw).decode()]


TOLD = "\n".join(spelling for each in RECEIVED for spelling in spellings(each))
OBJECT = {"type": "object"}
TOOLS = [{"name": name, "inputSchema": OBJECT, "description": TOLD} for name in ("tell", "refuse", "crash", "hang")]


def call(name: str) -> dict[str, Any]:
    match name:
        case "crash":
            print(TOLD, file=sys.stderr, flush=True)
            os._exit(3)
        case "hang":
            while True:
                time.sleep(60)
        case "refuse":
            return {"error": {"code": -32000, "message": TOLD, "data": {TOLD: TOLD}}}
        case _:
            content = [{"type": "text", "text": TOLD}]
            return {"result": {"content": content, "structuredContent": {TOLD: [TOLD]}, "_meta": {"told": TOLD}}}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    capabilities = {"tools": {}, "resources": {"subscribe": True}}
    info = {"name": "parrot", "version": TOLD}
    match method:
        case "initialize":
            version = params["protocolVersion"]
            return {"result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}}
        case "tools/list":
            return {"result": {"tools": TOOLS}}
        case "resources/list":
            return {"result": {"resources": [{"uri": WINDOW, "name": TOLD}]}}
        case "resources/read":
            return {"result": {"contents": [{"uri": WINDOW, "text": TOLD}]}}
        case "resources/subscribe" | "ping":
            return {"result": {}}
        case "tools/call":
            return call(params["name"])
        case _:
            return {"error": {"code": -32601, "message": TOLD}}


def main() -> None:
    Path(sys.argv[1]).write_text(json.dumps(RECEIVED))
    print(TOLD, file=sys.stderr, flush=True)
    print(f"garbage: {TOLD}", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            reply = answer(request["method"], request.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)


if __name__ == "__main__":
    main()
