"""Whether a tool may run. What is not allowed beforehand is asked of the owner; where nobody can be asked, it is no."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from a2c_smcp.computer.inputs.asking import ask
from a2c_smcp.computer.tools import ToolRoute
from a2c_smcp.errors import ApprovalRefused
from a2c_smcp.types import TOOL_NAME

__all__ = ["Approvals", "Approve", "Caller", "Decision", "Request"]

logger = logging.getLogger(__name__)

Decision: TypeAlias = Literal["no", "yes", "always"]
"""`always` is for this agent and this tool."""

Grant: TypeAlias = tuple[str, str, str]
"""Agent, MCP server, and the tool as that server calls it: an alias may move, what it stands for does not."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who wants a tool: an agent, in an office."""

    office: str
    agent: str


@dataclass(frozen=True, slots=True)
class Request:
    """What the owner is asked. The arguments are masked."""

    caller: Caller
    name: TOOL_NAME
    server: str
    tool: TOOL_NAME
    arguments: dict[str, Any] = field(repr=False)


Approve: TypeAlias = Callable[[Request], Decision | bool | Awaitable[Decision | bool]]


class Approvals:
    """Remembers what was granted for good; `grants` can be saved and given back."""

    def __init__(
        self,
        ask: Approve | None = None,
        *,
        grants: Iterable[Grant] = (),
        on_grant: Callable[[Grant], None] | None = None,
    ) -> None:
        self._ask = ask
        self._on_grant = on_grant
        self.grants = set(grants)

    async def require(self, request: Request, route: ToolRoute) -> None:
        """Returns if the tool may run. Raises `ApprovalRefused`."""
        grant = (request.caller.agent, request.server, request.tool)
        if route.meta.auto_apply is True or grant in self.grants:
            return
        if self._ask is None:
            raise ApprovalRefused(
                f"{request.name!r} needs its owner's approval and nobody can be asked: "
                f"set auto_apply for it in the configuration of {request.server!r}, or start the computer with --yes"
            )
        decision = await self._answer(self._ask, request)
        if decision == "always":
            self.grants.add(grant)
            if self._on_grant:
                self._on_grant(grant)
        elif decision not in ("yes", True):
            raise ApprovalRefused(f"the owner said no to {request.name!r}")

    async def _answer(self, question: Approve, request: Request) -> Decision | bool:
        """Who asks may block, and may fail: that is no yes."""
        try:
            decision: Decision | bool = await ask(question, request)
        except Exception:
            logger.exception("the owner could not be asked about %r", request.name)
            raise ApprovalRefused(f"the owner could not be asked about {request.name!r}") from None
        return decision

    def revoke(self, grant: Grant) -> None:
        self.grants.discard(grant)
