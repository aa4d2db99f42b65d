"""What the owner makes of a tool's result. The result stays as it is; the outcome travels beside it, in `_meta`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jmespath  # type: ignore[import-untyped]
from jmespath.functions import Functions  # type: ignore[import-untyped]

from a2c_smcp.errors import ConfigError

if TYPE_CHECKING:
    from a2c_smcp.mcp_host.transforms.vrl import VRLScript

__all__ = ["MAPPED", "MAPPING_ERROR", "SCRIPTED", "SCRIPT_ERROR", "Mapper", "Transform", "TransformFailed"]

MAPPED, MAPPING_ERROR = "a2c_ret_object", "a2c_ret_object_error"
SCRIPTED, SCRIPT_ERROR = "a2c_vrl_transformed", "a2c_vrl_error"

_LONGEST_FAULT = 300  # characters; JMESPath quotes what it does not like
_RAISED_BY_JMESPATH = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class TransformFailed(Exception):
    """A mapper or a script could not make anything of a result."""


class Transform:
    """What is done to the results of one tool. The script is shared by all tools of its server."""

    def __init__(self, *, mapper: Mapper | None = None, script: VRLScript | None = None) -> None:
        self._mapper, self._script = mapper, script

    @property
    def is_none(self) -> bool:
        """Whether there is nothing to be done."""
        return self._mapper is None and self._script is None

    async def apply(self, result: dict[str, Any], *, tool_name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The result with what became of it; the same object where nothing is to be done."""
        added: dict[str, str] = {}
        if self._mapper:
            try:
                added[MAPPED] = self._mapper.apply(result)
            except TransformFailed as error:
                added[MAPPING_ERROR] = str(error)
        if self._script:
            try:
                event = {**result, "tool_name": tool_name, "parameters": dict(parameters)}
                added[SCRIPTED] = await self._script.run(event)
            except TransformFailed as error:
                added[SCRIPT_ERROR] = str(error)
        return {**result, "_meta": {**self._without_ours(result), **added}} if added else result

    def _without_ours(self, result: dict[str, Any]) -> dict[str, Any]:
        """What a server writes under our names is not to be believed."""
        ours = {*((MAPPED, MAPPING_ERROR) if self._mapper else ()), *((SCRIPTED, SCRIPT_ERROR) if self._script else ())}
        meta = result.get("_meta")
        return {key: value for key, value in meta.items() if key not in ours} if isinstance(meta, dict) else {}


class Mapper:
    """`ret_object_mapper`: one object out of differently shaped results, each field found by a JMESPath expression."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Raises `ConfigError` for an expression that can never work."""
        self._fields = {name: _compile(name, expression) for name, expression in fields.items()}

    def apply(self, result: Mapping[str, Any]) -> str:
        """The object as JSON. What an expression does not find is null."""
        found = {}
        for name, expression in self._fields.items():
            try:
                found[name] = expression.search(result)
            except _RAISED_BY_JMESPATH as error:
                raise TransformFailed(f"ret_object_mapper.{name}: {error}"[:_LONGEST_FAULT]) from None
        try:
            return json.dumps(found, ensure_ascii=False, allow_nan=False)
        except _RAISED_BY_JMESPATH:
            raise TransformFailed("ret_object_mapper: an expression finds something that is not JSON") from None


def _compile(name: str, expression: object) -> Any:
    if not isinstance(expression, str):
        raise ConfigError(f"ret_object_mapper.{name}: must be a JMESPath expression, such as content[0].text")
    try:
        compiled = jmespath.compile(expression)
    except _RAISED_BY_JMESPATH as error:
        raise ConfigError(f"ret_object_mapper.{name}: not a JMESPath expression: {error}") from None
    for called, arguments in _calls(compiled.parsed):
        if fault := _call_fault(called, arguments):
            raise ConfigError(f"ret_object_mapper.{name}: {called}(): {fault}")
    return compiled


def _calls(node: Any) -> Iterator[tuple[str, int]]:
    """Every function that an expression calls, with how many arguments. JMESPath itself looks only when it runs."""
    if node["type"] == "function_expression":
        yield node["value"], len(node["children"])
    for child in node["children"]:
        if isinstance(child, dict):
            yield from _calls(child)


def _call_fault(called: str, arguments: int) -> str | None:
    known = Functions.FUNCTION_TABLE.get(called)
    if known is None:
        return "no such function"
    wanted = known["signature"]
    is_variadic = bool(wanted) and wanted[-1].get("variadic", False)
    if arguments < len(wanted) or (arguments > len(wanted) and not is_variadic):
        return f"takes {len(wanted)} arguments{' or more' if is_variadic else ''}, not {arguments}"
    return None
