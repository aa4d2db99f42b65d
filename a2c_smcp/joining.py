"""Joining and leaving an office over a connection, for agents and computers."""

from __future__ import annotations

from typing import Any

from a2c_smcp.connection import PATIENCE, Connection
from a2c_smcp.errors import SMCPError
from a2c_smcp.smcp import JOIN_OFFICE_EVENT, LEAVE_OFFICE_EVENT
from a2c_smcp.types import Role

__all__ = ["join", "leave"]


async def join(connection: Connection, role: Role, name: str, office: str, instance: str) -> None:
    """Join an office, or take up the seat that this instance had. Raises the refusal."""
    request = {"role": role, "name": name, "office_id": office, "instance": instance}
    _require_accepted(await connection.ask(JOIN_OFFICE_EVENT, request, PATIENCE))


async def leave(connection: Connection, office: str, timeout: float = PATIENCE) -> None:
    """Leave an office. Raises the refusal."""
    _require_accepted(await connection.ask(LEAVE_OFFICE_EVENT, {"office_id": office}, timeout))


def _require_accepted(answer: Any) -> None:
    accepted, reason = answer if isinstance(answer, tuple) and len(answer) == 2 else (False, f"500 {answer}")
    if not accepted:
        raise SMCPError.from_text(reason)
