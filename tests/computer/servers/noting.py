"""An MCP server in raw JSON-RPC that notes what begins and what is cancelled, and obeys no cancel: `noting.py NOTES`.

Named calls of `work`, the resource `note:slow`, the prompt `slow` and the completion are not answered: `begin NAME`
is noted, and at the cancel `cancel NAME`. Then it sends all that a server may send: progress, a question, changes, a
log and the result. A reply to the question is noted as `reply`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NOTES = Path(sys.argv[1])
CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {},
    "completions": {},
    "logging": {},
}
WORK = {"type": "object", "properties": {"name": {"type": "string"}}}
running: dict[Any, tuple[str, Any]] = {}


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def note(line: str) -> None:
    with NOTES.open("a") as file:
        file.write(f"{line}\n")


def name_of(method: str, params: dict[str, Any]) -> str:
    """What is not answered in time; empty for all else."""
    match method:
        case "tools/call":
            return str(params["arguments"].get("name", ""))
        case "resources/read" if params["uri"] == "note:slow":
            return "resource"
        case "prompts/get" if params["name"] == "slow":
            return "prompt"
        case "completion/complete" if params["argument"]["value"] == "slow":
            return "completion"
    return ""


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            about = {"capabilities": CAPABILITIES, "serverInfo": {"name": "noting", "version": "1"}}
            return {"result": {"protocolVersion": params["protocolVersion"], **about}}
        case "tools/list":
            return {"result": {"tools": [{"name": "work", "inputSchema": WORK}]}}
        case "tools/call":
            return {"result": {"content": [{"type": "text", "text": "did nothing"}]}}
        case "resources/list":
            listed = ("note:slow", "note:quick", "window://noting/one")
            return {"result": {"resources": [{"uri": uri, "name": uri} for uri in listed]}}
        case "resources/read":
            return {"result": {"contents": [{"uri": params["uri"], "text": "quick"}]}}
        case "prompts/list":
            return {"result": {"prompts": [{"name": "slow"}]}}
        case "resources/subscribe" | "resources/unsubscribe" | "logging/setLevel" | "ping":
            return {"result": {}}
    return {"error": {"code": -32601, "message": "Method not found"}}


def disobey(identity: Any, token: Any) -> None:
    if token is not None:
        send(method="notifications/progress", params={"progressToken": token, "progress": 7, "message": "goes on"})
    send(method="notifications/resources/updated", params={"uri": "note:quick"})
    send(method="notifications/message", params={"level": "error", "data": "goes on"})
    send(id="question", method="elicitation/create", params={"message": "More?", "requestedSchema": {"type": "object"}})
    send(id=identity, result={"content": [{"type": "text", "text": "done all the same"}]})


for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params") or {}
    if method == "notifications/cancelled" and params["requestId"] in running:
        name, token = running.pop(params["requestId"])
        note(f"cancel {name}")
        disobey(params["requestId"], token)
    elif method is None:
        note("reply")
    elif "id" in message and (name := name_of(method, params)):
        running[message["id"]] = name, params.get("_meta", {}).get("progressToken")
        note(f"begin {name}")
    elif "id" in message:
        send(id=message["id"], **answer(method, params))
