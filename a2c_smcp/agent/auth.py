"""How an agent shows who it is, for those to whom an API key is not enough."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from a2c_smcp.endpoint import Credentials

__all__ = ["AgentAuthProvider", "ApiKeyAuth", "Credentials"]


class AgentAuthProvider(Protocol):
    """Asked each time the agent dials, so that a token may be a fresh one."""

    def credentials(self) -> Credentials | Awaitable[Credentials]: ...


class ApiKeyAuth:
    """The same key each time, or none."""

    def __init__(self, api_key: str | None) -> None:
        self._credentials = Credentials.of_key(api_key)

    def credentials(self) -> Credentials:
        return self._credentials
