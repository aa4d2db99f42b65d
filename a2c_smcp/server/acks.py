"""Answers as the JSON arrays of acks: the one place where errors become acks (WIRE §3)."""

from __future__ import annotations

from typing import Any

from a2c_smcp.errors import SMCPError
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.events import Event
from a2c_smcp.protocol.results import error_ack
from a2c_smcp.server.outcomes import Answer

__all__ = ["DONE", "answer", "refusal"]

DONE = Answer(b"[true,null]")
"""Of a join or a leave."""


def answer(value: Any) -> Answer:
    """An ack with one argument."""
    return Answer(f"[{dumps(value)}]".encode())


def refusal(event: Event | None, error: SMCPError) -> bytes:
    """The error in the shape that the sender of this event expects."""
    shape = error_ack(event, error)
    return (dumps(list(shape)) if isinstance(shape, tuple) else f"[{dumps(shape)}]").encode()
