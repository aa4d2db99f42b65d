"""Small types that several modules of the agent share."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from a2c_smcp.endpoint import Credentials

__all__ = ["AgentAuthProvider", "Seat"]


class Seat(NamedTuple):
    """A computer in an office. A computer's name is unique in its office only."""

    office: str
    computer: str

    def __str__(self) -> str:
        return f"{self.office}/{self.computer}"


class AgentAuthProvider(Protocol):
    """Supplies the credentials of an agent. It is called on every dial, so a token may be refreshed each time."""

    def credentials(self) -> Credentials | Awaitable[Credentials]: ...
