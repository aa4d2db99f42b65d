"""What tests share does not depend on the tests that ran before."""

from __future__ import annotations

from tests.conftest import Hub, SharedHubs


def test_a_test_gets_the_server_that_its_folder_wants_whatever_was_used_before(
    shared_hub: Hub, shared_hubs: SharedHubs
) -> None:
    nodes = shared_hubs.hub("nodes")
    assert (len(shared_hub.urls), len(nodes.urls)) == (1, 2)
    assert (shared_hubs.hub("program"), shared_hubs.hub("nodes")) == (shared_hub, nodes)
