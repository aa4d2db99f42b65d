"""Plain Python functions as tools: what a tool says of itself is read from the signature and the docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from a2c_smcp.registry.docstrings import read_docstring
from a2c_smcp.registry.parameters import Fit, Parameters, by_name, object_schema

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
        self.input_schema = deepcopy(self._parameters.schema)
        self.output_schema = object_schema(function)
        self.function = function
        self._by_name = by_name(function)
        self.meta = meta
        self.call = self._call_async if inspect.iscoroutinefunction(function) else self._call

    def __repr__(self) -> str:
        return f"FunctionTool({self.name!r})"

    @property
    def fit(self) -> Fit | None:
        """A quick way to see that arguments fit the schema; `None` for a schema that needs another."""
        return self._parameters.fit if self.fills_defaults else None

    @property
    def fills_defaults(self) -> bool:
        """Whether the schema is still the function's own, whose defaults need not be filled in for it."""
        return self.input_schema == self._parameters.schema

    def _call(self, arguments: dict[str, Any]) -> Any:
        return self._by_name(**self._parameters.bind(arguments))

    async def _call_async(self, arguments: dict[str, Any]) -> Any:
        return await self._by_name(**self._parameters.bind(arguments))


def _name_of(function: Callable[..., Any]) -> str:
    name: str = function.__name__
    if not name.isidentifier():
        raise TypeError(f"{name} is no name for a tool: give one with name=")
    return name
