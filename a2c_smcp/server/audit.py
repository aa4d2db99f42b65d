"""A line for everything that an operator may be asked about later. No payloads, no credentials, no sids."""

from __future__ import annotations

import logging

__all__ = ["record"]

logger = logging.getLogger("a2c_smcp.audit")


def record(action: str, **facts: object) -> None:
    """`joined office='desk' role='agent' name='planner'`: names are quoted, and hold no control characters."""
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", " ".join((action, *(f"{name}={fact!r}" for name, fact in facts.items() if fact is not None))))
