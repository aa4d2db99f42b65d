"""Whether a tool may run. What is not allowed beforehand is asked of the owner; where nobody can be asked, it is no."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from a2c_smcp.computer.asking import ask
from a2c_smcp.computer.tools.table import ToolRoute
from a2c_smcp.errors import ApprovalRefused
from a2c_smcp.types import TOOL_NAME

__all__ = ["ApprovalRequest", "Approvals", "Approve", "Caller", "Decision", "Grant", "Request", "approve_all"]

logger = logging.getLogger(__name__)

Decision: TypeAlias = Literal["no", "yes", "always", "always_for_agent"]
"""`always` is for this agent and this tool, `always_for_agent` for whatever this agent wants."""


class Grant(NamedTuple):
    """What an agent may do for good: one tool of an MCP server, as that server calls it, or everything.

    An alias may move, what it stands for does not.
    """

    agent: str
    server: str | None = None
    tool: TOOL_NAME | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who wants a tool: an agent, in an office."""

    office: str
    agent: str


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What the owner is asked. The arguments are masked."""

    caller: Caller
    name: TOOL_NAME
    server: str
    tool: TOOL_NAME
    arguments: dict[str, Any] = field(repr=False)

    def granted_by(self, decision: Decision | bool) -> Grant | None:
        """What an answer allows beyond this one call."""
        grants = {
            "always": Grant(self.caller.agent, self.server, self.tool),
            "always_for_agent": Grant(self.caller.agent),
        }
        return grants.get(decision) if isinstance(decision, str) else None


Request = ApprovalRequest  # the older name

Approve: TypeAlias = Callable[[ApprovalRequest], Decision | bool | Awaitable[Decision | bool]]


def approve_all(request: ApprovalRequest) -> bool:
    """What an owner gives as `approve` who lets every tool run. It is told to agents: nothing asks."""
    return True


class Approvals:
    """Remembers what was granted for good; `grants` can be saved and given back, `on_grant` hears of each new one."""

    def __init__(
        self,
        ask: Approve | None = None,
        *,
        grants: Iterable[Grant] = (),
        on_grant: Callable[[Grant], None] = lambda grant: None,
    ) -> None:
        self._ask = ask
        self.on_grant = on_grant
        self.grants = set(grants)

    def allows(self, agent: str, route: ToolRoute) -> bool:
        """Whether nobody need be asked: the configuration says so, or it was granted before."""
        if route.meta.auto_apply is True:
            return True
        return not self.grants.isdisjoint({Grant(agent), Grant(agent, route.server, route.tool)})

    @property
    def approves_all(self) -> bool:
        return self._ask is approve_all

    def approved(self, agent: str, routes: Mapping[TOOL_NAME, ToolRoute]) -> bool | list[TOOL_NAME]:
        """What this agent may run unasked though the tool's own `auto_apply` does not say so: `True` is every tool."""
        if self.approves_all or Grant(agent) in self.grants:
            return True
        if not any(grant.agent == agent for grant in self.grants):
            return []
        return [name for name, route in routes.items() if not route.meta.auto_apply and self.allows(agent, route)]

    async def require(self, request: ApprovalRequest, route: ToolRoute) -> None:
        """Returns if the tool may run. Raises `ApprovalRefused`."""
        if self.allows(request.caller.agent, route):
            return
        if self._ask is None:
            raise ApprovalRefused(
                f"{request.name!r} needs its owner's approval and nobody can be asked: "
                f"set auto_apply for it in the configuration of {request.server!r}, or start the computer with --yes"
            )
        decision = await self._answer(self._ask, request)
        if grant := request.granted_by(decision):
            self.grants.add(grant)
            self.on_grant(grant)
        elif decision not in ("yes", True):
            raise ApprovalRefused(f"the owner said no to {request.name!r}")

    async def _answer(self, question: Approve, request: ApprovalRequest) -> Decision | bool:
        """Who asks may block, and may fail: that is no yes."""
        try:
            decision: Decision | bool = await ask(question, request)
        except Exception:
            logger.exception("the owner could not be asked about %r", request.name)
            raise ApprovalRefused(f"the owner could not be asked about {request.name!r}") from None
        return decision

    def revoke(self, grant: Grant) -> None:
        self.grants.discard(grant)
