"""However packets are cut into frames and payloads, and whenever they change the transport, they mean the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.engine.client import ClientSession
from a2c_smcp.engine.events import Closed, Connect, Happening
from a2c_smcp.engine.packets import Attachment, Outgoing, encode_payload
from a2c_smcp.engine.server import ServerSession
from a2c_smcp.engine.session import POLLING, WEBSOCKET, EngineLimits, Transport

pytestmark = pytest.mark.covers("engine-splits")

LIMITS = EngineLimits(max_message=100, max_ack=90, max_attachments=3, max_beside_attachments=80, max_connect=60)
"""Small enough to be met."""
OPEN = b'0{"sid":"s","upgrades":["websocket"],"pingInterval":1000,"pingTimeout":1000,"maxPayload":1000}'
SOUND = [
    *(b'42/smcp,["x"]', b'42/smcp,7["x",{"a":"\xc3\xbc"}]', b"43/smcp,7[1]", b'42["main"]', b"40/smcp,"),
    *(b'40/smcp,{"token":"t"}', b"40/other,", b"41/smcp,", b"44/other,{}", b'450-/smcp,["x"]'),
    b'451-/smcp,["x",{"_placeholder":true,"num":0}]',
    b'452-/smcp,8["x",{"_placeholder":true,"num":0},{"_placeholder":true,"num":1}]',
    *(b'461-/smcp,8[{"_placeholder":true,"num":0}]', b"2", b"3", b"6"),
]
ODD = [
    *(b"4", b"49", b"4abc", b"42/smcp,{}", b"43/smcp,[]", b'454-/smcp,1["x"]', b'452/smcp,1["x"]'),
    *(b'42/smcp,1234567890123456["x"]', b'42/smcp,5["' + b"x" * 100 + b'"]', b'451-/smcp,5["' + b"x" * 80 + b'"]'),
    *(b"40/" + b"x" * 60, b"5", b"2probe", b"1"),
]
pieces: st.SearchStrategy[Outgoing] = st.one_of(
    st.sampled_from(SOUND),
    st.sampled_from(SOUND),
    st.sampled_from(ODD),
    st.builds(Attachment, st.binary(max_size=40)),
    st.builds(Attachment, st.binary(max_size=40)),
)
conversations = st.lists(pieces, max_size=25).flatmap(lambda rest: st.sampled_from([rest, [b"40/smcp,", *rest]]))
cuts = st.lists(st.integers(1, 6), max_size=25)


class End:
    """A session at either end whose application accepts what it can, and notes what happens and what is sent."""

    def __init__(self, role: str, transport: Transport) -> None:
        self.session: ServerSession | ClientSession
        if role == "server":
            self.session = ServerSession("s", LIMITS, 0, transport)
        else:
            self.session = ClientSession(LIMITS, transport)
            self.session.receive(OPEN, 0)
            self.session.connect(b"/smcp")
        self.noted: list[Happening] = []

    def note(self, happenings: Iterable[Happening | None]) -> None:
        for happening in happenings:
            if happening is None:
                continue
            self.noted.append(happening)
            if isinstance(happening, Connect) and isinstance(self.session, ServerSession):
                if happening.namespace == b"/smcp" and happening.body is not None:
                    self.session.accept(happening.namespace, "x")
                elif closed := self.session.refuse(happening.namespace, b"{}"):
                    self.noted.append(closed)

    def hear(self, packet: Outgoing) -> None:
        """A frame of a websocket."""
        if isinstance(packet, Attachment):
            self.note([self.session.receive_binary(packet.data, 0)])
        else:
            self.note([self.session.receive(packet, 0)])

    def fetch(self, packets: Sequence[Outgoing]) -> None:
        """A payload: a POST at the server, the response to a poll at the client."""
        if not self.session.is_closed:
            self.note(self.session.receive_payload(encode_payload(packets), 0))

    def upgrade(self) -> None:
        if isinstance(self.session, ClientSession):
            self.session.upgrade()
        elif self.session.upgrade_opens(0):
            self.session.upgrade_receives(b"2probe", 0)
            self.session.upgrade_receives(b"5", 0)

    @property
    def outcome(self) -> tuple[list[Happening], list[Outgoing], bool]:
        """What happened, what is to be sent, whether it has ended."""
        sent: list[Outgoing] = []
        if isinstance(self.session, ServerSession) and self.session.transport is POLLING:
            while self.session.queued and self.session.open_poll():
                sent += self.session.take(POLLING)
        while self.session.queued:
            sent += self.session.take(self.session.transport)
        return self.noted, sent, self.session.is_closed


def in_groups(packets: Sequence[Outgoing], sizes: Sequence[int]) -> Iterator[Sequence[Outgoing]]:
    ends = [*(end for end in accumulate(sizes) if end < len(packets)), len(packets)]
    for start, end in zip([0, *ends], ends, strict=False):
        yield packets[start:end]


def by_websocket(role: str, packets: Sequence[Outgoing]) -> End:
    end = End(role, WEBSOCKET)
    for packet in packets:
        end.hear(packet)
    return end


roles = pytest.mark.parametrize("role", ["server", "client"])


@roles
@given(conversations, cuts)
def test_payloads_mean_what_frames_mean(role: str, packets: list[Outgoing], sizes: list[int]) -> None:
    end = End(role, POLLING)
    for group in in_groups(packets, sizes):
        if group:
            end.fetch(group)
    assert end.outcome == by_websocket(role, packets).outcome
    assert not any(isinstance(happening, Closed) for happening in end.noted[:-1])


@roles
@given(conversations, cuts, st.integers(0, 25))
def test_packets_mean_the_same_before_and_after_an_upgrade(
    role: str, packets: list[Outgoing], sizes: list[int], moment: int
) -> None:
    end = End(role, POLLING)
    for group in in_groups(packets[:moment], sizes):
        if group:
            end.fetch(group)
    end.upgrade()
    for packet in packets[moment:]:
        end.hear(packet)
    assert end.outcome == by_websocket(role, packets).outcome
