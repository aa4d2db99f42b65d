"""The texts of results, as the SDK's client has them."""

from __future__ import annotations

from typing import Any


def text_of(result: Any) -> str:
    """The text of a result: of a tool, a resource or a prompt."""
    if hasattr(result, "messages"):
        return "\n".join(message.content.text for message in result.messages)
    if hasattr(result, "contents"):
        return "\n".join(item.text for item in result.contents)
    return "\n".join(block.text for block in result.content if block.type == "text")
