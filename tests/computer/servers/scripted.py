"""An MCP server in raw JSON-RPC that does what the arguments of a call say: `scripted.py modern|older`.

`answers`: what the calls of this `key` are answered with, one after the other, the last one again and again:
`{"result": …}`, `{"error": …}`, `{"silent": 1}`, `{"ask": [requests], "then": …}` (to the client; without `then` the
result holds its replies).
`tasks`: for each task id what `tasks/get` answers (`polls`), what follows an update (`updated`), and what
`tasks/result` answers (`result`, one of the answers above). `notify`: notifications that are sent before the answer.
The tool `heard` returns all that the client has sent.
"""

from __future__ import annotations

import json
import sys
from typing import Any

MODERN = sys.argv[1:] == ["modern"]
NOT_FOUND = {"code": -32601, "message": "Method not found"}
heard: list[dict[str, Any]] = []
answers: dict[str, list[dict[str, Any]]] = {}
tasks: dict[str, dict[str, Any]] = {}
asking: dict[str, dict[str, Any]] = {}
ANY, NULLABLE = {"inputSchema": {"type": "object"}}, {"outputSchema": {"type": ["object", "null"]}}
LONG = {"title": "A long one", "icons": [{"src": "data:image/png;base64,AA=="}]}
TOOLS: list[dict[str, Any]] = [
    {"name": "plain", **ANY},
    {"name": "long", **LONG, **ANY, **NULLABLE, "execution": {"taskSupport": "required"}},
    {"name": "maybe", **ANY, "execution": {"taskSupport": "optional"}},
    {"name": "heard", **ANY},
]


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def next_of(script: list[Any]) -> Any:
    return script.pop(0) if len(script) > 1 else script[0]


def answer(request: dict[str, Any], script: dict[str, Any]) -> None:
    if "ask" in script:
        ids = [f"{request['id']}-{number}" for number in range(len(script["ask"]))]
        waiting = {"request": request, "missing": set(ids), "replies": {}, "then": script.get("then")}
        for id_, asked in zip(ids, script["ask"], strict=True):
            asking[id_] = waiting
            send({"id": id_, **asked})
    elif "silent" not in script:
        send({"id": request["id"], **script})


def replied(waiting: dict[str, Any]) -> dict[str, Any]:
    return {"result": {"content": [], "structuredContent": {"replies": waiting["replies"]}}}


def reply(message: dict[str, Any]) -> None:
    waiting = asking.pop(message["id"], None)
    if waiting is None:
        return
    waiting["missing"].discard(message["id"])
    waiting["replies"][message["id"].rpartition("-")[2]] = message
    if waiting["missing"]:
        return
    answer(waiting["request"], waiting["then"] or replied(waiting))


def call(request: dict[str, Any]) -> None:
    params = request["params"]
    arguments = params.get("arguments") or {}
    if params["name"] == "heard":
        answer(request, {"result": {"content": [], "structuredContent": {"heard": heard}}})
        return
    for message in arguments.get("notify", []):
        send(message)
    for id_, task in arguments.get("tasks", {}).items():
        tasks.setdefault(id_, {**task, "polls": list(task["polls"])})
    key = arguments.get("key", "")
    script = arguments.get("answers", [{"result": {"content": [], "echo": params}}])
    answer(request, next_of(answers.setdefault(key, list(script))))


def get_task(request: dict[str, Any]) -> None:
    task = tasks.get(request["params"]["taskId"])
    if task is None:
        answer(request, {"error": {"code": -32602, "message": "Task not found"}})
    else:
        polled = next_of(task["polls"])
        answer(request, polled if polled.keys() == {"error"} else {"result": polled})


def update_task(request: dict[str, Any]) -> None:
    task = tasks[request["params"]["taskId"]]
    task["polls"] = task.get("updated", task["polls"])
    answer(request, {"result": {"resultType": "complete"}})


def discover(request: dict[str, Any]) -> None:
    if not MODERN:
        answer(request, {"error": NOT_FOUND})
        return
    capabilities: Any = {"tools": {}, "resources": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
    found = {"supportedVersions": ["2026-07-28"], "capabilities": capabilities, "ttlMs": 0, "cacheScope": "private"}
    answer(request, {"result": {"resultType": "complete", **found}})


def initialize(request: dict[str, Any]) -> None:
    capabilities: Any = {"tools": {}, "logging": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}
    info = {"name": "scripted", "version": "1"}
    result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
    answer(request, {"result": result})


def listed(name: str, items: list[Any]) -> dict[str, Any]:
    cached = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    return {"result": {name: items, **(cached if MODERN else {})}}


def read(request: dict[str, Any]) -> None:
    """The script of a resource is its URI: `script:{"answers": …}`."""
    script = json.loads(request["params"]["uri"].partition(":")[2])
    answer(request, next_of(answers.setdefault(script["key"], script["answers"])))


HANDLERS = {
    "server/discover": discover,
    "initialize": initialize,
    "tools/list": lambda request: answer(request, listed("tools", TOOLS)),
    "resources/list": lambda request: answer(request, listed("resources", [])),
    "resources/read": read,
    "tools/call": call,
    "tasks/get": get_task,
    "tasks/update": update_task,
    "tasks/result": lambda request: answer(request, tasks[request["params"]["taskId"]]["result"]),
    "tasks/cancel": lambda request: answer(request, {"result": {}}),
    "logging/setLevel": lambda request: answer(request, {"result": {}}),
    "ping": lambda request: answer(request, {"result": {}}),
}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        heard.append(message)
        if "method" not in message:
            reply(message)
        elif "id" in message:
            HANDLERS.get(message["method"], lambda request: answer(request, {"error": NOT_FOUND}))(message)


if __name__ == "__main__":
    main()
