"""Which tools can be seen and called: allowed and denied by names, patterns and tags."""

from __future__ import annotations

from typing import Any

import pytest

from a2c_smcp.errors import ToolForbidden
from a2c_smcp.registry import MCPRegistry, Policy
from a2c_smcp.registry.content import mcp_result
from tests.registry.tools import registry_of, tool
from tests.stage.raising import raises

pytestmark = pytest.mark.covers("registry-policy")

TOOLS = {"read_file": {"safe"}, "read_mail": {"safe", "private"}, "rm": {"danger"}, "laptop__rm": {"danger"}}


def visible(**rules: Any) -> set[str]:
    registry = MCPRegistry(policy=Policy(**rules))
    registry.update(add=[tool(name, tags=tags) for name, tags in TOOLS.items()])
    return set(registry.describe())


@pytest.mark.parametrize(
    ("rules", "seen"),
    [
        ({}, {*TOOLS}),
        ({"allow": ["read_*"]}, {"read_file", "read_mail"}),
        ({"allow": ["read_file", "rm"]}, {"read_file", "rm"}),
        ({"allow": "rm"}, {"rm"}),
        ({"allow": []}, set()),
        ({"allow_tags": ["safe"]}, {"read_file", "read_mail"}),
        ({"allow_tags": ["safe"], "allow": ["rm"]}, {"read_file", "read_mail", "rm"}),
        ({"deny": ["read_*"]}, {"rm", "laptop__rm"}),
        ({"deny": ["rm"]}, {"read_file", "read_mail"}),
        ({"deny_tags": "danger"}, {"read_file", "read_mail"}),
        ({"deny_tags": ["p*"]}, {"read_file", "rm", "laptop__rm"}),
        ({"allow": ["*"], "deny_tags": ["private"], "deny": ["laptop__*"]}, {"read_file", "rm"}),
        ({"allow": ["read_mail"], "deny": ["read_mail"]}, set()),
        ({"allow_tags": ["safe"], "deny_tags": ["private"]}, {"read_file"}),
        ({"allow": ["READ_*"]}, set()),
        ({"allow": ["r?"]}, {"rm"}),
        ({"allow": ["nope"]}, set()),
    ],
)
def test_deny_wins_and_tools_that_are_not_allowed_are_missing(rules: dict[str, Any], seen: set[str]) -> None:
    assert visible(**rules) == seen


@pytest.fixture
def registry() -> MCPRegistry:
    registry = MCPRegistry(policy=Policy(deny=["rm"]))
    registry.update(add=[tool("rm"), tool("ls")])
    return registry


async def test_a_forbidden_tool_cannot_be_called(registry: MCPRegistry) -> None:
    for attempt in (lambda: registry.call("rm", {}), lambda: registry["rm"]):
        with raises(ToolForbidden, code=403):
            attempt()
    with pytest.raises(ToolForbidden):
        await registry.acall("rm", {})
    (refused,) = await registry.call_many([("rm", {})])
    assert isinstance(refused, ToolForbidden)


async def test_a_forbidden_tool_is_not_listed(registry: MCPRegistry) -> None:
    assert [*registry] == ["ls"]
    assert "rm" not in registry
    assert len(registry) == 1
    assert [name for name, _ in registry.items()] == ["ls"]
    for wanted in ("openai", "anthropic", "gemini", "mcp"):
        assert "'rm'" not in str(registry.describe(wanted))  # type: ignore[call-overload]
    assert [shown["name"] for shown in registry.describe("mcp")] == ["ls"]
    assert (await mcp_result("rm", registry.acall("rm", {})))["isError"]
    with pytest.raises(KeyError) as caught:
        registry.call("rmm", {})
    assert "did you mean" not in str(caught.value)


def test_a_forbidden_tool_can_be_removed(registry: MCPRegistry) -> None:
    registry.unregister("rm")
    with pytest.raises(KeyError):
        registry.call("rm", {})


def test_a_tool_may_become_forbidden_and_allowed_again_by_its_tags() -> None:
    registry = registry_of(tool("a"), tool("a", tags=["danger"]), policy=Policy(deny_tags=["danger"]))
    assert [*registry] == []
    with pytest.raises(ToolForbidden):
        registry.call("a", {})
    registry.register(tool("a"))
    assert registry.call("a", {}) == {}
