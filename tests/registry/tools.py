"""Tools for the tests of the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

__all__ = ["Bare", "EchoTool", "Failing", "tool"]


class EchoTool:
    name = "echo"
    description = "echo back"
    input_schema: ClassVar = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    def call(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"output": args["text"]}


class Bare:
    """A tool with nothing but what it must have, and what it is given."""

    def __init__(self, name: str, call: Callable[[dict[str, Any]], Any], **said: Any) -> None:
        self.name = name
        self.call = call
        self.__dict__.update(said)


class Failing:
    """Fails as often as it is told to, then answers with how often it was called."""

    def __init__(self, times: int, error: BaseException, **said: Any) -> None:
        self.name = "flaky"
        self.calls = 0
        self._times, self._error = times, error
        self.__dict__.update(said)

    def call(self, arguments: dict[str, Any]) -> int:
        self.calls += 1
        if self.calls <= self._times:
            raise self._error
        return self.calls


def tool(name: str, schema: dict[str, Any] | None = None, **said: Any) -> Bare:
    """A tool that gives its arguments back."""
    return Bare(name, lambda arguments: arguments, input_schema=schema or {}, **said)
