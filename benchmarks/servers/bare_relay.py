"""The floor: websockets in pairs, `/agent/7` and `/computer/7`. A frame goes to the other end under an id of its own.

No handshake, no offices, no JSON, no rules: what is left is framing, a search for the id, and a lookup each way.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import picows
import uvloop

__all__: list[str] = []

HEAD = len(b"42/smcp,")
LONGEST_HEAD = 40
TEXT = picows.WSMsgType.TEXT


class End(picows.WSListener):
    """One end of a pair: keeps the ids under which its own requests went out."""

    def __init__(self, other: str, ends: dict[str, End]) -> None:
        self._other = other
        self._ends = ends
        self._ids = count(1)
        self.asked: dict[int, bytes] = {}

    def on_ws_connected(self, transport: Any) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: Any, frame: Any) -> None:
        if frame.msg_type != TEXT:
            return
        text = frame.get_payload_as_memoryview()
        head = bytes(text[:LONGEST_HEAD])
        begin = head.index(b"[")
        kind, number = head[:HEAD], head[HEAD:begin]
        other = self._ends[self._other]
        if kind[1:2] == b"2":
            mine = next(self._ids)
            self.asked[mine] = number
            other.transport.send(TEXT, b"%b%d%b" % (kind, mine, text[begin:]))
        else:
            other.transport.send(TEXT, b"%b%b%b" % (kind, other.asked.pop(int(number)), text[begin:]))


async def main() -> None:
    ends: dict[str, End] = {}

    def enter(request: Any) -> End:
        _, role, number = request.path.decode().split("/")
        other = "computer" if role == "agent" else "agent"
        ends[f"{role}/{number}"] = end = End(f"{other}/{number}", ends)
        return end

    server = await picows.ws_create_server(enter, "127.0.0.1", 0, websocket_handshake_timeout=15)
    print("listening on http://{}:{}".format(*server.sockets[0].getsockname()), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
