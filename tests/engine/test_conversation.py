"""Client and server over a network that delays, reorders and loses: what arrives was sent, in order, once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.engine.events import Reason
from a2c_smcp.engine.session import POLLING, WEBSOCKET, Transport
from tests.engine.network import LIMITS, Network

pytestmark = pytest.mark.covers("engine-agreement")

scripts = st.integers(0, 150).flatmap(lambda size: st.binary(min_size=size, max_size=size))
"""Each byte picks one of the things that could happen next."""
transports = st.sampled_from([POLLING, WEBSOCKET])
ACCIDENT = 250
"""A byte from here on picks an accident."""
calm = scripts.map(lambda script: bytes(byte % ACCIDENT for byte in script))


def play(network: Network, script: bytes) -> None:
    for byte in script:
        choices = list(network.accidents() if byte >= ACCIDENT else network.choices())
        choices[byte % len(choices)]()
        assert_agreement(network)


def assert_agreement(network: Network) -> None:
    """Each end got the beginning of what the other one sent."""
    assert network.got_by_server == network.sent_by_client[: len(network.got_by_server)]
    assert network.got_by_client == network.sent_by_server[: len(network.got_by_client)]


@given(transports, calm)
def test_all_that_is_sent_arrives_whatever_the_delays_and_the_moment_of_the_upgrade(
    transport: Transport, script: bytes
) -> None:
    network = Network(transport)
    play(network, script)
    network.drain()
    assert (network.server.reason, network.client.reason) == (None, None)
    assert network.got_by_server == network.sent_by_client
    assert network.got_by_client == network.sent_by_server


@given(transports, calm, st.booleans())
def test_all_that_was_sent_before_a_close_arrives_before_it(
    transport: Transport, script: bytes, by_server: bool
) -> None:
    network = Network(transport)
    play(network, script)
    if by_server:
        network.server_closes()
        network.drain()
        assert network.got_by_client == network.sent_by_server
        assert (network.server.reason, network.client.reason) == (Reason.SERVER, Reason.SERVER)
    else:
        network.client_closes()
        network.drain()
        assert network.got_by_server == network.sent_by_client
        assert (network.server.reason, network.client.reason) == (Reason.CLIENT, Reason.CLIENT)


@given(transports, scripts)
def test_packets_that_arrive_before_a_loss_are_the_first_that_were_sent(transport: Transport, script: bytes) -> None:
    network = Network(transport)
    play(network, script)
    network.drain()
    assert_agreement(network)
    if network.server.is_closed or network.client.is_closed:
        network.pass_time(2 * (LIMITS.ping_interval + LIMITS.ping_timeout))
        network.drain()
        assert (network.server.is_closed, network.client.is_closed) == (True, True)
    else:
        assert network.got_by_server == network.sent_by_client
        assert network.got_by_client == network.sent_by_server
