"""Approval of tool calls: a tool runs if its configuration or a grant allows it, or if the owner says yes.

If nobody can be asked, or asking fails, the answer is no. The owner may let the person at the MCP client that a call
comes from answer instead (`questions/client_approval.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from a2c_smcp.computer.asking import ask
from a2c_smcp.computer.tools.table import ToolRoute
from a2c_smcp.errors import ApprovalRefused
from a2c_smcp.protocol.visible import shown_caller
from a2c_smcp.types import TOOL_NAME

__all__ = [
    "ApprovalRequest",
    "Approvals",
    "Approve",
    "ApproveBy",
    "Caller",
    "Decision",
    "Grant",
    "Request",
    "approve_all",
]

logger = logging.getLogger(__name__)

_ACCEPT = "its owner may say yes at the prompt, or start the computer with --pin warn"

Decision: TypeAlias = Literal["no", "yes", "always", "always_for_agent"]
"""`always` grants this tool to this agent for good, `always_for_agent` grants it every tool."""

ApproveBy: TypeAlias = Literal["owner", "client"]
"""Who approves calls: the owner, or the person at the MCP client, for calls that can be asked."""


class Grant(NamedTuple):
    """What an agent may call without asking, for good: one tool of an MCP server, or everything.

    The tool has the name that its MCP server gives it, because an alias can be changed to mean another tool. A grant
    with a `client` is for calls that the agent makes for this MCP client, one without for calls that name none. A grant
    to an agent that seals its calls is for its `device`, a fingerprint, and for no other of the same name.
    """

    agent: str
    server: str | None = None
    tool: TOOL_NAME | None = None
    client: str = ""
    device: str = ""

    @property
    def who(self) -> str:
        return shown_caller(self.agent, self.client)


class NoticeSeal(Protocol):
    """Seals what the agent of one sealed request is told."""

    def notice(self, name: str, data: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """The agent that calls a tool, and its office.

    `client` is the MCP client that the agent calls for, by the name that it gives itself; empty if there is none. It
    makes no other caller: what is kept for an agent is kept for all of its clients. If the request was sealed, `device`
    is the fingerprint of the agent's key, and `seal` is for what it is told.
    """

    office: str
    agent: str
    client: str = field(default="", compare=False)
    device: str = field(default="", compare=False)
    seal: NoticeSeal | None = field(default=None, compare=False, repr=False)

    @property
    def who(self) -> str:
        """The agent, with its client: `bridge (claude-desktop)`."""
        return shown_caller(self.agent, self.client)

    def is_exactly(self, other: Caller) -> bool:
        """Whether it is the same agent, which calls for the same MCP client."""
        return self == other and self.client == other.client


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that the owner is asked about. Secrets in `arguments` are masked.

    `changed` is how the definition of the tool differs from the one that was approved or first seen; empty if it does
    not. Lines of it begin with `-` for what is gone and with `+` for what is new. A yes is a yes to this, too.
    """

    caller: Caller
    name: TOOL_NAME
    server: str
    tool: TOOL_NAME
    arguments: dict[str, Any] = field(repr=False)
    changed: str = field(default="", repr=False)

    def granted_by(self, decision: Decision | bool) -> Grant | None:
        """What a decision allows beyond this one call."""
        agent, client, device = self.caller.agent, self.caller.client, self.caller.device
        grants = {
            "always": Grant(agent, self.server, self.tool, client, device),
            "always_for_agent": Grant(agent, client=client, device=device),
        }
        return grants.get(decision) if isinstance(decision, str) else None


Request = ApprovalRequest  # the older name

Approve: TypeAlias = Callable[[ApprovalRequest], Decision | bool | Awaitable[Decision | bool]]


def approve_all(request: ApprovalRequest) -> bool:
    """Pass this as `approve` to let every tool run. Agents are told that no tool asks."""
    return True


