"""Plain Python functions as tools: what a tool says of itself is read from the signature and the docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from a2c_smcp.registry.docstrings import read_docstring
from a2c_smcp.registry.parameters import Parameters, object_schema

__all__ = ["FunctionTool"]


class FunctionTool:
    """A tool that calls a function, sync or async. `call` of an async one is a coroutine function.

    Arguments are validated and converted by pydantic before the function sees them (`InvalidArguments`).
    `meta` is what else was said of the tool; on MCP's wire its `title`, `annotations` and `_meta` are shown.
    """

    call: Callable[[dict[str, Any]], Any]

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, description: str | None = None, **meta: Any
    ) -> None:
        """Raises `TypeError` where no tool can be made of the function, and says why."""
        if not inspect.isroutine(function):
            raise TypeError(f"{function!r} is not a function")
        self.name = name or _name_of(function)
        documentation = read_docstring(inspect.getdoc(function))
        self.description = documentation.description if description is None else description
        try:
            self._parameters = Parameters(function, documentation.parameters)
        except TypeError as error:
            raise TypeError(f"function {self.name!r} cannot be a tool: {error}") from None
        self.input_schema = self._parameters.schema
        self.output_schema = object_schema(function)
        self.function = function
        self.meta = meta
        self.call = self._call_async if inspect.iscoroutinefunction(function) else self._call

    def __repr__(self) -> str:
        return f"FunctionTool({self.name!r})"

    def _call(self, arguments: dict[str, Any]) -> Any:
        positional, named = self._parameters.bind(arguments)
        return self.function(*positional, **named)

    async def _call_async(self, arguments: dict[str, Any]) -> Any:
        positional, named = self._parameters.bind(arguments)
        return await self.function(*positional, **named)


def _name_of(function: Callable[..., Any]) -> str:
    name: str = function.__name__
    if not name.isidentifier():
        raise TypeError(f"{name} is no name for a tool: give one with name=")
    return name
