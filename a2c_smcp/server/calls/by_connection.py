"""The calls in flight of each connection, as their caller or as their target, and how many bytes they are.

They are kept by sid and not in the connection: a client that is away has calls too, and so has a caller on another
node.
"""

from __future__ import annotations

from collections.abc import Iterator

from a2c_smcp.errors import RateLimited
from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.connections import Connections


class ConnectionCalls:
    """The calls of one sid: those that it asks and those that it serves.

    It `waits` for so many answers, those to requests that have joined an earlier one included.
    """

    __slots__ = ("asked_bytes", "asks", "served_bytes", "serves", "waits")

    def __init__(self) -> None:
        self.asks: set[Call] = set()
        self.serves: set[Call] = set()
        self.waits = 0
        self.asked_bytes = 0
        self.served_bytes = 0

    @property
    def is_over(self) -> bool:
        return not (self.waits or self.asks or self.serves)

    def check_waits(self, most: int, **details: str) -> None:
        """Raises `RateLimited`, with these details, if it waits for as many answers as one agent may."""
        if self.waits >= most:
            raise RateLimited(f"at most {most} calls of one agent at a time", **details)


class CallsByConnection(dict[str, ConnectionCalls]):
    """The calls of connections, by sid.

    An entry without calls is removed, unless its connection is here and may soon have calls again.
    """

    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._connections = connections

    def __missing__(self, sid: str) -> ConnectionCalls:
        """No calls yet. It is not an entry until it is put into the table: a call may still be refused."""
        return ConnectionCalls()

    def of(self, sid: str) -> ConnectionCalls:
        """The entry of a sid, which is made if there is none."""
        calls = self[sid] = self[sid]
        return calls

    def running(self) -> Iterator[Call]:
        for calls in self.values():
            yield from calls.serves

    def served_by(self, sid: str) -> list[Call]:
        return list(self[sid].serves)

    def link_caller(self, call: Call, sid: str) -> None:
        call.caller_sid, calls = sid, self.of(sid)
        calls.asks.add(call)
        calls.asked_bytes += call.size

    def unlink_caller(self, call: Call) -> None:
        calls = self[call.caller_sid]
        calls.asks.discard(call)
        calls.asked_bytes -= call.size
        if not calls.asks and not calls.waits:
            self.tidy(call.caller_sid, calls)

    def link_target(self, call: Call, sid: str) -> None:
        call.target_sid, calls = sid, self.of(sid)
        calls.serves.add(call)
        calls.served_bytes += call.size

    def unlink_target(self, call: Call) -> None:
        calls = self[call.target_sid]
        calls.serves.discard(call)
        calls.served_bytes -= call.size
        if not calls.serves:
            self.tidy(call.target_sid, calls)

    def stop_waiting(self, sid: str) -> None:
        calls = self[sid]
        calls.waits -= 1
        if not calls.waits:
            self.tidy(sid, calls)

    def tidy(self, sid: str, calls: ConnectionCalls) -> None:
        if self._connections.get(sid) is None and calls.is_over:
            self.pop(sid, None)
