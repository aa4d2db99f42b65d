"""The nodes that share a directory: their names, which session ids carry, and how long their leases last."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from a2c_smcp.errors import ConfigError, Unavailable

__all__ = ["LeaseLost", "LeaseToken", "NameInUse", "Node", "Pace", "check_name", "new_name", "node_of", "sid_at"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")


class LeaseLost(Unavailable):
    """This node's lease has ended, or a newer one was given under its name: its members may have lost their seats."""


class NameInUse(Unavailable):
    """Another process has a lease under this node's name, for so many `seconds` more."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(f"another process is node {name!r}")
        self.seconds = seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times of leases, in seconds (`lease.py` says what each is for).

    A node that dies is noticed after `lease - beat` to `lease + beat`: not before its members could resume elsewhere (a
    grace of 5 s), and in less than 10 s.
    """

    lease: float = 7.0
    beat: float = 1.0
    margin: float = 0.5
    patience: float = 1.0
    retry: float = 0.25
    return_grace: float = 3.0
    linger: float = 5.0


@dataclass(frozen=True, slots=True)
class LeaseToken:
    """What a node shows when it writes (a fencing token): the store refuses every epoch but the newest of a node."""

    node: str
    epoch: str


@dataclass(frozen=True, slots=True)
class Node:
    """A node as operators see it. `lease` is what is left of it in seconds, negative if it has ended."""

    name: str
    epoch: int
    url: str
    started_at: float
    lease: float
    members: int


def new_name() -> str:
    return secrets.token_hex(4)


def check_name(name: str) -> str:
    """Raises `ConfigError` for a name that cannot be part of a session id."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"a node's name is made of 1 to 63 letters, digits, '-' and '_', not {name!r}")
    return name


def sid_at(node: str, token: str) -> str:
    """A session id that names its node. The token has no dot."""
    return f"{node}.{token}"


def node_of(sid: str) -> str | None:
    """The node that a session id names; `None` if it names none. A client may have invented the sid."""
    name, dot, _ = sid.partition(".")
    return name if dot and _NAME.fullmatch(name) else None
