"""The client's end, rule by rule."""

from __future__ import annotations

import json

import pytest

from a2c_smcp.engine.client import ClientSession
from a2c_smcp.engine.events import (
    Ack,
    Closed,
    Connected,
    ConnectRefused,
    Disconnected,
    Event,
    Fault,
    Faulty,
    Opened,
    Reason,
)
from a2c_smcp.engine.packets import Malformed
from a2c_smcp.engine.session import POLLING, WEBSOCKET, EngineLimits, Transport

LIMITS = EngineLimits()
NAMESPACE = b"/smcp"
OPEN = {"sid": "s", "upgrades": ["websocket"], "pingInterval": 3000, "pingTimeout": 2000, "maxPayload": 1000}


def opening(**changed: object) -> bytes:
    return b"0" + json.dumps({**OPEN, **changed}).encode()


def opened(transport: Transport = WEBSOCKET) -> ClientSession:
    session = ClientSession(LIMITS, transport)
    assert session.receive(opening(), 0) == Opened("s", ("websocket",), 3, 2, 1000)
    return session


def connected(transport: Transport = WEBSOCKET) -> ClientSession:
    session = opened(transport)
    session.connect(NAMESPACE, b'{"token":"t"}')
    assert session.take(transport) == [b'40/smcp,{"token":"t"}']
    assert session.receive(b'40/smcp,{"sid":"x"}', 0) == Connected(NAMESPACE, b'{"sid":"x"}')
    return session


@pytest.fixture
def fresh() -> ClientSession:
    """Opened, and connected to nothing."""
    return opened()


@pytest.fixture
def session() -> ClientSession:
    return connected()


@pytest.fixture
def polling() -> ClientSession:
    return connected(POLLING)


def test_a_first_poll_may_bring_more_than_the_opening() -> None:
    session = ClientSession(LIMITS, POLLING)
    happened = list(session.receive_payload(opening() + b"\x1e2", 0))
    assert happened == [Opened("s", ("websocket",), 3, 2, 1000)]
    assert session.sid == "s"
    assert session.take(POLLING) == [b"3"]


BAD_OPENINGS = {
    "empty": b"0",
    "half": b"0{",
    "array": b"0[]",
    "object": b"0{}",
    "text": b'0"x"',
    "null": b"0null",
    "deep": b"0" + b"[" * 100_000,
    "not UTF-8": b"0\xff",
    "interval that is text": opening(pingInterval="3"),
    "interval that is null": opening(pingInterval=None),
    "interval beyond numbers": opening(pingInterval=10**400),
    "interval without end": opening(pingInterval=1e400),
    "interval that is no number": opening(pingInterval=float("nan")),
    "interval and timeout of nothing": opening(pingInterval=0, pingTimeout=0),
    "limit that is text": opening(maxPayload="x"),
    "limit that is null": opening(maxPayload=None),
    "limit without end": opening(maxPayload=1e400),
    "upgrades that are null": opening(upgrades=None),
    "sid that is empty": opening(sid=""),
    "sid that is a number": opening(sid=5),
}


@pytest.mark.parametrize("packet", BAD_OPENINGS.values(), ids=BAD_OPENINGS)
def test_an_opening_that_cannot_be_read_ends_the_session(packet: bytes) -> None:
    session = ClientSession(LIMITS)
    assert session.receive(packet, 0) == Closed(Reason.PROTOCOL)
    assert session.deadline == float("inf")


def test_a_server_that_does_not_say_its_limit_is_trusted_with_ours() -> None:
    said = {key: value for key, value in OPEN.items() if key != "maxPayload"}
    assert ClientSession(LIMITS).receive(b"0" + json.dumps(said).encode(), 0) == Opened(
        "s", ("websocket",), 3, 2, LIMITS.max_payload
    )


def test_a_second_opening_is_ignored(session: ClientSession) -> None:
    assert session.receive(opening(sid="other"), 0) is None
    assert session.sid == "s"


def test_a_ping_is_answered_with_what_it_carries_and_silence_is_noticed(session: ClientSession) -> None:
    assert session.deadline == 5
    assert session.receive(b"2", 3) is None
    assert session.receive(b"2probe", 3) is None
    assert session.take(WEBSOCKET) == [b"3", b"3probe"]
    assert session.tick(7.9) is None
    assert session.tick(8) == Closed(Reason.PING_TIMEOUT)
    assert session.tick(9) is None
    assert session.take(WEBSOCKET) == []


def test_before_it_is_opened_a_session_has_no_deadline_of_its_own() -> None:
    assert ClientSession(LIMITS).tick(10**9) is None


