"""Python functions as tools: schema and description are read from the signature and the docstring."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from inspect import Parameter
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NotRequired,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, with_config
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails, PydanticSerializationError, core_schema
from typing_extensions import TypedDict

from a2c_smcp.errors import BadRequest
from a2c_smcp.registry.calls.context import AsyncToolContext, ToolContext
from a2c_smcp.registry.content import Content, ToolResult
from a2c_smcp.registry.schemas.check import Fault, pointer

# The parameters of a Python function: their JSON schema, and arguments checked and converted for them.

MAX_FAULTS = 20

_VARIADIC: Mapping[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
_UNREADABLE = (NameError, AttributeError, SyntaxError, TypeError)
_UNUSABLE = (PydanticUserError, PydanticUndefinedAnnotation)

# Pydantic's own messages for these quote the input, or what a validator made of it.
_UNQUOTED = {
    "union_tag_invalid": "Input tag should be one of {expected_tags}",
    "timezone_offset": "Timezone offset of {tz_expected} required",
    "bytes_invalid_encoding": "Data should be valid {encoding}",
}
_OTHERWISE = "Input is not valid ({})"
_KNOWN = frozenset(get_args(core_schema.ErrorType))

_PLAIN = (str, int, float, bool, NoneType, None)
_MADE_OF = (list, dict, Union, UnionType)
"""Annotations made of these: pydantic's strict check agrees with their JSON schema, and converts in the same way."""

_CONTEXTS = (ToolContext, AsyncToolContext)
_CONTENT = (Content, ToolResult)

_CLOSED = ConfigDict(extra="forbid")
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class InvalidArguments(BadRequest, ValueError):
    """Arguments do not fit a tool. `details["errors"]` has a JSON pointer and a message per fault, and no value."""

    title = "Invalid arguments"

    @classmethod
    def at(cls, faults: list[Fault], *, more: int = 0) -> InvalidArguments:
        about = "; ".join(f"{fault['path'].removeprefix('/')}: {fault['message']}".lstrip(": ") for fault in faults)
        return cls(f"{about}; and {more} more" if more else about, errors=faults)


class Fitting(dict[str, Any]):
    """Arguments that were checked and converted for a function."""


Fit: TypeAlias = Callable[[object], Fitting | None]
"""Checked arguments, or `None` if only the schema can tell whether they fit."""


class Parameters:
    """The parameters of one function, compiled. A parameter for a context is apart: arguments have no value for it."""

    def __init__(self, function: Callable[..., Any], descriptions: Mapping[str, str]) -> None:
        """Raises `TypeError` for a function whose parameters have no JSON schema."""
        parameters = _signature(function)
        hints = _hints(function, [*parameters])
        self.contexts = {name: kind for name, kind in hints.items() if kind in _CONTEXTS}
        for kind in self.contexts.values():
            if kind.is_for_async is not inspect.iscoroutinefunction(function):
                raise TypeError("a function takes a ToolContext, an async function an AsyncToolContext")
        fields = {
            name: _Field(parameter, hints.get(name, Any), descriptions.get(name))
            for name, parameter in parameters.items()
            if name not in self.contexts
        }
        try:
            self.schema = _adapter(fields, _CLOSED, with_defaults=True).json_schema(schema_generator=_Schema)
            self._validate = _adapter(fields, _CLOSED).validator.validate_python
        except _UNUSABLE as error:
            raise TypeError(f"the parameters have no JSON schema: {_first_line(error)}") from None
        del self.schema["title"]
        is_plain = all(field.is_plain for field in fields.values())
        self.fit = _fit(_adapter(fields, _STRICT)) if is_plain else None

    def context(self) -> dict[str, Any]:
        """The context of the call that is being made, by the name of its parameter; empty if there is none."""
        return {name: kind.current() for name, kind in self.contexts.items()}

    def bind(self, arguments: object) -> dict[str, Any]:
        """The given arguments by name, converted. Missing ones are not filled in. Raises `InvalidArguments`."""
        if type(arguments) is Fitting:
            return arguments
        if not isinstance(arguments, dict):
            raise InvalidArguments.at([{"path": "", "message": "not an object"}])
        try:
            bound: dict[str, Any] = self._validate(arguments)
        except ValidationError as error:
            raise _misfit(error) from None
        return bound


