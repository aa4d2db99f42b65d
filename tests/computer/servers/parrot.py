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

OBJECT = {"type": "object"}


def spellings(text: str) -> list[str]:
    raw = text.encode()
    if "\n" in text:
        return [text, text.replace("\n", "\r\n"), text.replace("\n", "\n    "), text.replace("\n", "\\n")]
    return [text, quote(text, safe=""), quote_plus(text), b64encode(raw).decode(), urlsafe_b64encode(raw).decode()]


class Parrot:
    """Answers requests, with what it has received."""

    def __init__(self, received: list[str], cage: str = "cage") -> None:
        self.told = "\n".join(spelling for each in received for spelling in spellings(each))
        password = next((each for each in received if each.isalpha()), received[-1] if received else "")
        self.link = f"https://me:{quote(password, safe='')}@example.com/x"
        self.window = f"window://parrot/{cage}"

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        capabilities = {"tools": {}, "resources": {"subscribe": True}, "prompts": {}, "completions": {}}
        info = {"name": "parrot", "version": self.told.partition("\n")[0], "icons": [{"src": self.link}]}
        names = ("tell", "refuse", "crash", "hang")
        match method:
            case "initialize":
                version = params["protocolVersion"]
                about = {"capabilities": capabilities, "serverInfo": info, "instructions": self.told}
                return {"result": {"protocolVersion": version, **about}}
            case "tools/list":
                tools = [{"name": name, "inputSchema": OBJECT, "description": self.told} for name in names]
                return {"result": {"tools": tools}}
            case "resources/list":
                return {"result": {"resources": [{"uri": self.window, "name": self.told}]}}
            case "resources/read":
                return {"result": {"contents": [{"uri": self.window, "text": self.told}], "_meta": {"told": self.told}}}
            case "resources/templates/list":
                templates = [{"uriTemplate": self.link, "name": self.told, "_meta": {self.told: self.told}}]
                return {"result": {"resourceTemplates": templates}}
            case "prompts/list":
                arguments = [{"name": "any", "description": self.told}]
                listed = {"name": "say", "title": self.told, "description": self.told, "arguments": arguments}
                return {"result": {"prompts": [listed], "_meta": {"told": self.told}}}
            case "prompts/get" if params["name"] == "say":
                message = {"role": "user", "content": {"type": "text", "text": self.told}}
                return {"result": {"messages": [message], "description": self.told}}
            case "prompts/get":
                return {"error": {"code": -32602, "message": self.told, "data": {self.told: self.told}}}
            case "completion/complete":
                return {"result": {"completion": {"values": self.told.splitlines()}}}
            case "resources/subscribe" | "ping":
                return {"result": {}}
            case "tools/call":
                return self.call(params["name"])
            case _:
                return {"error": {"code": -32601, "message": self.told}}

    def call(self, name: str) -> dict[str, Any]:
        told = self.told
        match name:
            case "crash":
                print(told, file=sys.stderr, flush=True)
                os._exit(3)
            case "hang":
                while True:
                    time.sleep(60)
            case "refuse":
                return {"error": {"code": -32000, "message": told, "data": {told: told}}}
            case _:
                link = {"type": "resource_link", "uri": self.link, "name": told}
                structured = {told: [told], "uri": self.link, "blob": told}
                content = [{"type": "text", "text": told}, link]
                return {"result": {"content": content, "structuredContent": structured, "_meta": {"told": told}}}


def main() -> None:
    received = [*sys.argv[2:], *(value for name, value in os.environ.items() if name.startswith("CANARY"))]
    parrot = Parrot(received)
    Path(sys.argv[1]).write_text(json.dumps(received))
    print(parrot.told, file=sys.stderr, flush=True)
    print(f"garbage: {parrot.told}", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            reply = parrot.answer(request["method"], request.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)


if __name__ == "__main__":
    main()
