"""Which connection has which calls in flight, as their caller or as their target, and how many bytes these are.

Kept by sid and not by connection: a client that is away has calls too, and so has a caller on another node.
"""

from __future__ import annotations

from collections.abc import Iterator

from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.connections import Connections

__all__ = ["Traffic", "TrafficTable"]


class Traffic:
    """The calls of one sid: those that it asks, those that it serves. It `waits` for so many answers, also to requests
    that have joined an earlier one."""

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


class TrafficTable(dict[str, Traffic]):
    """By sid. What is empty goes, unless its connection is here and may soon have calls again."""

    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._connections = connections

    def of(self, sid: str) -> Traffic:
        traffic = self.get(sid)
        if traffic is None:
            traffic = self[sid] = Traffic()
        return traffic

    def running(self) -> Iterator[Call]:
        for traffic in self.values():
            yield from traffic.serves

    def served_by(self, sid: str) -> list[Call]:
        traffic = self.get(sid)
        return list(traffic.serves) if traffic else []

    def link_caller(self, call: Call, sid: str) -> None:
        call.caller_sid, traffic = sid, self.of(sid)
        traffic.asks.add(call)
        traffic.asked_bytes += call.size

    def unlink_caller(self, call: Call) -> None:
        traffic = self[call.caller_sid]
        traffic.asks.discard(call)
        traffic.asked_bytes -= call.size
        if not traffic.asks and not traffic.waits:
            self.tidy(call.caller_sid, traffic)

    def link_target(self, call: Call, sid: str) -> None:
        call.target_sid, traffic = sid, self.of(sid)
        traffic.serves.add(call)
        traffic.served_bytes += call.size

    def unlink_target(self, call: Call) -> None:
        traffic = self[call.target_sid]
        traffic.serves.discard(call)
        traffic.served_bytes -= call.size
        if not traffic.serves:
            self.tidy(call.target_sid, traffic)

    def stop_waiting(self, sid: str) -> None:
        traffic = self[sid]
        traffic.waits -= 1
        if not traffic.waits:
            self.tidy(sid, traffic)

    def tidy(self, sid: str, traffic: Traffic) -> None:
        if self._connections.get(sid) is None and traffic.is_over:
            self.pop(sid, None)
