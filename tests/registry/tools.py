"""Tools for the tests of the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from a2c_smcp.registry import MCPRegistry


class Said(Exception):
    """An exception of a tool."""


def raising(error: BaseException) -> Callable[[dict[str, Any]], Any]:
    """The `call` of a tool that raises this."""

    def call(arguments: dict[str, Any]) -> Any:
        raise error

    return call


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


def registry_of(*tools: Any, **options: Any) -> MCPRegistry:
    """A registry with these tools."""
    registry = MCPRegistry(**options)
    registry.update(add=tools)
    return registry
