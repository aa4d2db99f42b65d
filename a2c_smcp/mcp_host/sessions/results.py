"""Tool results as they travel on. What a server sent stays as it is, except that every result is a finished one."""

from __future__ import annotations

from typing import Any

__all__ = ["error_result", "finished", "tool_result", "wants_input"]


def tool_result(raw: dict[str, Any]) -> dict[str, Any]:
    if wants_input(raw):
        return error_result("This tool wants interactive input, which cannot be given here.")
    return finished(raw)


def finished(raw: dict[str, Any]) -> dict[str, Any]:
    """Without the mark of the newer protocol that tells finished results from unfinished ones."""
    return {key: value for key, value in raw.items() if key != "resultType"}


def wants_input(raw: dict[str, Any]) -> bool:
    return raw.get("resultType") == "input_required"


def error_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True}
