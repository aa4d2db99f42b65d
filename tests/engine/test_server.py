"""The server's end, rule by rule: what comes out of a session, and what is to be sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.engine.events import (
    Ack,
    Closed,
    Connect,
    Disconnected,
    Event,
    Fault,
    Faulty,
    Message,
    Reason,
    Upgraded,
    UpgradeFailed,
)
from a2c_smcp.engine.packets import Attachment, Malformed
from a2c_smcp.engine.server import ServerSession
from a2c_smcp.engine.session import POLLING, WEBSOCKET, EngineLimits, Transport

KIB = 1024
LIMITS = EngineLimits()
NAMESPACE = b"/smcp"
EVENT = b'42/smcp,1["x"]'


def opened(transport: Transport = WEBSOCKET, limits: EngineLimits = LIMITS) -> ServerSession:
    return ServerSession("s", limits, 0, transport)


def connected(transport: Transport = WEBSOCKET, limits: EngineLimits = LIMITS, **changed: int) -> ServerSession:
    session = opened(transport, replace(limits, **changed) if changed else limits)
    session.receive(b"40/smcp,", 0)
    session.accept(NAMESPACE, "x")
    assert written(session) == [b'40/smcp,{"sid":"x"}']
    return session


def written(session: ServerSession) -> list[bytes | Attachment]:
    if session.transport is POLLING:
        session.open_poll()
    return session.take(session.transport)


@pytest.fixture
def fresh() -> ServerSession:
    """Nothing is connected yet."""
    return opened()


@pytest.fixture
def session() -> ServerSession:
    return connected()


@pytest.fixture
def polling() -> ServerSession:
    return connected(POLLING)


def faulty(session: ServerSession, *frames: bytes) -> Faulty:
    """What the last of these packets comes to. The others are silent."""
    *first, last = (
        session.receive_binary(frame[1:], 0) if frame.startswith(b"\0") else session.receive(frame, 0)
        for frame in frames
    )
    assert not any(first)
    assert isinstance(last, Faulty)
    return last


# Opening


def test_the_open_packet_says_what_the_session_keeps_to() -> None:
    tail = b'"pingInterval":10000,"pingTimeout":8000,"maxPayload":8388608}'
    assert opened(POLLING).open() == b'0{"sid":"s","upgrades":["websocket"],' + tail
    assert opened(WEBSOCKET).open() == b'0{"sid":"s","upgrades":[],' + tail


def test_a_session_in_which_no_namespace_is_connected_in_time_is_closed(fresh: ServerSession) -> None:
    assert fresh.deadline == LIMITS.handshake_timeout
    assert fresh.tick(LIMITS.handshake_timeout - 0.1) is None
    assert fresh.tick(LIMITS.handshake_timeout) == Closed(Reason.HANDSHAKE)
    assert written(fresh) == [b"1"]
    assert fresh.deadline == inf


@pytest.mark.parametrize("by_client", [True, False])
def test_a_session_whose_last_namespace_was_left_is_closed_in_time(by_client: bool) -> None:
    session = connected(limits=EngineLimits(ping_interval=100))
    if by_client:
        assert session.receive(b"41/smcp,", 50) == Disconnected(NAMESPACE)
    else:
        session.disconnect(NAMESPACE, 50)
        assert written(session) == [b"41/smcp,"]
    assert not session.is_authenticated
    assert session.receive(EVENT, 51) is None
    assert session.tick(60) == Closed(Reason.HANDSHAKE)


# Namespaces


@pytest.mark.parametrize("namespace", [b"/", b"/smcp", b"/custom"])
def test_the_application_decides_which_namespace_may_be_connected(fresh: ServerSession, namespace: bytes) -> None:
    named = b"" if namespace == b"/" else namespace + b","
    assert fresh.receive(b"40" + named + b'{"a":1}', 0) == Connect(namespace, b'{"a":1}', is_repeated=False)
    assert fresh.refuse(namespace, b'{"message":"no"}') is None
    assert written(fresh) == [b"44" + named + b'{"message":"no"}']
    fresh.receive(b"40" + named, 0)
    fresh.accept(namespace, "x")
    assert written(fresh) == [b"40" + named + b'{"sid":"x"}']
    assert fresh.receive(b"42" + named + b'7["x"]', 0) == Event(namespace, 7, b'["x"]')


def test_several_namespaces_live_in_one_session(session: ServerSession) -> None:
    assert session.receive(b"40/custom", 0) == Connect(b"/custom", b"", is_repeated=False)
    assert session.receive(b'42/custom,["x"]', 0) is None, "not accepted yet"
    session.accept(b"/custom", "y")
    for namespace in (b"/custom", b"/smcp", b"/custom"):
        assert session.receive(b'42%s,7["x"]' % namespace, 0) == Event(namespace, 7, b'["x"]')
        assert session.receive(b"43%s,7[1]" % namespace, 0) == Ack(namespace, 7, b"[1]")
    assert session.receive(b"41/custom", 0) == Disconnected(b"/custom")
    assert session.receive(b'42/custom,["x"]', 0) is None
    assert session.receive(EVENT, 0) == Event(NAMESPACE, 1, b'["x"]')
    assert session.is_authenticated


def test_a_second_connect_is_marked_and_its_refusal_harms_nothing(session: ServerSession) -> None:
    for _ in range(5):
        assert session.receive(b"40/smcp,{}", 0) == Connect(NAMESPACE, b"{}", is_repeated=True)
        assert session.refuse(NAMESPACE, b"{}") is None
    assert session.receive(EVENT, 0) == Event(NAMESPACE, 1, b'["x"]')


def test_a_connect_behind_one_that_is_not_decided_is_marked(fresh: ServerSession) -> None:
    assert fresh.receive(b"40/smcp,", 0) == Connect(NAMESPACE, b"", is_repeated=False)
    assert fresh.receive(b"40/smcp,", 0) == Connect(NAMESPACE, b"", is_repeated=True)
    fresh.refuse(NAMESPACE, b"{}")
    fresh.accept(NAMESPACE, "x")
    assert fresh.receive(EVENT, 0) == Event(NAMESPACE, 1, b'["x"]')


# Before authentication

SILENT = [EVENT, b"41/smcp,", b"43/smcp,1[]", b'452-/smcp,2["x"]', b"44/smcp,{}", b"461-/smcp,1[]", b"42" + b"9" * 200]


@pytest.mark.parametrize("is_refused_first", [False, True])
def test_before_a_connect_is_accepted_nothing_else_is_read(fresh: ServerSession, is_refused_first: bool) -> None:
    if is_refused_first:
        fresh.receive(b"40/smcp,", 0)
        fresh.refuse(NAMESPACE, b"{}")
    for frame in SILENT:
        assert fresh.receive(frame, 0) is None, frame
        assert fresh.receive_binary(b"x", 0) is None
    assert fresh.receive(b"40/smcp,", 0) == Connect(NAMESPACE, b"", is_repeated=False)
    assert fresh.receive(EVENT, 0) is None, "while it is decided"


def test_a_connect_of_32_kib_is_read_and_a_larger_one_is_not(fresh: ServerSession) -> None:
    fitting = b"40/smcp," + b"x" * (32 * KIB - 7)
    assert fresh.receive(fitting, 0) == Connect(NAMESPACE, fitting[8:], is_repeated=False)
    assert fresh.receive(fitting + b"x", 0) == Connect(NAMESPACE, None, is_repeated=True)
    endless = fresh.receive(b"40/" + b"x" * 60 * KIB, 0)
    assert isinstance(endless, Connect)
    assert endless.body is None
    assert len(endless.namespace) <= KIB


def test_a_frame_has_64_kib_before_authentication_and_all_afterwards() -> None:
    assert opened().max_frame == 64 * KIB
    assert connected().max_frame == LIMITS.max_payload


def test_three_refused_connects_end_the_session(fresh: ServerSession) -> None:
    for _ in range(2):
        fresh.receive(b"40/smcp,", 0)
        assert fresh.refuse(NAMESPACE, b"{}") is None
    fresh.receive(b"40/other,", 0)
    assert fresh.refuse(b"/other", b"{}") == Closed(Reason.REFUSED)
    assert written(fresh) == [b"44/smcp,{}", b"44/smcp,{}", b"44/other,{}", b"1"]
    assert fresh.receive(b"40/smcp,", 0) is None
    fresh.accept(NAMESPACE, "x")
    assert written(fresh) == []


def test_refusals_before_an_acceptance_are_forgotten(fresh: ServerSession) -> None:
    for _ in range(3):
        for _ in range(2):
            fresh.receive(b"40/smcp,", 0)
            assert fresh.refuse(NAMESPACE, b"{}") is None
        fresh.receive(b"40/smcp,", 0)
        fresh.accept(NAMESPACE, "x")
        fresh.disconnect(NAMESPACE, 0)
    assert not fresh.is_closed


def test_no_more_than_three_connects_wait_for_a_decision(fresh: ServerSession) -> None:
    assert [bool(fresh.receive(b"40/%d," % n, 0)) for n in range(5)] == [True] * 3 + [False] * 2
    fresh.accept(b"/0", "x")
    assert fresh.receive(b"40/4,", 0)


# What is malformed

ANSWERED = {
    b"42/smcp,7": b"",
    b"42/smcp,7{}": b"",
    b'42/smcp,7"text"': b"",
    b'42/smcp,7["client:tool_call"': b'"client:tool_call"',
    b'42/smcp,7["client:tool_call",{"a":1}': b'"client:tool_call"',
    b'423-/smcp,7["x",{}]': b'"x"',
    b'459999999-/smcp,7["client:newer",{}]': b'"client:newer"',
    b'45%s-/smcp,7["client:newer",{}]' % (b"9" * 99): b'"client:newer"',
    b'4565-/smcp,7["client:newer",{}]': b'"client:newer"',
    b"451-/smcp,7{}": b"",
}


@pytest.mark.parametrize(("frame", "name"), ANSWERED.items())
def test_a_malformed_event_with_an_id_can_be_answered_by_its_name(
    session: ServerSession, frame: bytes, name: bytes
) -> None:
    fault = faulty(session, frame)
    assert (fault.namespace, fault.id, fault.is_ack, fault.name) == (NAMESPACE, 7, False, name)
    assert session.receive_binary(b"x", 0) is None, "its attachments are ignored"
    assert session.receive(EVENT, 0) == Event(NAMESPACE, 1, b'["x"]')


NOTHING = [b"4", b"4x", b"49/smcp,", b'4{"a":1}', b"4[]", b"42" + b"9" * 200, b'42/smcp,%s["x"]' % (b"9" * 101)]
IGNORED = [b"44/smcp,{}", b"42/other,1[]", b"43/other,1[]", b"6", b"2", b"2probe", b"0", b"5", b"3", b"41/other,"]


@pytest.mark.parametrize("frame", NOTHING)
def test_bytes_that_are_no_socket_io_packet_are_a_fault_and_the_session_goes_on(
    session: ServerSession, frame: bytes
) -> None:
    fault = faulty(session, frame)
    assert (fault.id, fault.fault) == (None, Fault.MALFORMED)
    assert session.receive(EVENT, 0) == Event(NAMESPACE, 1, b'["x"]')


@pytest.mark.parametrize("frame", [b"42{}", b'42abc["x"]', b"4abc"])
def test_packets_for_which_other_servers_close_a_session_are_a_fault(fresh: ServerSession, frame: bytes) -> None:
    fresh.receive(b"40", 0)
    fresh.accept(b"/", "x")
    assert faulty(fresh, frame).fault is Fault.MALFORMED
    if frame == b"4abc":
        assert faulty(opened(), frame).fault is Fault.MALFORMED


@pytest.mark.parametrize("frame", IGNORED)
def test_a_packet_that_has_no_meaning_is_ignored(session: ServerSession, frame: bytes) -> None:
    assert session.receive(frame, 0) is None
    assert session.receive_binary(b"x", 0) is None
    assert session.receive(EVENT, 0) == Event(NAMESPACE, 1, b'["x"]')
    assert session.queued == 0


@pytest.mark.parametrize("body", [b"", b"{}", b'"x"', b"[", b"[1", b"null", b"x]"])
def test_a_malformed_ack_is_known_by_its_id(body: bytes) -> None:
    fault = faulty(connected(), b"43/smcp,5" + body)
    assert (fault.id, fault.is_ack, fault.fault) == (5, True, Fault.MALFORMED)


@pytest.mark.parametrize("frame", [b"43/smcp,[1]", b"43/smcp,-1[1]", b"43/smcp,x[1]", b"43/smcp,"])
def test_an_ack_without_an_id_is_a_fault(frame: bytes) -> None:
    assert faulty(connected(), frame)[:3] == (NAMESPACE, None, True)


@pytest.mark.parametrize("frame", [b"", b"x", b"9", b"b!!!", "é".encode(), b"\xff"])
def test_bytes_that_are_no_engine_io_packet_end_their_session_without_an_answer(
    session: ServerSession, frame: bytes
) -> None:
    session.send(b'42/smcp,["unsent"]')
    assert session.receive(frame, 0) == Closed(Reason.PROTOCOL)
    assert written(session) == []
    for late in (EVENT, b"43/smcp,1[]", b"[]", b"\xff[]", b""):
        assert session.receive(late, 0) is None
    assert session.receive_binary(b"x", 0) is None


@pytest.mark.parametrize("frame", [b'42/smcp, ["x"] ', b'42/smcp,1 ["x"]', b'42/smcp?q,1["x"]\n'])
def test_space_around_the_json_is_json(frame: bytes) -> None:
    event = connected().receive(frame, 0)
    assert isinstance(event, Event)
    assert bytes(event.body).strip() == b'["x"]'


pieces = st.sampled_from(
    [b"42", b"43", b"/smcp", b",", b"1", b"07", b"[", b"]", b'"x"', b" ", b"-", b"{}", b"4", b"45"]
)


@given(st.lists(pieces, max_size=12).map(b"".join), st.sampled_from([b"", b"42/smcp,", b"43/smcp,1", b'42/smcp,7["x"']))
def test_the_fast_path_and_the_slow_path_agree(rest: bytes, head: bytes) -> None:
    fast, slow = (connected(max_message=20, max_ack=16) for _ in range(2))
    slow.receive(b"40/other,", 0)
    slow.accept(b"/other", "y")  # the fast path is for the namespace that was connected last
    assert fast.receive(head + rest, 0) == slow.receive(head + rest, 0)
    assert fast.reason == slow.reason


# Limits


@pytest.mark.parametrize("limit", [100, 70_000])
def test_an_event_is_taken_up_to_the_last_byte_of_the_limit(limit: int) -> None:
    session = connected(max_message=limit)
    head, tail = b'42/smcp,7["x","', b'"]'
    fitting = head + b"x" * (limit + 1 - len(head) - len(tail)) + tail
    event = session.receive(fitting, 0)
    assert isinstance(event, Event)
    assert event.body == fitting[9:]
    fault = faulty(session, fitting[:-2] + b'x"]')
    assert (fault.id, fault.name, fault.fault) == (7, b'"x"', Fault.TOO_LARGE)
    assert (fault.size, fault.limit) == (limit + 1, limit)


def test_an_ack_has_a_limit_of_its_own() -> None:
    session = connected(max_ack=100)
    fitting = b"43/smcp,7[%s]" % (b"1" * 90)
    assert session.receive(fitting, 0) == Ack(NAMESPACE, 7, fitting[9:])
    fault = faulty(session, fitting + b"]")
    assert (fault.id, fault.is_ack, fault.fault, fault.limit) == (7, True, Fault.TOO_LARGE, 100)


def test_a_binary_event_counts_with_its_attachments() -> None:
    session = connected(max_message=1000)
    fault = faulty(session, b'453-/smcp,7["x",1]', b"\0" + b"x" * 500, b"\0" + b"x" * 500)
    assert (fault.id, fault.fault) == (7, Fault.TOO_LARGE)
    assert session.receive_binary(b"x", 0) is None
    assert session.receive(EVENT, 0) == Event(NAMESPACE, 1, b'["x"]')


def test_json_beside_attachments_has_a_limit_of_its_own() -> None:
    head, tail = b'451-/smcp,7["x","', b'"]'
    fitting = head + b"x" * (256 * KIB + 1 - len(head) - len(tail)) + tail
    session = connected()
    assert session.receive(fitting, 0) is None
    assert isinstance(session.receive_binary(b"x", 0), Event)
    fault = faulty(session, fitting + b" ")
    assert (fault.fault, fault.limit) == (Fault.TOO_LARGE, 256 * KIB)


# Attachments


def test_a_packet_waits_for_its_attachments_and_pings_may_come_between(session: ServerSession) -> None:
    assert session.receive(b'452-/smcp,7["x"]', 0) is None
    assert session.receive_binary(b"1", 0) is None
    assert session.receive(b"3", 0) is None
    assert session.receive_binary(b"", 0) == Event(NAMESPACE, 7, b'["x"]', (b"1", b""))
    assert session.receive(b"461-/smcp,3[1]", 0) is None
    assert session.receive_binary(b"1", 0) == Ack(NAMESPACE, 3, b"[1]", (b"1",))
    assert session.receive(EVENT, 0) == Event(NAMESPACE, 1, b'["x"]')


def test_a_binary_packet_without_attachments_is_an_ordinary_one() -> None:
    assert connected().receive(b'450-/smcp,7["x"]', 0) == Event(NAMESPACE, 7, b'["x"]')
    assert connected().receive(b"46/smcp,7[]", 0) == Ack(NAMESPACE, 7, b"[]")


def test_text_in_place_of_an_attachment_spoils_the_packet_that_waited(session: ServerSession) -> None:
    fault = faulty(session, b'451-/smcp,7["x"]', b'42/smcp,9["no:such",{}]')
    assert (fault.id, fault.name, fault.fault) == (7, b'"x"', Fault.ATTACHMENTS)
    assert session.receive(EVENT, 0) == Event(NAMESPACE, 1, b'["x"]')


# Pings


@pytest.mark.parametrize("transport", Transport)
def test_a_peer_is_pinged_and_given_up_when_it_does_not_answer(transport: Transport) -> None:
    session = connected(transport, EngineLimits(ping_interval=3, ping_timeout=2))
    assert session.deadline == 3
    assert session.tick(2.9) is None
    assert session.queued == 0
    assert session.tick(3) is None
    assert written(session) == [b"2"]
    session.receive(b"3", 4)
    session.receive(b"3", 6)
    assert session.deadline == 7, "a pong that nobody asked for changes nothing"
    assert session.tick(7.5) is None
    assert session.deadline == 9.5
    assert session.tick(9.5) == Closed(Reason.PING_TIMEOUT)
    assert written(session) == []
    assert session.tick(20) is None


# Polling


def test_a_poll_waits_until_something_is_there(polling: ServerSession) -> None:
    assert polling.open_poll()
    assert not polling.poll_is_due
    assert polling.take(POLLING) == []
    polling.send(b'42/smcp,["x"]')
    assert polling.poll_is_due
    assert polling.take(POLLING) == [b'42/smcp,["x"]']
    polling.send(b'42/smcp,["y"]')
    assert not polling.poll_is_due, "it was answered"
    assert not polling.is_direct


def test_a_batch_holds_sixteen_packets_and_64_kib(polling: ServerSession) -> None:
    for number in range(20):
        polling.send(b"4%d" % number)
    assert len(written(polling)) == 16
    assert len(written(polling)) == 4
    assert polling.queued == 0
    polling.send(b"4" + b"x" * 100 * KIB, [b"x" * 30 * KIB, b"x" * 20 * KIB, b""])
    assert [len(written(polling)) for _ in range(3)] == [1, 1, 2], "counted as they are encoded"
    assert polling.queued == 0


def test_a_second_poll_at_a_time_ends_the_session_and_the_first_is_told(polling: ServerSession) -> None:
    assert polling.open_poll()
    assert not polling.open_poll()
    assert polling.reason is Reason.DUPLICATE_POLL
    assert polling.poll_is_due
    assert polling.take(POLLING) == [b"1"]
    assert not polling.open_poll()


def test_a_poll_that_is_open_when_its_client_closes_ends_with_a_noop(polling: ServerSession) -> None:
    polling.open_poll()
    assert list(polling.receive_payload(b'1\x1e42/smcp,["late"]', 0)) == [Closed(Reason.CLIENT)]
    assert polling.poll_is_due
    assert polling.take(POLLING) == [b"6"]
    assert not polling.open_poll()


def test_a_poll_that_is_open_at_any_other_end_is_told_of_it() -> None:
    ends: list[Callable[[ServerSession], object]] = [
        lambda session: session.receive(b"x", 0),
        lambda session: session.close(),
        lambda session: session.close(Reason.PROTOCOL),
    ]
    for end in ends:
        session = connected(POLLING)
        session.open_poll()
        end(session)
        assert session.poll_is_due
        assert session.take(POLLING) == [b"1"]
        assert not session.open_poll()


def test_packets_queued_before_the_end_can_still_be_polled_once() -> None:
    session = opened(POLLING)
    for _ in range(3):
        list(session.receive_payload(b"40/smcp,", 0))
        session.refuse(NAMESPACE, b"{}")
    assert session.is_closed
    assert session.open_poll()
    assert session.take(POLLING) == [b"44/smcp,{}"] * 3 + [b"1"]
    assert not session.open_poll()


def test_the_packets_of_a_post_come_in_order(polling: ServerSession) -> None:
    body = b'42/smcp,1["x"]\x1e3\x1e451-/smcp,2["y"]\x1ebAQI=\x1e4x\x1e42/smcp,3["z"]'
    first, second, fault, last = polling.receive_payload(body, 0)
    assert (first, second) == (Event(NAMESPACE, 1, b'["x"]'), Event(NAMESPACE, 2, b'["y"]', (b"\1\2",)))
    assert isinstance(fault, Faulty)
    assert last == Event(NAMESPACE, 3, b'["z"]')


def test_a_malformed_post_ends_the_session_and_nothing_of_it_is_read(polling: ServerSession) -> None:
    with pytest.raises(Malformed):
        polling.receive_payload(EVENT + b"\x1ex", 0)
    assert polling.reason is Reason.PROTOCOL
    with pytest.raises(Malformed):
        polling.receive_payload(EVENT, 0)


def test_a_poll_that_is_lost_ends_the_session(polling: ServerSession) -> None:
    polling.open_poll()
    polling.send(b'42/smcp,["x"]')
    assert polling.lost(WEBSOCKET) is None
    assert polling.lost(POLLING) == Closed(Reason.TRANSPORT)
    assert polling.lost(POLLING) is None
    assert polling.queued == 0


# Upgrade


def upgraded() -> ServerSession:
    session = connected(POLLING)
    assert session.upgrade_opens(0)
    assert session.upgrade_receives(b"2probe", 0) == b"3probe"
    assert session.upgrade_receives(b"5", 0) == Upgraded()
    return session


def test_an_open_poll_is_released_by_the_probe_and_so_is_one_that_comes_later(polling: ServerSession) -> None:
    polling.open_poll()
    polling.upgrade_opens(0)
    assert not polling.poll_is_due
    polling.upgrade_receives(b"2probe", 0)
    for _ in range(2):
        assert polling.poll_is_due
        assert polling.take(POLLING) == [b"6"]
        assert polling.open_poll()
    polling.send(b'42/smcp,["x"]')
    assert polling.take(POLLING) == [b'42/smcp,["x"]'], "until it has taken over, polls carry packets"


def test_a_poll_that_is_still_open_at_the_upgrade_is_released_and_takes_nothing_along(polling: ServerSession) -> None:
    polling.upgrade_opens(0)
    polling.upgrade_receives(b"2probe", 0)
    polling.open_poll()
    polling.upgrade_receives(b"5", 0)
    polling.send(b'42/smcp,["x"]')
    assert polling.poll_is_due
    assert polling.take(POLLING) == [b"6"]
    assert polling.take(WEBSOCKET) == [b'42/smcp,["x"]']


def test_after_an_upgrade_polls_posts_and_other_websockets_are_refused_and_harm_nothing() -> None:
    session = upgraded()
    assert session.is_direct
    assert not session.open_poll()
    assert not session.upgrade_opens(0)
    with pytest.raises(Malformed):
        session.receive_payload(EVENT, 0)
    assert session.lost(POLLING) is None
    assert session.take(POLLING) == []
    assert session.receive(EVENT, 0) == Event(NAMESPACE, 1, b'["x"]')
    assert session.lost(WEBSOCKET) == Closed(Reason.TRANSPORT)


@pytest.mark.parametrize(
    "frames", [[b"garbage"], [b""], [b"5"], [b"2"], [b"2probe", b"2probe"], [b"2probe", EVENT], [b"2probe", b"1"]]
)
def test_a_probe_that_fails_leaves_the_session_polling_and_another_may_try(
    polling: ServerSession, frames: list[bytes]
) -> None:
    for _ in range(2):
        assert polling.upgrade_opens(0)
        assert not polling.upgrade_opens(0), "one at a time"
        assert [polling.upgrade_receives(frame, 0) for frame in frames][-1] is None
    assert polling.open_poll()
    assert not polling.poll_is_due
    assert list(polling.receive_payload(EVENT, 0)) == [Event(NAMESPACE, 1, b'["x"]')]
    assert polling.upgrade_opens(0)
    polling.upgrade_receives(b"2probe", 0)
    assert polling.upgrade_receives(b"5", 0) == Upgraded()


def test_a_websocket_that_is_lost_while_it_probes_leaves_the_session_polling(polling: ServerSession) -> None:
    polling.upgrade_opens(0)
    polling.upgrade_receives(b"2probe", 0)
    polling.upgrade_ends()
    polling.open_poll()
    assert not polling.poll_is_due
    assert polling.upgrade_opens(0)


def test_a_websocket_that_does_not_finish_its_probe_in_time_is_given_up() -> None:
    session = connected(POLLING, EngineLimits(ping_interval=100))
    session.upgrade_opens(3)
    assert session.deadline == 13
    assert session.tick(13) == UpgradeFailed()
    assert session.deadline == 100
    assert session.upgrade_receives(b"2probe", 14) is None
    assert not session.is_closed


def test_a_session_that_ends_while_a_websocket_probes_is_not_taken_over(polling: ServerSession) -> None:
    polling.upgrade_opens(0)
    polling.close()
    assert polling.upgrade_receives(b"2probe", 0) is None
    assert polling.deadline == inf


def test_a_client_that_polls_no_more_reads_over_its_websocket_why_the_session_was_closed(
    polling: ServerSession,
) -> None:
    polling.upgrade_opens(0)
    polling.upgrade_receives(b"2probe", 0)
    polling.send(b'42/smcp,["last"]')
    polling.close()
    assert polling.upgrade_receives(b"5", 0) == Upgraded()
    assert polling.take(WEBSOCKET) == [b'42/smcp,["last"]', b"1"]
    assert not polling.is_direct


def test_a_post_that_crosses_the_close_is_ignored_until_the_client_has_read_why(polling: ServerSession) -> None:
    polling.close()
    assert list(polling.receive_payload(b'42/smcp,["late"]', 0)) == []
    assert polling.open_poll()
    assert polling.take(POLLING) == [b"1"]
    with pytest.raises(Malformed):
        polling.receive_payload(b'42/smcp,["late"]', 0)


def test_packets_queued_when_a_closed_session_loses_its_transport_are_never_sent(polling: ServerSession) -> None:
    polling.send(b'42/smcp,["last"]')
    polling.close()
    assert polling.lost(POLLING) is None
    assert (polling.queued, polling.open_poll()) == (0, False)


# The end, and Engine.IO alone


def test_packets_sent_before_a_close_leave_before_it_and_none_afterwards(session: ServerSession) -> None:
    session.send(b'42/smcp,["x"]', [b"1"])
    assert not session.is_direct
    assert session.close() == Closed(Reason.SERVER)
    session.send(b'42/smcp,["y"]')
    session.accept(NAMESPACE, "x")
    assert session.refuse(NAMESPACE, b"{}") is None
    session.disconnect(NAMESPACE, 0)
    assert session.close(Reason.PROTOCOL) == Closed(Reason.SERVER), "it ends once"
    assert written(session) == [b'42/smcp,["x"]', Attachment(b"1"), b"1"]
    assert not session.is_direct


def test_a_raw_session_gives_engine_io_messages() -> None:
    session = ServerSession("s", LIMITS, 0, WEBSOCKET, raw=True)
    assert session.receive(b"4hello", 0) == Message(b"hello", is_binary=False)
    assert session.receive_binary(b"\1", 0) == Message(b"\1", is_binary=True)
    assert session.deadline == LIMITS.ping_interval
    assert session.receive(b"abc", 0) == Closed(Reason.PROTOCOL)
    assert session.receive(b"4hello", 0) is None
    assert session.receive_binary(b"\1", 0) is None


def test_ids_are_counted_for_each_session() -> None:
    assert [connected().next_id() for _ in range(2)] == [1, 1]
    session = connected()
    assert [session.next_id() for _ in range(3)] == [1, 2, 3]