def by_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, or one that takes by name what it takes by position only."""
    first = [it for it in inspect.signature(function).parameters.values() if it.kind is Parameter.POSITIONAL_ONLY]
    if not first:
        return function
    return lambda **named: function(*[named.pop(it.name, it.default) for it in first], **named)


def _fit(strict: TypeAdapter[Any]) -> Fit:
    validate = strict.validator.validate_python

    def fit(arguments: object) -> Fitting | None:
        try:
            return Fitting(validate(arguments))
        except ValidationError:
            return None

    return fit


def object_schema(function: Callable[..., Any]) -> dict[str, Any] | None:
    """The JSON schema of the function's result, if its annotation is an object. Content is not structured."""
    try:
        returned = _hints(function, ["return"])["return"]
        if isinstance(returned, type) and issubclass(returned, _CONTENT):
            return None
        schema = TypeAdapter(returned).json_schema(mode="serialization", schema_generator=_Schema)
    except (KeyError, TypeError, *_UNUSABLE):
        return None
    return schema if schema.get("type") == "object" else None


class _Schema(GenerateJsonSchema):
    """Without the titles that pydantic adds, and silent about defaults that are not JSON."""

    ignored_warning_kinds: ClassVar = {"skipped-choice", "non-serializable-default"}  # type: ignore[misc]

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def encode_default(self, dft: Any) -> Any:
        encoded = super().encode_default(dft)
        if isinstance(encoded, float) and not math.isfinite(encoded):
            raise PydanticSerializationError("not a number in JSON")
        return encoded


def _signature(function: Callable[..., Any]) -> dict[str, Parameter]:
    try:
        parameters = dict(inspect.signature(function).parameters)
    except ValueError:
        raise TypeError("its parameters cannot be read") from None
    for name, parameter in parameters.items():
        if stars := _VARIADIC.get(parameter.kind):
            raise TypeError(f"{stars}{name} has no JSON schema, name each parameter")
    return parameters


def _hints(function: Callable[..., Any], names: list[str]) -> dict[str, Any]:
    """The annotations of these names, read in the function's module. Names without one are left out."""
    annotations = getattr(function, "__annotations__", {})
    wanted = SimpleNamespace(__annotations__={name: annotations[name] for name in names if name in annotations})
    try:
        return get_type_hints(wanted, getattr(inspect.unwrap(function), "__globals__", {}), include_extras=True)
    except _UNREADABLE as error:
        raise TypeError(f"its annotations cannot be read: {_first_line(error)}") from None


@dataclass(frozen=True, slots=True)
class _Field:
    """A parameter as a field of pydantic. The signature wins over the docstring."""

    parameter: Parameter
    annotation: Any
    description: str | None

    def typed(self, *, with_default: bool) -> Any:
        """The schema shows a default of the function; when arguments are read, Python fills it in."""
        bare, *own = get_args(self.annotation) if get_origin(self.annotation) is Annotated else (self.annotation,)
        name, default = self.parameter.name, self.parameter.default
        own += [default] if isinstance(default, FieldInfo) else []
        naming = Field(alias=name, validation_alias=name, serialization_alias=name)
        if self._has_own_default and with_default:
            own.append(Field(default=default))
        whole = Annotated[bare, Field(description=self.description), *own, naming]  # type: ignore[valid-type]  # made at run time
        is_optional = any(isinstance(part, FieldInfo) and not part.is_required() for part in own)
        return NotRequired[whole] if is_optional or self._has_own_default else whole

    @property
    def is_plain(self) -> bool:
        default = self.parameter.default
        return _is_plain(self.annotation) and (not isinstance(default, FieldInfo) or _only_describes(default))

    @property
    def _has_own_default(self) -> bool:
        default = self.parameter.default
        return default is not Parameter.empty and not isinstance(default, FieldInfo)


def _adapter(fields: Mapping[str, _Field], config: ConfigDict, *, with_defaults: bool = False) -> TypeAdapter[Any]:
    typed = {name: field.typed(with_default=with_defaults) for name, field in fields.items()}
    arguments = TypedDict("Arguments", typed)  # type: ignore[misc]  # made at run time
    return TypeAdapter(with_config(config)(arguments))


def _is_plain(annotation: Any) -> bool:
    kind, inside = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return _is_plain(inside[0]) and all(_only_describes(part) for part in inside[1:])
    if kind is Literal:
        return all(type(word) is str for word in inside)
    if kind is dict and inside[0] is not str:
        return False
    return annotation in _PLAIN if kind not in _MADE_OF else all(map(_is_plain, inside))


def _only_describes(part: Any) -> bool:
    """True if a part of an annotation neither restricts nor converts."""
    return isinstance(part, str) or (isinstance(part, FieldInfo) and not part.metadata and not part.json_schema_extra)


