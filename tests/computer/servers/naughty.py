"""A misbehaving MCP server in raw JSON-RPC: `naughty.py MODE [ARGUMENT]`. In mode `fine` it behaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

MODE, ARGUMENT = [*sys.argv[1:], "fine", ""][:2]
WINDOW = "window://naughty/clock"
FOREVER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
ECHO = {"name": "echo", "inputSchema": {"type": "object"}}
MALFORMED = [
    {"name": "no_schema"},
    {"description": "without a name"},
    "not even an object",
    {"name": "odd_parts", "inputSchema": {"type": "object"}, "annotations": "none", "description": 7, "x-extra": 1},
    ECHO,
    ECHO,
]
ODD_RESULTS: dict[str, Any] = {
    "extra": {"content": [{"type": "hologram", "data": 1}], "mood": {"deep": [1, None]}, "_meta": {"a": {"b": 1}}},
    "no_object": ["a", "list"],
    "no_content": {},
    "input": {"resultType": "input_required", "requestState": "s"},
    "numbers": {"content": [], "structuredContent": {"n": 123456789012345678901234567890, "f": 1.5}},
}
BRANCHING = {"type": "object", "additionalProperties": {"oneOf": [{"$ref": "#"}, {"$ref": "#"}, {"$ref": "#"}]}}
DOUBLING = {
    "properties": {"a": {"$ref": "#/$defs/s40"}},
    "$defs": {"s0": {"type": "string"}}
    | {f"s{n}": {"anyOf": [{"$ref": f"#/$defs/s{n - 1}"}] * 2} for n in range(1, 41)},
}
PATTERNS = {"properties": {f"p{n}": {"pattern": r"^(\w{1,200}){1,%d}$" % (40 + n)} for n in range(10)}}  # noqa: UP031
HEAVY = [
    ECHO,
    {"name": "branching", "inputSchema": BRANCHING},
    {"name": "doubling", "inputSchema": DOUBLING},
    *({"name": f"pattern{n}", "inputSchema": {**PATTERNS, "title": str(n)}} for n in range(900)),
]
lock = threading.Lock()


def send(message: dict[str, Any]) -> None:
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def answer(request: dict[str, Any], result: Any) -> None:
    send({"id": request["id"], "result": result})


def refuse(request: dict[str, Any], code: int, message: str) -> None:
    send({"id": request["id"], "error": {"code": code, "message": message}})


def notify(method: str, **params: Any) -> None:
    send({"method": f"notifications/{method}", "params": params})


def hang() -> None:
    while True:
        time.sleep(60)


def spawn(*, own_session: bool, orphaned: bool = False) -> None:
    """A grandchild that ignores SIGTERM; its pid goes to the file named by the argument."""
    command = [sys.executable, "-c", FOREVER]
    if orphaned:
        quiet = "stdin=-3, stdout=-3, stderr=-3, start_new_session=True"
        code = f"import subprocess; print(subprocess.Popen({command!r}, {quiet}).pid)"
        pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    else:
        pid = subprocess.Popen(command, start_new_session=own_session).pid
    with Path(ARGUMENT).open("a") as pids:
        pids.write(f"{pid}\n")


def before() -> None:
    """What happens before the first request is read."""
    match MODE:
        case "waits_for":
            while not Path(ARGUMENT).exists():
                time.sleep(0.01)
            if Path(ARGUMENT).read_text() == "exit":
                sys.exit(7)
        case "exits":
            print("I do not feel like it", file=sys.stderr)
            sys.exit(7)
        case "garbage":
            sys.stdout.write("Welcome!\n\n{not json}\n[1, 2]\n\x00\x01\n")
            sys.stdout.buffer.write(b"\xff\xfe not text\n")
            sys.stdout.flush()
        case "stderr_flood":
            threading.Thread(target=flood, daemon=True).start()
        case "ignores_sigterm":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "grandchild" | "grandchild_setsid" | "grandchild_orphaned":
            spawn(own_session=MODE != "grandchild", orphaned=MODE == "grandchild_orphaned")


def flood() -> None:
    for number in range(20_000):
        sys.stderr.write(f"line {number} " + "ö" * 100 + "\n")
    sys.stderr.write("the last line\n")
    sys.stderr.flush()


def initialized() -> None:
    if MODE == "crash_idle":
        threading.Timer(float(ARGUMENT or 0.2), os._exit, [9]).start()
    elif MODE == "updates":
        threading.Thread(target=update_for_ever, daemon=True).start()


def update_for_ever() -> None:
    while True:
        notify("resources/updated", uri=WINDOW)


def list_tools(request: dict[str, Any]) -> None:
    cursor = request.get("params", {}).get("cursor")
    match MODE:
        case "hangs_at_list":
            hang()
        case "endless_pages":
            page = int(cursor or 0)
            answer(request, {"tools": [{**ECHO, "name": f"t{page}"}], "nextCursor": str(page + 1)})
        case "same_page":
            answer(request, {"tools": [ECHO], "nextCursor": "again"})
        case "many_tools":
            answer(request, {"tools": [{**ECHO, "name": f"tool-{n}", "description": "d" * 50} for n in range(5000)]})
        case "large_tool":
            answer(request, {"tools": [{**ECHO, "name": "large", "description": "d" * 6 * 1024 * 1024}, ECHO]})
        case "very_many_tools":
            answer(request, {"tools": [{**ECHO, "name": f"tool-{n}", "description": "d"} for n in range(100_000)]})
        case "wordy_tools":
            answer(request, {"tools": [{**ECHO, "name": f"wordy-{n}", "description": "d" * 60_000} for n in range(60)]})
        case "heavy_schemas":
            answer(request, {"tools": HEAVY})
        case "malformed":
            answer(request, {"tools": MALFORMED})
        case "no_list":
            answer(request, {"tools": {"echo": ECHO}})
        case _:
            answer(request, {"tools": [ECHO]})


def call(request: dict[str, Any]) -> None:
    params = request["params"]
    name, arguments = params["name"], params.get("arguments") or {}
    match name:
        case "crash":
            print("falling over", file=sys.stderr, flush=True)
            os._exit(5)
        case "echo" if MODE == "dies_in_call":
            print(f"login failed for admin with {os.environ['DB_PASSWORD']}", file=sys.stderr, flush=True)
            os._exit(5)
        case "never":
            return
        case "error":
            refuse(request, -32000, "the disk is full")
        case "big":
            answer(request, {"content": [{"type": "text", "text": "x" * arguments["size"]}]})
        case "odd":
            answer(request, ODD_RESULTS[arguments["kind"]])
        case "heard":
            answer(request, {"content": [], "structuredContent": {"heard": heard}})
        case "ask":
            send({"id": "mine", "method": arguments["method"], "params": arguments.get("params", {})})
            asked["mine"] = request
        case "echo" if MODE == "pesters":
            for number in range(5_000):  # without reading the answers, which hold the ids
                send({"id": f"{number:01000}", "method": ARGUMENT or "ping"})
            answer(request, {"content": [{"type": "text", "text": "done"}]})
        case "progress":
            for step in range(arguments["steps"]):
                notify("progress", progressToken=params["_meta"]["progressToken"], progress=step + 1)
                time.sleep(arguments["pause"])
            answer(request, {"content": []})
        case "mute":
            answer(request, {"content": []})
            hang()
        case "pid":
            answer(request, {"content": [{"type": "text", "text": str(os.getpid())}]})
        case _:
            answer(request, {"content": [{"type": "text", "text": json.dumps(arguments)}]})


def initialize(request: dict[str, Any]) -> None:
    if MODE == "hangs_at_initialize":
        hang()
    capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": MODE != "unsubscribable"}}
    version = "2024-11-05" if MODE == "oldest" else request["params"]["protocolVersion"]
    info = {"name": "naughty", "version": "1"}
    answer(request, {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info})


def discover(request: dict[str, Any]) -> None:
    match MODE:
        case "dies_at_discover":
            os._exit(4)
        case "ignores_discover":
            return
        case _:
            refuse(request, -32601, "Method not found")


HANDLERS = {
    "server/discover": discover,
    "initialize": initialize,
    "tools/list": list_tools,
    "tools/call": call,
    "resources/list": lambda r: answer(r, {"resources": [{"uri": WINDOW, "name": "clock"}, {"uri": "file:///x"}]}),
    "resources/read": lambda r: answer(r, {"contents": [{"uri": WINDOW, "text": str(time.time())}]}),
    "resources/subscribe": lambda r: answer(r, {}),
    "ping": lambda r: answer(r, {}),
}
heard: list[dict[str, Any]] = []
asked: dict[str, dict[str, Any]] = {}


def main() -> None:
    before()
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message and message["id"] in asked:
            answer(asked.pop(message["id"]), {"content": [], "structuredContent": message})
        elif "id" in message and "method" in message:
            HANDLERS.get(message["method"], lambda r: refuse(r, -32601, "Method not found"))(message)
        elif "method" in message:
            heard.append(message)
            if message["method"] == "notifications/initialized":
                initialized()
    if MODE in ("ignores_sigterm", "ignores_eof"):
        hang()


if __name__ == "__main__":
    main()