class Approvals:
    """The grants of an owner, and the function that asks for more.

    `on_grant` is called with each new grant, `on_withdrawn` with the server and the tool whose grants have ended.
    """

    def __init__(
        self,
        ask: Approve | None = None,
        *,
        by: ApproveBy = "owner",
        grants: Iterable[Grant] = (),
        on_grant: Callable[[Grant], None] = lambda grant: None,
    ) -> None:
        self._ask = ask
        self._by = by
        self.on_grant = on_grant
        self.on_withdrawn: Callable[[str, TOOL_NAME], None] = lambda server, tool: None
        self.grants = set(grants)

    def allows(self, caller: Caller, route: ToolRoute) -> bool:
        """Whether a tool may run without asking, by its configuration or by a grant."""
        if route.asks_again:
            return False
        if route.meta.auto_apply is True:
            return True
        if not self.grants:
            return False
        agent, client, device = caller.agent, caller.client, caller.device
        wide = Grant(agent, client=client, device=device)
        return not self.grants.isdisjoint({wide, Grant(agent, route.server, route.tool, client, device)})

    @property
    def approves_all(self) -> bool:
        return self._ask is approve_all

    @property
    def are_by_client(self) -> bool:
        """Whether the person at the MCP client is asked, for calls that can be asked."""
        return self._by == "client" and not self.approves_all

    def approved(self, agent: str, routes: Mapping[TOOL_NAME, ToolRoute]) -> bool | list[TOOL_NAME]:
        """The tools without `auto_apply` that this agent may run without asking. `True` stands for every tool.

        Grants with a client do not count: an agent asks for its tools once, for all of its clients.
        """
        if self.approves_all or Grant(agent) in self.grants:
            return _all_that_do_not_ask_again(routes)
        if not any(grant.agent == agent for grant in self.grants):
            return []
        caller = Caller("", agent)
        return [name for name, route in routes.items() if not route.meta.auto_apply and self.allows(caller, route)]

    async def require(self, request: ApprovalRequest, route: ToolRoute) -> None:
        """Return if the tool may run, after asking the owner if need be. Raises `ApprovalRefused`."""
        if self.allows(request.caller, route):
            return
        if self._ask is None or (route.asks_again and self.approves_all):
            remedy = _ACCEPT if route.asks_again else self._remedy(request)
            raise ApprovalRefused(f"{request.name!r} needs its owner's approval and nobody can be asked: {remedy}")
        decision = await self._answer(self._ask, request)
        if grant := request.granted_by(decision):
            self.grants.add(grant)
            self.on_grant(grant)
        elif decision not in ("yes", True):
            raise ApprovalRefused(f"the owner said no to {request.name!r}")

    def _remedy(self, request: ApprovalRequest) -> str:
        usual = f"set auto_apply for it in the configuration of {request.server!r}, or start the computer with --yes"
        if self.are_by_client:
            return f"use an MCP client that answers questions (elicitation), {usual}"
        return f"{usual}, or with --approve-by client, which asks the person at the MCP client"

    async def _answer(self, question: Approve, request: ApprovalRequest) -> Decision | bool:
        """The owner's answer. The function that asks may fail: that is not a yes."""
        try:
            decision: Decision | bool = await ask(question, request)
        except Exception:
            logger.exception("the owner could not be asked about %r of %s", request.name, request.caller.who)
            raise ApprovalRefused(f"the owner could not be asked about {request.name!r}") from None
        return decision

    def revoke(self, grant: Grant) -> None:
        self.grants.discard(grant)

    def withdraw(self, server: str, tool: TOOL_NAME) -> None:
        """End the grants of one tool, for all agents. Those for every tool of an agent stay."""
        self.grants = {grant for grant in self.grants if (grant.server, grant.tool) != (server, tool)}
        self.on_withdrawn(server, tool)


def _all_that_do_not_ask_again(routes: Mapping[TOOL_NAME, ToolRoute]) -> bool | list[TOOL_NAME]:
    """`True`, or, if a tool has changed and asks for that, the names of the others."""
    if not any(route.asks_again for route in routes.values()):
        return True
    return [name for name, route in routes.items() if not route.meta.auto_apply and not route.asks_again]
