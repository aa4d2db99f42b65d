"""An MCP server in raw JSON-RPC whose tool `give` returns contents of any size: `contents.py`.

`items` is a list of `[kind, size]`, of the kinds of `item`; `structured` is the size of a text in the structured
content; `text` is put before every text.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from functools import cache
from random import Random
from typing import Any

LETTERS = b"abcdefghijklmnopqrstuvwxyz      "


@cache
def binary(size: int) -> bytes:
    """Always the same bytes for a size."""
    return Random(size).randbytes(size)


def text(size: int) -> str:
    return binary(size).translate(bytes(LETTERS[byte % 32] for byte in range(256))).decode()


def item(kind: str, size: int, prefix: str = "") -> dict[str, Any]:
    data, words = b64encode(binary(size)).decode(), prefix + text(size)
    inner = {"uri": f"file:///files/{kind}%20{size}.bin", "mimeType": "application/octet-stream"}
    kinds: dict[str, dict[str, Any]] = {
        "image": {"type": "image", "data": data, "mimeType": "image/png", "_meta": {"mine": 1, "a2c_blob_handle": "x"}},
        "audio": {"type": "audio", "data": data, "mimeType": "audio/wav"},
        "blob": {"type": "resource", "resource": {**inner, "blob": data}},
        "text": {"type": "text", "text": words},
        "inner_text": {"type": "resource", "resource": {**inner, "mimeType": "text/plain", "text": words}},
        "no_base64": {"type": "image", "data": "?" * size, "mimeType": "image/png"},
    }
    return kinds[kind]


def call(arguments: dict[str, Any]) -> dict[str, Any]:
    prefix = arguments.get("text", "")
    result: dict[str, Any] = {"content": [item(kind, size, prefix) for kind, size in arguments.get("items", [])]}
    if size := arguments.get("structured"):
        result["structuredContent"] = {"words": prefix + text(size)}
    return result


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "tools/call":
        return call(params.get("arguments") or {})
    about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "contents", "version": "1"}}
    tools = [{"name": "give", "inputSchema": {"type": "object"}}]
    known = {"initialize": {"protocolVersion": "2025-11-25", **about}, "tools/list": {"tools": tools}, "ping": {}}
    return known.get(method)


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = result_of(message["method"], message.get("params") or {})
            unknown = {"error": {"code": -32601, "message": "Method not found"}}
            answer = {"jsonrpc": "2.0", "id": message["id"], **(unknown if result is None else {"result": result})}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
