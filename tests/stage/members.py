"""Members of offices, for machines that try what several clients may do in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from a2c_smcp.protocol.offices import Member

AGENTS, COMPUTERS = ("a1", "a2", "a3"), ("c1", "c2", "c3", "c4")  # connections
OFFICES, NAMES, SECRETS = ("north", "south", "east"), ("ann", "bob", "cleo"), (None, "k1", "k2")


def digest(role: str, name: str, secret: str | None) -> str | None:
    return secret and f"{secret}/{role}/{name}"


INSTANCES = [
    digest(role, name, secret) for role in ("agent", "computer") for name in NAMES for secret in SECRETS if secret
]


def seat(sid: str, name: str, office_id: str, secret: str | None = None) -> Member:
    role = "agent" if sid in AGENTS else "computer"
    return Member(sid, role, name, office_id, digest(role, name, secret))


seats = st.builds(
    seat,
    sid=st.sampled_from(AGENTS + COMPUTERS),
    name=st.sampled_from(NAMES),
    office_id=st.sampled_from(OFFICES),
    secret=st.sampled_from(SECRETS),
)


def without_seat(notice: dict[str, Any]) -> dict[str, Any]:
    """What a notice says, apart from the identity of the seat."""
    return {field: value for field, value in notice.items() if field != "seat"}
