"""The table of what is carried of MCP says what is so."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mcp_types import methods as mcp

from a2c_smcp import mcp_host
from a2c_smcp.computer import Caller, Computer
from a2c_smcp.protocol import operations, questions
from a2c_smcp.protocol.events import EVENTS
from reference.features import FEATURES, REVISIONS, MCPFeature

pytestmark = pytest.mark.covers("mcp-features")

RECORDER = Path(__file__).parent / "servers" / "recorder.py"
SOURCES = "\n".join(path.read_text("utf-8") for path in Path(*mcp_host.__path__).rglob("*.py"))
SOURCES += "".join(Path(module.__file__).read_text("utf-8") for module in (operations, questions))
BY_THE_SDK = {
    "initialize": "session.initialize()",
    "notifications/initialized": "session.initialize()",
    "server/discover": "session.discover()",
    "subscriptions/listen": "mcp.client.subscriptions import",
    "notifications/subscriptions/acknowledged": "mcp.client.subscriptions import",
}
"""Methods that the MCP SDK sends or reads, with the words by which it is asked to."""


def methods_of_mcp() -> set[tuple[str, str]]:
    tables = (mcp.CLIENT_REQUESTS, mcp.CLIENT_NOTIFICATIONS, mcp.SERVER_REQUESTS, mcp.SERVER_NOTIFICATIONS)
    return {(method, revision) for table in tables for method, revision in table}


def of_revisions(feature: MCPFeature) -> set[tuple[str, str]]:
    return {(method, revision) for method in feature.methods for revision in feature.revisions}


def test_each_method_of_each_revision_is_in_one_row() -> None:
    assert set(REVISIONS) == set(mcp.KNOWN_PROTOCOL_VERSIONS)
    rows = Counter(pair for feature in FEATURES if not feature.extension for pair in of_revisions(feature))
    assert set(rows) == methods_of_mcp()
    assert set(rows.values()) == {1}
    extensions = {pair for feature in FEATURES if feature.extension for pair in of_revisions(feature)}
    assert extensions.isdisjoint(methods_of_mcp())


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_the_events_of_a_row_are_those_of_the_protocol(feature: MCPFeature) -> None:
    assert {*feature.events} <= {name for row in EVENTS for name in (row.name, row.notice)}
    assert feature.carried != "no" or not (feature.events or feature.capabilities)


def is_in_the_code(method: str) -> bool:
    """Whether our code has the name of the method, or the SDK's name for it."""
    model = {**mcp.MONOLITH_REQUESTS, **mcp.MONOLITH_NOTIFICATIONS}.get(method)
    words = [f'"{method}"', BY_THE_SDK.get(method, f'"{method}"')]
    return any(word in SOURCES for word in words) or bool(model and re.search(rf"\b{model.__name__}\b", SOURCES))


@pytest.mark.parametrize("feature", [each for each in FEATURES if each.methods], ids=lambda feature: feature.name)
def test_what_is_carried_is_in_the_code_and_nothing_else(feature: MCPFeature) -> None:
    assert {is_in_the_code(method) for method in feature.methods} == {feature.carried != "no"}


async def capabilities_seen(revision: str, on_question: Any) -> dict[str, Any]:
    """What a Computer declares to a server of this revision: for the session, or for a call."""
    computer = Computer("laptop", on_question=on_question)
    recorder = {"name": "recorder", "command": sys.executable, "args": [str(RECORDER), revision]}
    computer.add_server({**recorder, "default_tool_meta": {"auto_apply": True}})
    async with computer:
        await computer.start()
        assert computer.status()["recorder"].revision == revision, computer.status()["recorder"]
        result = await computer.execute_tool(Caller("office", "planner"), "r1", "seen", {}, 30)
        seen = {message["method"]: message.get("params", {}) for message in result["structuredContent"]["seen"]}
    if "initialize" in seen:
        return dict(seen["initialize"]["capabilities"])
    return dict(seen["tools/call"]["_meta"]["io.modelcontextprotocol/clientCapabilities"])


def flat(capabilities: dict[str, Any]) -> set[str]:
    """The capabilities as the table spells them, with those inside of others."""
    names = set()
    for name, inner in capabilities.items():
        names |= {name} | ({f"{name}.{each}" for each in inner} if isinstance(inner, dict) else set())
    return names


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_computer_declares_to_a_server_what_the_table_says(revision: str) -> None:
    newest = revision == REVISIONS[-1]  # the others share a handshake: a server's revision is known only after it
    rows = [each for each in FEATURES if (revision in each.revisions if newest else each.revisions != REVISIONS[-1:])]
    listed = {name for feature in rows for name in feature.capabilities}
    declared = flat(await capabilities_seen(revision, on_question=lambda question: None))
    assert {name.partition(".")[0] for name in declared} == {name.partition(".")[0] for name in listed}
    assert {name for name in listed if "." in name} <= declared


async def test_elicitation_is_declared_for_a_call_only_if_somebody_can_answer() -> None:
    assert "elicitation" not in await capabilities_seen(REVISIONS[-1], on_question=None)
