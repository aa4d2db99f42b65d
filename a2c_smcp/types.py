"""Type aliases of the specification (000, "类型别名")."""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = ["SERVER_NAME", "TOOL_NAME", "AttributeValue", "Attributes", "Desktop", "Role"]

SERVER_NAME: TypeAlias = str
TOOL_NAME: TypeAlias = str
AttributeValue: TypeAlias = str | int | float | bool | list[str] | None
Attributes: TypeAlias = dict[str, AttributeValue]
Desktop: TypeAlias = str
Role: TypeAlias = Literal["computer", "agent"]
