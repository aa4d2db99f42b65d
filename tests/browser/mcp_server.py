"""An MCP server over stdio that is easy to look at, or hostile: `mcp_server.py files|evil|names|broken`.

Plain JSON-RPC, no SDK.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

ATTACK = '<img src=x onerror="window.xss=1"><script>window.xss=1</script>\'"javascript:window.xss=1'
HOST = "\"'><script>window.xss=1<"
"""An attack that may be the host of a window's URI, which has no blanks and no slashes."""
STRING = {"type": "string"}


def tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    return {"name": name, "description": description, "inputSchema": schema}


def hinted(offered: dict[str, Any], **hints: bool) -> dict[str, Any]:
    return {**offered, "annotations": hints}


FORM = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "title": "City", "enum": ["BER", "PEK"], "enumNames": ["Berlin", "Beijing"]},
        "day": {"type": "string", "title": "Day of departure", "format": "date"},
        "seats": {"type": "integer", "title": "Seats", "minimum": 1, "maximum": 8, "default": 2},
        "extras": {
            "type": "array",
            "title": "Extras",
            "items": {"type": "string", "enum": ["window seat", "vegetarian meal", "quiet zone"]},
        },
        "insured": {"type": "boolean", "title": "With insurance", "default": True},
        "note": {"type": "string", "title": "Note for the conductor", "description": "Printed on the ticket."},
    },
    "required": ["city", "day", "seats"],
}
EVIL_FORM = {
    "type": "object",
    "properties": {
        ATTACK: {"type": "string", "title": ATTACK, "description": ATTACK},
        "pick": {"type": "string", "title": ATTACK, "enum": [ATTACK, "b"], "enumNames": [ATTACK, ATTACK]},
        "many": {"type": "array", "title": ATTACK, "items": {"type": "string", "enum": [ATTACK, "c"]}},
        "text": {"type": "string", "title": "Text", "default": ATTACK},
    },
}
TOOLS = {
    "files": [
        hinted(tool("read_file", "Reads a text file.", path=STRING), readOnlyHint=True),
        hinted(
            tool("write_file", "Writes a text file, and replaces one that is there.", path=STRING, content=STRING),
            readOnlyHint=False,
            destructiveHint=True,
        ),
        tool("plan_trip", "Books a train, and asks for what it needs to know."),
        tool("convert", "Converts many pictures, step by step.", steps={"type": "integer"}),
        tool("publish", "Publishes a page, after you have looked at it."),
        tool("crash", "Ends this server without a word."),
    ],
    "evil": [
        tool("evil", ATTACK, text=STRING),
        tool("evil_form", ATTACK),
        tool("evil_page", ATTACK),
        tool("evil_progress", ATTACK),
    ],
    "names": [tool(ATTACK, "Its name is an attack."), tool("change", "It changes.")],
    "broken": [],
}


