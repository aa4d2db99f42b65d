"""An MCP server in raw JSON-RPC with resources and prompts: `library.py ERA NOTES [MODE]`, over stdio.

ERA is `older` (2025-11-25) or `newer` (2026-07-28). What is subscribed to is added to the file of notes, a line each.
MODE `hostile` lists what no server should, `forgetful` one tool more each time, which it allows to be kept for a
millisecond and does not announce. A resource is read, or a prompt is got, by what its name says.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from itertools import count
from pathlib import Path
from queue import Queue
from typing import Any

ERA, NOTES, MODE = [*sys.argv[1:], ""][:3]
NEWER = ERA == "newer"
HOSTILE, FORGETFUL, TALKATIVE = MODE == "hostile", MODE == "forgetful", MODE == "talkative"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
SECRET = os.environ.get("LIBRARY_TOKEN", "no secret")
ICONS = [{"src": "https://example.org/icon.png", "mimeType": "image/png"}]
INFO = {"name": "library", "title": "The Library", "version": "1.2", "icons": ICONS}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PASSWORD = {"type": "object", "properties": {"password": {"type": "string"}}, "required": ["password"]}
READING = {"resources": {"listChanged": True, "subscribe": True}, "prompts": {"listChanged": True}, "completions": {}}
CAPABILITIES = {"tools": {}, **({} if FORGETFUL else READING)}
UNKNOWN = -32602 if NEWER else -32002

resources: list[Any] = [
    {
        "uri": "file:///notes.txt",
        "name": "notes",
        "title": "Notes",
        "icons": ICONS,
        "description": "What was said",
        "mimeType": "text/plain",
        "size": 5,
        "annotations": {"audience": ["user"], "priority": 0.3, "lastModified": "2026-01-01T00:00:00Z"},
        "_meta": {"own": {"deep": 1}, "a2c_blob_handle": "forged"},
    },
    {"uri": "ui://library/view", "name": "view", "mimeType": "text/html;profile=mcp-app"},
    {"uri": f"file:///private/{SECRET}.txt", "name": "private"},
]
if TALKATIVE:
    resources += [{"uri": "ask:x", "name": "ask"}, {"uri": "error:-32050", "name": "error"}]
BROKEN: list[Any] = [
    "not even an object",
    {"name": "without a URI"},
    {"uri": 7, "name": "number"},
    {"uri": "file:///" + "x" * 3000, "name": "too long"},
    {"uri": "file:///large", "name": "large", "description": "x" * 70_000},
    {"uri": "file:///odd", "size": "five", "annotations": "none", "description": 7},
]
prompts: list[Any] = [
    {
        "name": "greet",
        "title": "A greeting",
        "description": "Greets somebody",
        "icons": ICONS,
        "arguments": [{"name": "who", "description": "whom", "required": True}, {"name": 7}, "odd"],
    },
    {"name": "ask"},
    {"name": "sign"},
]
TEMPLATES: list[Any] = [
    {"uriTemplate": "file:///{path}", "name": "files", "title": "Files", "mimeType": "text/plain", "icons": ICONS},
    {"uriTemplate": "row://{table}/{id}"},
    {"name": "without a pattern"},
]
tools = ["touch", "rename", "end_stream", "die", "subscriptions"]

speaking = threading.Lock()
questions = count(1)
answers: dict[str, Queue[dict[str, Any]]] = {}
subscribed: set[str] = set()
streams: dict[Any, dict[str, Any]] = {}


def send(**message: Any) -> None:
    with speaking:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def note(line: str) -> None:
    with Path(NOTES).open("a") as notes:
        notes.write(f"{line}\n")


class Refused(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        self.error = {"code": code, "message": message, **({} if data is None else {"data": data})}


# What clients are told


def tell(kind: str, method: str, **params: Any) -> None:
    """Tell those who listen for it. `kind` is a URI, or the field of MCP's filter."""
    if not NEWER:
        if not method.endswith("updated") or kind in subscribed:
            send(method=method, params=params)
        return
    for identity, wanted in list(streams.items()):
        if kind in wanted.get("resourceSubscriptions", []) or wanted.get(kind) is True:
            send(method=method, params={**params, "_meta": {SUBSCRIPTION: identity}})


def touch(uri: str, part: str = "") -> str:
    tell(uri, "notifications/resources/updated", uri=uri + part)
    return uri


def rename(what: str) -> str:
    tell(f"{what}ListChanged", f"notifications/{what}/list_changed")
    return what


def end_stream() -> str:
    """End all streams properly, so that the client has to open them again."""
    for identity in list(streams):
        del streams[identity]
        send(id=identity, result={"resultType": "complete"})
    return "ended"


def die() -> None:
    os._exit(1)


def subscriptions() -> str:
    listened = {uri for wanted in streams.values() for uri in wanted.get("resourceSubscriptions", [])}
    return json.dumps(sorted(listened if NEWER else subscribed))


