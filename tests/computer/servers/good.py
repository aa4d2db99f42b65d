"""A well-behaved MCP server in raw JSON-RPC over stdio. It does what `sdk.py` does, without the second of imports."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

CAPABILITIES = {"tools": {"listChanged": True}, "resources": {"listChanged": True, "subscribe": True}}
MISSING = -32601
TYPES = {int: "integer", float: "number", str: "string", None: "null"}

windows = {"window://good/one?priority=5": "first", "window://good/two": "second"}
annotations: dict[str, dict[str, Any]] = {}
tools: dict[str, dict[str, Any]] = {}
bodies: dict[str, Callable[..., Any]] = {}
cancelled: dict[Any, threading.Event] = {}
subscribed: set[str] = set()
speaking = threading.Lock()


def send(**message: Any) -> None:
    with speaking:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def tool(returns: type | None = None, /, **parameters: Any) -> Callable[[Callable[..., Any]], None]:
    """Parameters have a type, or a default value."""

    def offer(body: Callable[..., Any]) -> None:
        fields = {name: _field(name, kind) for name, kind in parameters.items()}
        needed = [name for name, kind in parameters.items() if isinstance(kind, type)]
        tools[body.__name__] = {
            "name": body.__name__,
            "description": body.__doc__,
            "inputSchema": _schema(f"{body.__name__}Arguments", fields, needed),
            "outputSchema": _schema(f"{body.__name__}Output", {"result": _field("result", returns)}, ["result"]),
        }
        bodies[body.__name__] = body

    return offer


def _field(name: str, kind: Any) -> dict[str, Any]:
    if kind is None or isinstance(kind, type):
        return {"title": name.title(), "type": TYPES[kind]}
    return {"default": kind, "title": name.title(), "type": TYPES[type(kind)]}


def _schema(title: str, fields: dict[str, Any], needed: list[str]) -> dict[str, Any]:
    return {"properties": fields, **({"required": needed} if needed else {}), "type": "object", "title": title}


@tool(int, a=int, b=int)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(str, steps=10, pause=0.1)
def slow(steps: int = 10, pause: float = 0.1, *, token: Any, gone: threading.Event) -> str:
    """Takes its time, and tells how far it is."""
    for step in range(1, steps + 1):
        if token is not None:
            progress = {"progressToken": token, "progress": step, "total": steps, "message": f"step {step}"}
            send(method="notifications/progress", params=progress)
        gone.wait(pause)
    return "done"


@tool(str, size=int)
def big(size: int) -> str:
    """A text of `size` characters."""
    return "x" * size


@tool()
def crash() -> None:
    """Ends the server in the middle of the call."""
    print("crashing as asked", file=sys.stderr, flush=True)
    os._exit(3)


@tool()
def fail() -> None:
    """Raises."""
    raise ValueError("this tool always fails")


@tool()
def environment() -> dict[str, str]:
    """What this server sees of the world."""
    return {**os.environ, "CWD": str(Path.cwd())}


tools["environment"]["outputSchema"] = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "title": "environmentDictOutput",
}


@tool(str, uri=str, text=str, priority=0.0)
def open_window(uri: str, text: str, priority: float = 0) -> str:
    """Shows one more window. A priority is in its annotations."""
    windows[uri] = text
    if priority:
        annotations[uri] = {"priority": priority}
    send(method="notifications/resources/list_changed")
    return uri


@tool(str, uri=str)
def touch_window(uri: str) -> str:
    """Says that a window has changed."""
    if uri in subscribed:
        send(method="notifications/resources/updated", params={"uri": uri})
    return uri


@tool(str, name=str)
def grow(name: str) -> str:
    """Adds a tool that says its own name."""
    tools[name] = {"name": name, "description": f"Says {name}.", "inputSchema": _schema("<lambda>Arguments", {}, [])}
    bodies[name] = lambda: name
    send(method="notifications/tools/list_changed")
    return name


def call(name: str, arguments: dict[str, Any], **context: Any) -> dict[str, Any]:
    if name not in bodies:
        return _text(f"Unknown tool: {name}", is_error=True)
    try:
        found = bodies[name](**arguments, **(context if name == "slow" else {}))
    except Exception as error:
        print(f"Tool {name!r} raised {error!r}", file=sys.stderr, flush=True)
        return _text(f"Error executing tool {name}", is_error=True)
    result = _text(json.dumps(found, indent=2) if isinstance(found, dict) else str(found))
    if "outputSchema" in tools[name]:
        result["structuredContent"] = found if isinstance(found, dict) else {"result": found}
    return result


def _resource(uri: str) -> dict[str, Any]:
    listed = {"mimeType": "text/plain", "name": uri, "uri": uri}
    return {**listed, "annotations": annotations[uri]} if uri in annotations else listed


def _text(text: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"content": [{"text": text, "type": "text"}], "isError": is_error}


def answer(method: str, params: dict[str, Any], identity: Any) -> dict[str, Any]:
    match method:
        case "initialize":
            server = {"name": "good", "version": ""}
            version = params["protocolVersion"]
            return {"result": {"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": server}}
        case "ping":
            return {"result": {}}
        case "tools/list":
            return {"result": {"tools": list(tools.values())}}
        case "resources/list":
            return {"result": {"resources": [_resource(uri) for uri in windows]}}
        case "resources/read" if (uri := params["uri"]) in windows:
            return {"result": {"contents": [{"mimeType": "text/plain", "text": windows[uri], "uri": uri}]}}
        case "resources/read":
            return {"error": {"code": -32602, "message": f"Unknown resource: {uri}", "data": {"uri": uri}}}
        case "resources/subscribe":
            subscribed.add(params["uri"])
            return {"result": {}}
        case "resources/unsubscribe":
            subscribed.discard(params["uri"])
            return {"result": {}}
        case "tools/call":
            token = params.get("_meta", {}).get("progressToken")
            arguments = params.get("arguments") or {}
            return {"result": call(params["name"], arguments, token=token, gone=cancelled[identity])}
        case _:
            return {"error": {"code": MISSING, "message": "Method not found", "data": method}}


def attend(request: dict[str, Any]) -> None:
    identity = request["id"]
    cancelled[identity] = threading.Event()
    reply = answer(request["method"], request.get("params") or {}, identity)
    if not cancelled.pop(identity).is_set():
        send(id=identity, **reply)


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("method") == "notifications/cancelled":
            if begun := cancelled.get(request["params"]["requestId"]):
                begun.set()
        elif "id" not in request or "method" not in request:
            continue
        elif request["method"] == "tools/call" and request["params"]["name"] == "slow":
            threading.Thread(target=attend, args=(request,), daemon=True).start()
        else:
            attend(request)


if __name__ == "__main__":
    main()
