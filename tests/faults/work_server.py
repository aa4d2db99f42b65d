"""An MCP server over stdio in raw JSON-RPC, which writes each run of its tool into a ledger before it works.

`work_server.py LEDGER OFFICE COMPUTER TOOL DELAY`. It waits `DELAY` seconds before it reads its first request. It uses
the standard library alone, because a fault run starts it very often.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

LEDGER, OFFICE, COMPUTER, TOOL, DELAY = sys.argv[1:]
SCHEMA = {
    "type": "object",
    "properties": {"call": {"type": "string"}, "seconds": {"type": "number"}, "payload": {"type": "string"}},
    "required": ["call", "seconds", "payload"],
}
writing = threading.Lock()
cancelled: dict[Any, threading.Event] = {}
ledger = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def send(message: dict[str, Any]) -> None:
    with writing:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def initialize(request: dict[str, Any]) -> dict[str, Any]:
    version = request["params"]["protocolVersion"]
    return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": TOOL, "version": "1"}}


def list_tools(_: dict[str, Any]) -> dict[str, Any]:
    return {"tools": [{"name": TOOL, "description": "Work for some seconds", "inputSchema": SCHEMA}]}


def work(request: dict[str, Any], stop: threading.Event) -> None:
    arguments = request["params"]["arguments"]
    run = {"call": arguments["call"], "office": OFFICE, "computer": COMPUTER, "at": time.monotonic()}
    os.write(ledger, json.dumps(run).encode() + b"\n")  # one write: lines of several processes never mix
    if not stop.wait(arguments["seconds"]):
        seen = hashlib.sha256((arguments["call"] + arguments["payload"]).encode()).hexdigest()
        text = json.dumps({**run, "sum": seen, "payload": arguments["payload"]})
        send({"id": request["id"], "result": {"content": [{"type": "text", "text": text}]}})
    cancelled.pop(request["id"], None)


def take(message: dict[str, Any]) -> None:
    method = message.get("method")
    if method == "tools/call":
        stop = cancelled[message["id"]] = threading.Event()
        threading.Thread(target=work, args=(message, stop), daemon=True).start()
    elif method == "notifications/cancelled":
        if stopped := cancelled.get(message["params"]["requestId"]):
            stopped.set()
    elif "id" in message and (answer := ANSWERS.get(str(method))):
        send({"id": message["id"], "result": answer(message)})
    elif "id" in message:
        send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})


ANSWERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "initialize": initialize,
    "tools/list": list_tools,
    "ping": lambda _: {},
}

if __name__ == "__main__":
    time.sleep(float(DELAY))
    for line in sys.stdin:
        take(json.loads(line))
