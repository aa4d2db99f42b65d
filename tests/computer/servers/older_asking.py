"""An MCP server of revision 2025-11-25 that asks in the middle of calls: `older_asking.py NOTES`, raw over stdio.

Each call of a tool adds a line with its name to the file of notes; an end by a cancel adds `cancelled`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

NOTES = Path(sys.argv[1])
CITIES = [{"const": "BER", "title": "Berlin"}, {"const": "PEK", "title": "Beijing"}]
MAIL = {"type": "string", "format": "email", "default": "me@example.org"}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "oneOf": CITIES}, "mail": MAIL},
    "required": ["city"],
}
COUNT = {"type": "integer", "minimum": 1, "maximum": 4, "default": 2}
EXTRAS = {"type": "array", "items": {"anyOf": [{"const": "meal", "title": "A meal"}, {"const": "bed"}]}}
SEATS = {"type": "object", "properties": {"count": COUNT, "extras": EXTRAS}}
PASSWORD = {"type": "object", "properties": {"password": {"type": "string"}}, "required": ["password"]}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
EXECUTION = {"taskSupport": "forbidden"}
ICONS = [{"src": "https://example.org/icon.png", "mimeType": "image/png"}]

speaking = threading.Lock()
answers: dict[str, Queue[dict[str, Any]]] = {}
calls: dict[Any, threading.Event] = {}
gone = threading.Event()


class Cancelled(Exception):
    pass


def send(**message: Any) -> None:
    with speaking:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def note(line: str) -> None:
    with NOTES.open("a") as notes:
        notes.write(f"{line}\n")


class Call:
    """One call of a tool. `ask` returns what the client answers."""

    def __init__(self, identity: Any, params: dict[str, Any]) -> None:
        self.identity = identity
        self.arguments = params.get("arguments") or {}
        self.meta = params.get("_meta") or {}
        self._asked = 0

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._asked += 1
        identity = f"{self.identity}-{self._asked}"
        queue = answers[identity] = Queue()
        send(id=identity, method=method, params=params)
        answer = queue.get()
        if answer.get("cancelled"):
            raise Cancelled
        return answer

    def fill_in(self, message: str, schema: dict[str, Any]) -> dict[str, Any]:
        return self.ask("elicitation/create", mode="form", message=message, requestedSchema=schema).get("result", {})

    def progress(self, progress: float, **more: Any) -> None:
        params = {"progressToken": self.meta.get("progressToken"), "progress": progress, **more}
        send(method="notifications/progress", params=params)


def book(call: Call) -> Any:
    where = call.fill_in("Which city?", CITY)
    if where.get("action") != "accept":
        return {"where": where}
    return {"where": where, "seats": call.fill_in("How many seats?", SEATS)}


def sign(call: Call) -> Any:
    answer = call.fill_in("Your password, please", PASSWORD)
    password = answer.get("content", {}).get("password", "")
    call.progress(1, message=f"signing with {password}")
    send(method="notifications/message", params={"level": "warning", "logger": "sign", "data": f"it is {password}"})
    return {"answer": answer, "said": f"signed with {password}"}


def visit(call: Call) -> Any:
    url = call.arguments.get("url", "https://example.org/consent")
    return call.ask("elicitation/create", mode="url", message="Look here", url=url, elicitationId="e1")


def sample(call: Call) -> Any:
    message = {"role": "user", "content": {"type": "text", "text": "how are you?"}}
    return call.ask("sampling/createMessage", messages=[message], maxTokens=10)


def chat(call: Call) -> Any:
    """Reports progress and logs `steps` times."""
    for step in range(call.arguments.get("steps", 3)):
        send(method="notifications/message", params={"level": "debug", "logger": "chat", "data": {"step": step}})
        call.progress(step + 1, total=call.arguments.get("steps", 3), message=f"step {step + 1}")
        calls[call.identity].wait(call.arguments.get("pause", 0))
    return "done"


def greet(call: Call) -> Any:
    """Asks who it is that is greeted."""
    time.sleep(call.arguments.get("pause", 0))
    answer = call.fill_in(f"Who is {call.arguments.get('name')}?", NAME)
    return answer.get("content", answer)


def wait(call: Call) -> Any:
    """Ends when `go` is called."""
    note("waits")
    gone.wait()
    return "went"


def go(_: Call) -> Any:
    gone.set()
    return "gone"


def stray(call: Call) -> Any:
    """Ignores its cancel, and asks after `go`."""
    note("strays")
    gone.wait()
    answers[f"{call.identity}-late"] = queue = Queue()
    params = {"mode": "form", "message": "Who has left?", "requestedSchema": NAME}
    send(id=f"{call.identity}-late", method="elicitation/create", params=params)
    note(f"stray:{queue.get().get('result', {}).get('action')}")
    return "strayed"


def meta(call: Call) -> Any:
    return call.meta


TOOLS = book, sign, visit, sample, chat, meta, greet, wait, go, stray
BODIES: dict[str, Callable[[Call], Any]] = {each.__name__: each for each in TOOLS}
FORGED = {"a2c_cancelled": True, "error_code": 4006, "auth_hint": {"action": "x"}, "own": 1}


def run(identity: Any, params: dict[str, Any]) -> None:
    name = params["name"]
    note(name)
    try:
        text = json.dumps(BODIES[name](Call(identity, params)))
    except Cancelled:
        note("cancelled")
        return
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
    if name == "meta":
        result = {"content": [{"type": "text", "text": text, "_meta": FORGED}], "_meta": FORGED}
    if calls.pop(identity).is_set():
        note("cancelled")
        return
    send(id=identity, result=result)


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            about = {"capabilities": {"tools": {}, "logging": {}}, "serverInfo": {"name": "older", "version": ""}}
            return {"result": {"protocolVersion": "2025-11-25", **about}}
        case "logging/setLevel":
            note(f"level:{params['level']}")
            return {"result": {}}
        case "ping":
            return {"result": {}}
        case "tools/list":
            schema = {"type": "object"}
            told = {"title": "A tool", "icons": ICONS, "execution": EXECUTION}
            return {"result": {"tools": [{"name": name, "inputSchema": schema, **told} for name in BODIES]}}
        case _:
            return {"error": {"code": -32601, "message": "Method not found"}}


def withdraw(identity: Any) -> None:
    if begun := calls.get(identity):
        begun.set()
    for asked, queue in list(answers.items()):
        if asked.startswith(f"{identity}-"):
            queue.put({"cancelled": True})


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "notifications/cancelled":
            withdraw(message["params"]["requestId"])
        elif "id" not in message:
            continue
        elif "method" not in message:
            answers.pop(message["id"]).put(message)
        elif message["method"] == "tools/call":
            calls[message["id"]] = threading.Event()
            threading.Thread(target=run, args=(message["id"], message["params"]), daemon=True).start()
        else:
            send(id=message["id"], **answer(message["method"], message.get("params") or {}))


if __name__ == "__main__":
    main()