def listen(identity: Any, params: dict[str, Any]) -> None:
    wanted = params["notifications"]
    if uris := wanted.get("resourceSubscriptions"):
        wanted = {**wanted, "resourceSubscriptions": [uri for uri in uris if not uri.startswith("refused:")]}
    streams[identity] = wanted
    note(f"listen {' '.join(wanted.get('resourceSubscriptions', []))}")
    method = "notifications/subscriptions/acknowledged"
    send(method=method, params={"notifications": wanted, "_meta": {SUBSCRIPTION: identity}})


# Questions


class Asked(Exception):
    """The result that asks for input (2026-07-28)."""


def ask(params: dict[str, Any], message: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The client's answer to a question."""
    form = {"mode": "form", "message": message, "requestedSchema": schema}
    return inputs(params, q=("elicitation/create", form))["q"]


def inputs(params: dict[str, Any], **wanted: tuple[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The client's responses to requests for input: one after the other, or all at once."""
    if not NEWER:
        return {name: pushed(*each) for name, each in wanted.items()}
    if "inputResponses" not in params:
        raise Asked({name: {"method": method, "params": about} for name, (method, about) in wanted.items()})
    if params.get("requestState") != "state":
        raise Refused(-32602, "wrong state")
    return {name: dict(params["inputResponses"][name]) for name in wanted}


def pushed(method: str, params: dict[str, Any]) -> dict[str, Any]:
    identity = f"q{next(questions)}"
    queue = answers[identity] = Queue()
    send(id=identity, method=method, params=params)
    return dict(queue.get().get("result", {}))


def several(params: dict[str, Any]) -> str:
    """What a model, the roots and a person say."""
    text = {"role": "user", "content": {"type": "text", "text": "Where?"}}
    found = inputs(
        params,
        model=("sampling/createMessage", {"messages": [text], "maxTokens": 9}),
        roots=("roots/list", {}),
        person=("elicitation/create", {"mode": "form", "message": "Which city?", "requestedSchema": CITY}),
    )
    roots = [each["uri"] for each in found["roots"].get("roots", ())]
    return f"{found['model'].get('model')} {roots} {told(found['person'], 'city')}"


def told(answer: dict[str, Any], field: str) -> str:
    return str(answer["content"][field]) if answer.get("action") == "accept" else f"nobody: {answer.get('action')}"


# Requests


def page(field: str, items: list[Any], params: dict[str, Any]) -> dict[str, Any]:
    """Two at a time; the cursor is the number of the first."""
    cursor = params.get("cursor")
    if cursor is not None and not str(cursor).isdecimal():
        raise Refused(-32602, f"Invalid cursor {cursor}")
    begin = int(cursor or 0)
    rest = {"nextCursor": str(begin + 2)} if len(items) > begin + 2 else {}
    return {field: items[begin : begin + 2], **rest, **cached(60_000), "_meta": {"seen": SECRET, "a2c_x": 1}}


def cached(milliseconds: int = 0) -> dict[str, Any]:
    return {"ttlMs": milliseconds, "cacheScope": "private"} if NEWER else {}


def hostile_page(field: str, params: dict[str, Any]) -> dict[str, Any]:
    """A list without an end, with broken entries in each page; or everything at once."""
    cursor = params.get("cursor")
    if cursor in ("many", "heavy"):
        number, size = (2500, 200) if cursor == "many" else (40, 60_000)
        items = [{"uri": f"file:///{n}", "name": f"n{n}", "description": "y" * size} for n in range(number)]
        return {field: items, **cached()}
    return {field: BROKEN, "nextCursor": str(int(cursor or 0) + 1), **cached()}


def read(params: dict[str, Any]) -> dict[str, Any]:
    uri: str = params["uri"]
    scheme, _, rest = uri.partition(":")
    match scheme:
        case "ask":
            text = told(ask(params, "Which city?", CITY), "city")
        case "sign":
            text = told(ask(params, "Your password, please", PASSWORD), "password")
        case "several":
            text = several(params)
        case "text":
            text = "x" * int(rest)
        case "blob":
            data = base64.b64encode(b"\x89PNG" * (int(rest) // 4)).decode()
            return {"contents": [{"uri": uri, "mimeType": "image/png", "blob": data}], **cached()}
        case "bad":
            return {"contents": json.loads(rest), **cached()}
        case "error":
            raise Refused(int(rest), f"it is {SECRET}", {"token": SECRET})
        case "file" | "ui" if uri in [each["uri"] for each in resources]:
            text = f"{uri} says {SECRET}" if "private" in uri else "hello"
        case _:
            raise Refused(UNKNOWN, f"Unknown resource: {uri}", {"uri": uri})
    meta = {"_meta": {"a2c_blob_handle": "forged", "own": 1}}
    return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": text, **meta}, "odd"], **cached(60_000), **meta}


def get_prompt(params: dict[str, Any]) -> dict[str, Any]:
    arguments = params.get("arguments") or {}
    match params["name"]:
        case "greet" if "who" not in arguments:
            raise Refused(-32602, "Missing argument: who") if NEWER else Refused(-32603, "Internal server error")
        case "greet":
            text = f"Say hello to {arguments['who']}, not to {SECRET}"
        case "ask":
            text = told(ask(params, "Which city?", CITY), "city")
        case "sign":
            text = told(ask(params, "Your password, please", PASSWORD), "password")
        case "several":
            text = several(params)
        case "fails":
            raise Refused(-32050, f"it is {SECRET}")
        case name:
            raise Refused(-32602, f"Unknown prompt: {name}")
    image = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"x" * 40_000).decode()}
    messages = [{"role": "user", "content": {"type": "text", "text": text}}, {"role": "user", "content": image}, "odd"]
    return {"description": "A prompt", "messages": messages}


def complete(params: dict[str, Any]) -> dict[str, Any]:
    ref, typed = params["ref"], params["argument"]["value"]
    if ref.get("name") == "unknown":
        raise Refused(-32602, "Unknown prompt")
    known = sorted(params.get("context", {}).get("arguments", {}).values())
    values = [f"{typed}{n}" for n in range(150)] if typed == "many" else [f"{typed}-1", SECRET, *known]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}


def call(params: dict[str, Any]) -> dict[str, Any]:
    said = globals()[params["name"]](**(params.get("arguments") or {}))
    return {"content": [{"type": "text", "text": str(said)}]}


def list_tools() -> dict[str, Any]:
    said = {"title": "A tool", "icons": ICONS, "_meta": {"ui": {"resourceUri": "ui://library/view"}, "n": 1}}
    listed = [{"name": name, "inputSchema": {"type": "object"}, **(said if TALKATIVE else {})} for name in tools]
    if FORGETFUL:
        tools.append(f"tool{len(tools)}")
    return {"tools": listed, **cached(1 if FORGETFUL else 0)}


def initialize(_: dict[str, Any]) -> dict[str, Any]:
    if NEWER:
        raise Refused(-32022, "Unsupported protocol version", {"supported": ["2026-07-28"], "requested": "x"})
    return {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": INFO, **ABOUT}


def discover(_: dict[str, Any]) -> dict[str, Any]:
    if not NEWER:
        raise Refused(-32601, "Method not found")
    meta = {"_meta": {"io.modelcontextprotocol/serverInfo": INFO}}
    return {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, **ABOUT, **cached(), **meta}


ABOUT = {"instructions": f"Read the notes first. The key is {SECRET}."}


def subscribe(params: dict[str, Any]) -> dict[str, Any]:
    if params["uri"].startswith("refused:"):
        raise Refused(UNKNOWN, f"Unknown resource: {params['uri']}")
    subscribed.add(params["uri"])
    note(f"subscribe {params['uri']}")
    return {}


def unsubscribe(params: dict[str, Any]) -> dict[str, Any]:
    subscribed.discard(params["uri"])
    note(f"unsubscribe {params['uri']}")
    return {}


def listed(field: str, items: list[Any], params: dict[str, Any]) -> dict[str, Any]:
    return hostile_page(field, params) if HOSTILE else page(field, items, params)


HANDLERS: dict[str, Any] = {
    "initialize": initialize,
    "server/discover": discover,
    "ping": lambda params: {},
    "tools/list": lambda params: list_tools(),
    "tools/call": call,
    "resources/list": lambda params: listed("resources", resources, params),
    "resources/templates/list": lambda params: listed("resourceTemplates", TEMPLATES, params),
    "resources/read": read,
    "prompts/list": lambda params: listed("prompts", prompts, params),
    "prompts/get": get_prompt,
    "completion/complete": complete,
    **({} if NEWER else {"resources/subscribe": subscribe, "resources/unsubscribe": unsubscribe}),
}


def attend(request: dict[str, Any]) -> None:
    try:
        handler = HANDLERS.get(request["method"])
        if handler is None:
            raise Refused(-32601, "Method not found")
        result = handler(request.get("params") or {})
    except Refused as refused:
        send(id=request["id"], error=refused.error)
    except Asked as asked:
        result = {"resultType": "input_required", "inputRequests": asked.args[0], "requestState": "state"}
        send(id=request["id"], result=result)
    else:
        send(id=request["id"], result={**result, **({"resultType": "complete"} if NEWER else {})})


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method = message.get("method")
        if method == "notifications/cancelled":
            if streams.pop(message["params"]["requestId"], None) is None:
                note("cancelled")
        elif method == "subscriptions/listen" and NEWER:
            listen(message["id"], message["params"])
        elif method is None:
            answers.pop(message["id"], Queue()).put(message)
        elif "id" in message:
            threading.Thread(target=attend, args=(message,), daemon=True).start()


if __name__ == "__main__":
    main()
