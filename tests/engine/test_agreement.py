"""A client session and a server session, joined without a socket: handshake, upgrade, events, acks, the end."""

from __future__ import annotations

import pytest

from a2c_smcp.engine.client import ClientSession
from a2c_smcp.engine.events import (
    Ack,
    Closed,
    Connect,
    Connected,
    ConnectRefused,
    Disconnected,
    Event,
    Happening,
    Opened,
    Reason,
    Upgraded,
)
from a2c_smcp.engine.packets import Attachment, ack_packet, encode_payload, event_packet
from a2c_smcp.engine.server import ServerSession
from a2c_smcp.engine.session import POLLING, WEBSOCKET, EngineLimits, Transport

LIMITS = EngineLimits()
NAMESPACE = b"/smcp"


class Pair:
    """Both ends of one session. What `carry` moves arrives whole and in order."""

    def __init__(self, transport: Transport) -> None:
        self.server = ServerSession("s1", LIMITS, 0, transport)
        self.client = ClientSession(LIMITS, transport)
        self.heard: list[Happening] = []
        opened = self.client.receive(self.server.open(), 0)
        assert opened == Opened("s1", ("websocket",) if transport is POLLING else (), 10, 8, LIMITS.max_payload)

    def carry(self, now: float = 0) -> list[Happening]:
        """Everything that waits, both ways; what the two make of it."""
        happened: list[Happening] = []
        while self.client.queued or self.server.queued:
            if self.client.transport is POLLING:
                if self.client.queued:
                    payload = encode_payload(self.client.take(POLLING))
                    happened += self.server.receive_payload(payload, now)
                if self.server.queued:
                    assert self.server.open_poll()
                    happened += self.client.receive_payload(encode_payload(self.server.take(POLLING)), now)
            else:
                for source, target in ((self.client, self.server), (self.server, self.client)):
                    for packet in source.take(WEBSOCKET):
                        if isinstance(packet, Attachment):
                            happening = target.receive_binary(packet.data, now)
                        else:
                            happening = target.receive(packet, now)
                        happened += [happening] if happening else []
        return happened

    def connect(self) -> None:
        self.client.connect(NAMESPACE, b'{"token":"t"}')
        assert self.carry() == [Connect(NAMESPACE, b'{"token":"t"}', is_repeated=False)]
        self.server.accept(NAMESPACE, "x")
        assert self.carry() == [Connected(NAMESPACE, b'{"sid":"x"}')]


@pytest.fixture(params=Transport)
def pair(request: pytest.FixtureRequest) -> Pair:
    pair = Pair(request.param)
    pair.connect()
    return pair


def test_events_and_acks_travel_both_ways(pair: Pair) -> None:
    for source, target in ((pair.client, pair.server), (pair.server, pair.client)):
        number = source.next_id()
        source.send(event_packet(NAMESPACE, number, b'["client:x",{"a":1}]'))
        assert pair.carry() == [Event(NAMESPACE, number, b'["client:x",{"a":1}]')]
        target.send(ack_packet(NAMESPACE, number, b"[", b"true", b"]"))
        assert pair.carry() == [Ack(NAMESPACE, number, b"[true]")]


def test_attachments_arrive_with_their_packet(pair: Pair) -> None:
    body = b'["x",{"_placeholder":true,"num":0},{"_placeholder":true,"num":1}]'
    parts = (b"\x00\x1e", b"")
    pair.client.send(event_packet(NAMESPACE, 7, body, attachments=2), parts)
    assert pair.carry() == [Event(NAMESPACE, 7, body, parts)]
    pair.server.send(ack_packet(NAMESPACE, 7, body, attachments=2), parts)
    assert pair.carry() == [Ack(NAMESPACE, 7, body, parts)]


def test_a_refused_client_may_try_again() -> None:
    pair = Pair(WEBSOCKET)
    pair.client.connect(NAMESPACE)
    pair.carry()
    pair.server.refuse(NAMESPACE, b'{"message":"no"}')
    assert pair.carry() == [ConnectRefused(NAMESPACE, b'{"message":"no"}')]
    pair.connect()


def test_a_namespace_is_left_and_entered_again(pair: Pair) -> None:
    pair.client.disconnect(NAMESPACE)
    assert pair.carry() == [Disconnected(NAMESPACE)]
    pair.connect()
    pair.server.disconnect(NAMESPACE, 0)
    assert pair.carry() == [Disconnected(NAMESPACE)]
    pair.connect()


def test_either_end_closes_and_the_other_hears_of_it(pair: Pair) -> None:
    assert pair.client.close() == Closed(Reason.CLIENT)
    assert pair.carry() == [Closed(Reason.CLIENT)]
    assert pair.server.is_closed
    other = Pair(pair.client.transport)
    assert other.server.close() == Closed(Reason.SERVER)
    if other.server.transport is WEBSOCKET:
        assert other.carry() == [Closed(Reason.SERVER)]


def test_a_ping_is_answered(pair: Pair) -> None:
    assert pair.server.deadline == LIMITS.ping_interval
    assert pair.server.tick(10) is None
    assert pair.server.deadline == 10 + LIMITS.ping_timeout
    assert pair.carry(11) == []
    assert pair.server.deadline == 11 + LIMITS.ping_interval
    assert pair.client.deadline == 11 + LIMITS.ping_interval + LIMITS.ping_timeout


def test_packets_that_wait_at_an_upgrade_follow_over_the_websocket() -> None:
    pair = Pair(POLLING)
    pair.connect()
    server, client = pair.server, pair.client
    assert server.open_poll()
    assert server.upgrade_opens(1)
    assert not server.upgrade_opens(1), "one at a time"
    probed = server.upgrade_receives(client.probe(), 1)
    assert isinstance(probed, bytes)
    assert client.probed(probed)
    assert server.take(POLLING) == [b"6"]
    for end in (server, client):
        end.send(event_packet(NAMESPACE, None, b'["x"]'))
    assert client.take(POLLING) == []
    assert server.upgrade_receives(client.upgrade(), 1) == Upgraded()
    assert server.queued
    assert pair.carry(1) == [Event(NAMESPACE, None, b'["x"]')] * 2
    assert server.is_direct
    assert client.is_direct
    assert not server.open_poll()
    assert not server.upgrade_opens(1)
    assert not server.is_closed