def _misfit(error: ValidationError) -> InvalidArguments:
    errors = error.errors(include_url=False, include_input=False)[:MAX_FAULTS]
    faults = [{"path": pointer(fault["loc"]), "message": _message(fault)} for fault in errors]
    return InvalidArguments.at(faults, more=error.error_count() - len(faults))


def _message(fault: ErrorDetails) -> str:
    kind, context = fault["type"], fault.get("ctx", {})
    if kind in _UNQUOTED:
        return _UNQUOTED[kind].format(**context)
    return fault["msg"] if kind in _KNOWN and "error" not in context else _OTHERWISE.format(kind)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


class FunctionTool:
    """A tool that calls a function, sync or async. `call` of an async function is a coroutine function.

    Pydantic checks and converts the arguments before the function is called; `call` raises `InvalidArguments`.
    A parameter that is annotated with `ToolContext` (`AsyncToolContext` in an async function) is given the context of
    the call. `meta` is anything else known of the tool; MCP clients see `title`, `icons`, `annotations` and `_meta`.
    """

    call: Callable[[dict[str, Any]], Any]

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, description: str | None = None, **meta: Any
    ) -> None:
        """Raises `TypeError` with the reason if the function cannot be a tool."""
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
        is_async, takes_context = inspect.iscoroutinefunction(function), bool(self._parameters.contexts)
        if takes_context:
            self.call = self._call_async_in_context if is_async else self._call_in_context
        else:
            self.call = self._call_async if is_async else self._call

    def __repr__(self) -> str:
        return f"FunctionTool({self.name!r})"

    @property
    def fit(self) -> Fit | None:
        """A fast check for arguments that fit; `None` if only the schema can tell."""
        return self._parameters.fit if self.fills_defaults else None

    @property
    def fills_defaults(self) -> bool:
        """True while the schema is the function's own: then Python fills in the defaults."""
        return self.input_schema == self._parameters.schema

    def _call(self, arguments: dict[str, Any]) -> Any:
        return self._by_name(**self._parameters.bind(arguments))

    async def _call_async(self, arguments: dict[str, Any]) -> Any:
        return await self._by_name(**self._parameters.bind(arguments))

    def _call_in_context(self, arguments: dict[str, Any]) -> Any:
        return self._by_name(**self._parameters.bind(arguments), **self._parameters.context())

    async def _call_async_in_context(self, arguments: dict[str, Any]) -> Any:
        return await self._by_name(**self._parameters.bind(arguments), **self._parameters.context())


def _name_of(function: Callable[..., Any]) -> str:
    name: str = function.__name__
    if not name.isidentifier():
        raise TypeError(f"{name} is not a valid tool name: set name=")
    return name


_SECTION = re.compile(
    r"(args|arguments|parameters|params|attributes|examples?|notes?|raises|returns?|references|see also|todo"
    r"|warnings?|warns|yields?|keyword args|keyword arguments|other parameters):\s*$",
    re.IGNORECASE,
)
_ARGUMENTS = ("args", "arguments", "parameters", "params", "keyword args", "keyword arguments", "other parameters")
_ENTRY = re.compile(r"(?P<name>\w+)\s*(\([^:]*\))?\s*:(\s+(?P<text>.*))?$")


@dataclass(frozen=True)
class Documentation:
    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(docstring: str | None) -> Documentation:
    """Reads a docstring as `inspect.getdoc` gives it: without the indentation of the code around it."""
    lines = (docstring or "").splitlines()
    return Documentation(_first_paragraph(lines), dict(_entries(lines)))


def _first_paragraph(lines: list[str]) -> str:
    paragraph = []
    for line in lines:
        if not line.strip() or _SECTION.match(line):
            break
        paragraph.append(line.strip())
    return " ".join(paragraph)


def _entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """A line at the section's own depth begins an entry, what is deeper continues it."""
    depth, name, words = 0, "", list[str]()
    for line in _argument_lines(lines):
        indent = len(line) - len(line.lstrip())
        depth = depth or indent
        entry = _ENTRY.match(line.strip()) if indent <= depth else None
        if entry is None:
            words.append(line.strip())
            continue
        if name:
            yield name, " ".join(words)
        name, words = entry["name"], [entry["text"]] if entry["text"] else []
    if name:
        yield name, " ".join(words)


def _argument_lines(lines: list[str]) -> Iterator[str]:
    inside = False
    for line in lines:
        if line and not line[0].isspace():
            section = _SECTION.match(line)
            inside = section is not None and section[1].lower() in _ARGUMENTS
        elif inside and line.strip():
            yield line