def test_events_may_come_before_the_welcome(fresh: ClientSession) -> None:
    assert fresh.receive(b'42/smcp,["early"]', 0) is None, "nobody asked for this namespace"
    fresh.connect(NAMESPACE)
    assert fresh.receive(b'42/smcp,["early"]', 0) == Event(NAMESPACE, None, b'["early"]')
    assert fresh.receive(b"40/smcp", 0) == Connected(NAMESPACE, b"")


def test_a_refusal_and_a_disconnect_end_a_namespace_and_it_may_be_asked_for_again(fresh: ClientSession) -> None:
    for packet, happening in ((b'44/smcp,{"message":"no"}', ConnectRefused(NAMESPACE, b'{"message":"no"}')),
                              (b"41/smcp,", Disconnected(NAMESPACE))):  # fmt: skip
        fresh.connect(NAMESPACE)
        assert fresh.receive(packet, 0) == happening
        assert fresh.receive(b'42/smcp,["late"]', 0) is None
        assert fresh.receive(packet, 0) is None
    assert not fresh.is_closed


ODD = {
    b"42/smcp,": (None, False),
    b"42/smcp,{}": (None, False),
    b"42/smcp,x[1]": (None, False),
    b"42/smcp,7": (7, False),
    b"43/smcp,": (None, True),
    b"43/smcp,0": (0, True),
    b"43/smcp,1": (1, True),
    b"43/smcp,x[]": (None, True),
    b'43/smcp,1["x"': (1, True),
    b"4": (None, False),
    b"4x": (None, False),
}


@pytest.mark.parametrize(("packet", "known"), ODD.items())
def test_an_odd_packet_costs_nothing_and_its_caller_can_be_told(
    session: ClientSession, packet: bytes, known: tuple[int | None, bool]
) -> None:
    fault = session.receive(packet, 0)
    assert isinstance(fault, Faulty)
    assert (fault.id, fault.is_ack, fault.fault) == (*known, Fault.MALFORMED)
    assert session.receive(b"43/smcp,1[true]", 0) == Ack(NAMESPACE, 1, b"[true]")


@pytest.mark.parametrize("packet", [b"", b"x", b"9", b"\xff"])
def test_bytes_that_are_no_engine_io_packet_end_the_session(packet: bytes) -> None:
    assert connected().receive(packet, 0) == Closed(Reason.PROTOCOL)
    with pytest.raises(Malformed):
        connected(POLLING).receive_payload(b"3\x1e" + packet, 0)


def test_the_server_closes_and_nothing_more_is_sent(session: ClientSession) -> None:
    session.send(b'42/smcp,["x"]')
    assert session.receive(b"1", 0) == Closed(Reason.SERVER)
    session.send(b'42/smcp,["x"]')
    session.connect(NAMESPACE)
    session.disconnect(NAMESPACE)
    assert session.take(WEBSOCKET) == []
    assert session.receive(b'42/smcp,["x"]', 0) is None


def test_a_client_disconnects_a_namespace_and_closes(session: ClientSession) -> None:
    session.disconnect(NAMESPACE)
    assert session.close() == Closed(Reason.CLIENT)
    assert session.take(WEBSOCKET) == [b"41/smcp,", b"1"]
    assert session.lost(WEBSOCKET) is None


def test_a_post_keeps_to_what_the_server_takes(polling: ClientSession) -> None:
    for size in (10, 500, 490, 5000, 1):
        polling.send(b"4" + b"x" * size)
    assert [len(polling.take(POLLING)) for _ in range(5)] == [2, 1, 1, 1, 0]
    for _ in range(20):
        polling.send(b"4")
    assert [len(polling.take(POLLING)) for _ in range(2)] == [16, 4]


def test_between_probe_and_upgrade_nothing_is_posted_and_nothing_is_lost(polling: ClientSession) -> None:
    polling.send(b'42/smcp,["x"]')
    assert polling.take(WEBSOCKET) == []
    assert polling.probe() == b"2probe"
    assert polling.probed(b"3probe")
    assert polling.take(POLLING) == []
    polling.upgrade_failed()
    assert polling.take(POLLING) == [b'42/smcp,["x"]']
    assert polling.probed(b"3probe")
    polling.send(b'42/smcp,["y"]')
    assert polling.upgrade() == b"5"
    assert polling.take(POLLING) == []
    assert polling.take(WEBSOCKET) == [b'42/smcp,["y"]']
    assert polling.lost(POLLING) is None


@pytest.mark.parametrize("packet", [b"", b"3", b"2probe", b"3probed", b"x"])
def test_any_other_answer_to_a_probe_is_a_failure_and_polling_goes_on(polling: ClientSession, packet: bytes) -> None:
    polling.send(b"4")
    assert not polling.probed(packet)
    assert polling.take(POLLING) == [b"4"]
