"""Shared pieces do not depend on the tests that ran before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import Hub, SharedHubs


def test_a_test_gets_the_server_that_its_folder_wants_whatever_was_used_before(
    shared_hub: Hub, shared_hubs: SharedHubs
) -> None:
    nodes = shared_hubs.hub("nodes")
    assert (len(shared_hub.urls), len(nodes.urls)) == (1, 2)
    assert (shared_hubs.hub("program"), shared_hubs.hub("nodes")) == (shared_hub, nodes)


def test_after_a_test_with_several_nodes_a_test_of_another_folder_has_one_server() -> None:
    """In the order in which a worker may get them. An agent at two nodes by turns has two sets of grants."""
    before = "tests/server/test_offices.py::test_joining_again_is_accepted_and_told_to_nobody[nodes]"
    after = "tests/test_fixtures.py::test_a_test_gets_the_server_that_its_folder_wants_whatever_was_used_before"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", before, after]
    ended = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert "2 passed" in ended.stdout, ended.stdout + ended.stderr