class Server:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.text = ATTACK if kind == "evil" else "Kyoto, Friday: 2 seats\nBerlin, Monday: waiting list\n"
        self.next_id = 1000
        self.is_changed = False
        self.answers: dict[int, dict[str, Any]] = {}

    def send(self, **message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def read(self) -> dict[str, Any]:
        line = sys.stdin.readline()
        if not line:
            sys.exit()
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, **params: Any) -> dict[str, Any]:
        """The answer to a question. Whatever else comes meanwhile is answered."""
        self.next_id += 1
        own = self.next_id
        self.send(id=own, method="elicitation/create", params=params)
        while own not in self.answers:
            message = self.read()
            if "method" in message:
                self.handle(message)
            else:
                self.answers[message["id"]] = dict(message.get("result") or {"action": "error"})
        return self.answers.pop(own)

    def handle(self, message: dict[str, Any]) -> None:
        method, params = message.get("method", ""), message.get("params") or {}
        if "id" not in message or not method:
            return
        answer = getattr(self, "on_" + method.replace("/", "_"), None)
        if self.kind == "broken" and method == "initialize":
            self.send(id=message["id"], error={"code": -32000, "message": ATTACK})
        elif answer is None:
            self.send(id=message["id"], error={"code": -32601, "message": "unknown"})
        else:
            self.send(id=message["id"], result=answer(params))

    def on_initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        print("started" if self.kind == "files" else ATTACK, file=sys.stderr, flush=True)
        resources = {"subscribe": True, "listChanged": True}
        offered = {"tools": {"listChanged": True}, "resources": resources, "logging": {}}
        server = {"name": self.kind, "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": offered, "serverInfo": server}

    def on_ping(self, params: dict[str, Any]) -> dict[str, Any]:
        return {}

    on_logging_setLevel = on_resources_subscribe = on_resources_unsubscribe = on_ping  # noqa: N815

    def on_tools_list(self, params: dict[str, Any]) -> dict[str, Any]:
        first, *others = TOOLS[self.kind]
        return {"tools": [first, *({**each, "description": ATTACK} if self.is_changed else each for each in others)]}

    def on_resources_list(self, params: dict[str, Any]) -> dict[str, Any]:
        name = "Trips" if self.kind == "files" else ATTACK
        uri = f"window://{HOST}/trips" if self.kind == "names" else f"window://org.example.{self.kind}/trips"
        return {"resources": [{"uri": uri, "name": name, "description": name}]}

    def on_resources_read(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"contents": [{"uri": params["uri"], "mimeType": "text/plain", "text": self.text}]}

    def on_resources_templates_list(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"resourceTemplates": []}

    def on_tools_call(self, params: dict[str, Any]) -> dict[str, Any]:
        run = getattr(self, "call_" + params["name"], self.call_anything)
        text = run(params.get("arguments") or {}, (params.get("_meta") or {}).get("progressToken"))
        return {"content": [{"type": "text", "text": text}], "isError": text == ATTACK}

    def log(self, level: str, text: str) -> None:
        logger = self.kind if self.kind == "files" else ATTACK
        self.send(method="notifications/message", params={"level": level, "logger": logger, "data": text})

    def call_anything(self, given: dict[str, Any], token: Any) -> str:
        self.log("info", "called")
        return "called"

    def call_change(self, given: dict[str, Any], token: Any) -> str:
        self.is_changed = True
        self.send(method="notifications/tools/list_changed")
        return "changed"

    def call_read_file(self, given: dict[str, Any], token: Any) -> str:
        self.log("info", f"read {given['path']}")
        return "three lines"

    def call_write_file(self, given: dict[str, Any], token: Any) -> str:
        self.log("warning", f"{given['path']} was replaced")
        self.text += f"{given['path']}\n"
        self.send(method="notifications/resources/updated", params={"uri": "window://org.example.files/trips"})
        return f"{len(given['content'])} characters written at {time.time()}"

    def call_plan_trip(self, given: dict[str, Any], token: Any) -> str:
        return json.dumps(self.ask(message="Which train shall I book for you?", requestedSchema=FORM))

    def call_publish(self, given: dict[str, Any], token: Any) -> str:
        url = os.environ.get("PAGE", "https://example.com/preview?id=7")
        return json.dumps(self.ask(mode="url", message="Look at it first, please.", url=url, elicitationId="e1"))

    def call_convert(self, given: dict[str, Any], token: Any) -> str:
        for step in range(given["steps"]):
            self.progress(token, step + 1, given["steps"], f"picture {step + 1}")
            self.ask(message=f"Go on after {step + 1}?", requestedSchema={"type": "object", "properties": {}})
        return "converted"

    def call_crash(self, given: dict[str, Any], token: Any) -> str:
        os._exit(3)

    def progress(self, token: Any, done: int, total: int, text: str) -> None:
        params = {"progressToken": token, "progress": done, "total": total, "message": text}
        self.send(method="notifications/progress", params=params)

    def call_evil(self, given: dict[str, Any], token: Any) -> str:
        for level in ("info", "error"):
            self.log(level, ATTACK)
        return ATTACK

    def call_evil_form(self, given: dict[str, Any], token: Any) -> str:
        return json.dumps(self.ask(message=ATTACK, requestedSchema=EVIL_FORM))

    def call_evil_page(self, given: dict[str, Any], token: Any) -> str:
        return json.dumps(self.ask(mode="url", message=ATTACK, url=f"http://127.0.0.1:9/{ATTACK}", elicitationId="e2"))

    def call_evil_progress(self, given: dict[str, Any], token: Any) -> str:
        self.progress(token, 1, 3, ATTACK)
        return json.dumps(self.ask(message="?", requestedSchema={"type": "object", "properties": {}}))


if __name__ == "__main__":
    server = Server(sys.argv[1])
    while True:
        server.handle(server.read())
