"""The parameters of a Python function: their JSON schema, and a caller's arguments made to fit them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, TypeAlias, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails, core_schema

from a2c_smcp.errors import BadRequest
from a2c_smcp.registry.schemas import Fault

__all__ = ["InvalidArguments", "Parameters", "object_schema"]

MAX_FAULTS = 20

_VARIADIC: Mapping[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
_UNREADABLE = (NameError, AttributeError, SyntaxError, TypeError)
_UNUSABLE = (PydanticUserError, PydanticUndefinedAnnotation)

# Pydantic's own words for these quote the input, or what somebody's validator made of it.
_UNQUOTED = {
    "union_tag_invalid": "Input tag should be one of {expected_tags}",
    "timezone_offset": "Timezone offset of {tz_expected} required",
    "bytes_invalid_encoding": "Data should be valid {encoding}",
}
_OTHERWISE = "Input is not valid ({})"
_KNOWN = frozenset(get_args(core_schema.ErrorType))

Bound: TypeAlias = tuple[list[Any], dict[str, Any]]


class InvalidArguments(BadRequest, ValueError):
    """`details["errors"]` has a JSON pointer and a message per fault; neither quotes a value."""

    opening = "Invalid arguments"

    @classmethod
    def at(cls, faults: list[Fault], *, more: int = 0) -> InvalidArguments:
        about = "; ".join(f"{fault['path'].removeprefix('/')}: {fault['message']}".lstrip(": ") for fault in faults)
        return cls(f"{about}; and {more} more" if more else about, errors=faults)


class Parameters:
    """The parameters of one function, compiled."""

    def __init__(self, function: Callable[..., Any], descriptions: Mapping[str, str]) -> None:
        """Raises `TypeError` for a function whose parameters have no JSON schema."""
        parameters = _signature(function)
        hints = _hints(function, [*parameters])
        # Fields are numbered: a parameter may be called `_x`, `schema` or `model_config`, a field of a model may not.
        fields = {f"p{number}": parameter for number, parameter in enumerate(parameters.values())}
        annotated: dict[str, Any] = {
            field: _field(parameter, hints.get(parameter.name, Any), descriptions.get(parameter.name))
            for field, parameter in fields.items()
        }
        try:
            model: type[BaseModel] = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **annotated)
            self.schema = model.model_json_schema(schema_generator=_Schema)
        except _UNUSABLE as error:
            raise TypeError(f"the parameters have no JSON schema: {_first_line(error)}") from None
        del self.schema["title"]
        self._validate = model.__pydantic_validator__.validate_python
        slots = [(field, parameter, _has_plain_default(parameter)) for field, parameter in fields.items()]
        self._positional = [slot for slot in slots if slot[1].kind is Parameter.POSITIONAL_ONLY]
        self._named = [(field, it.name, own) for field, it, own in slots if it.kind is not Parameter.POSITIONAL_ONLY]

    def bind(self, arguments: object) -> Bound:
        """Positional and keyword arguments for the function. What is not given is left to the function's defaults."""
        if not isinstance(arguments, dict):
            raise InvalidArguments.at([{"path": "", "message": "not an object"}])
        try:
            valid = self._validate(arguments)
        except ValidationError as error:
            raise _misfit(error) from None
        values, given = valid.__dict__, valid.__pydantic_fields_set__
        named = {name: values[field] for field, name, own in self._named if not own or field in given}
        if not self._positional:
            return [], named
        return [
            values[field] if not own or field in given else it.default for field, it, own in self._positional
        ], named


def object_schema(function: Callable[..., Any]) -> dict[str, Any] | None:
    """The JSON schema of what the function returns, if it says that this is an object."""
    try:
        returned = _hints(function, ["return"])["return"]
        schema = TypeAdapter(returned).json_schema(mode="serialization", schema_generator=_Schema)
    except (KeyError, TypeError, *_UNUSABLE):
        return None
    return schema if schema.get("type") == "object" else None


class _Schema(GenerateJsonSchema):
    """Without the titles that pydantic makes up, and silent about defaults that are no JSON."""

    ignored_warning_kinds: ClassVar = {"skipped-choice", "non-serializable-default"}  # type: ignore[misc]

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _signature(function: Callable[..., Any]) -> dict[str, Parameter]:
    try:
        parameters = dict(inspect.signature(function).parameters)
    except ValueError:
        raise TypeError("it does not tell its parameters") from None
    for name, parameter in parameters.items():
        if stars := _VARIADIC.get(parameter.kind):
            raise TypeError(f"{stars}{name} has no JSON schema, name each parameter")
    return parameters


def _hints(function: Callable[..., Any], names: list[str]) -> dict[str, Any]:
    """The annotations of these names, read where the function was written. A name without one is left out."""
    annotations = getattr(function, "__annotations__", {})
    wanted = SimpleNamespace(__annotations__={name: annotations[name] for name in names if name in annotations})
    try:
        return get_type_hints(wanted, getattr(inspect.unwrap(function), "__globals__", {}), include_extras=True)
    except _UNREADABLE as error:
        raise TypeError(f"its annotations cannot be read: {_first_line(error)}") from None


def _field(parameter: Parameter, annotation: Any, description: str | None) -> Any:
    """A field's annotation, with its default. What the signature says of a parameter wins over the docstring."""
    bare, *own = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    name = parameter.name
    naming = Field(alias=name, validation_alias=name, serialization_alias=name)
    field = Annotated[bare, Field(description=description), *own, naming]  # type: ignore[valid-type]  # made at run time
    return field if parameter.default is Parameter.empty else (field, parameter.default)


def _has_plain_default(parameter: Parameter) -> bool:
    return parameter.default is not Parameter.empty and not isinstance(parameter.default, FieldInfo)


def _misfit(error: ValidationError) -> InvalidArguments:
    found = error.errors(include_url=False, include_input=False)[:MAX_FAULTS]
    faults = [{"path": _pointer(fault["loc"]), "message": _message(fault)} for fault in found]
    return InvalidArguments.at(faults, more=error.error_count() - len(faults))


def _message(fault: ErrorDetails) -> str:
    kind, context = fault["type"], fault.get("ctx", {})
    if kind in _UNQUOTED:
        return _UNQUOTED[kind].format(**context)
    return fault["msg"] if kind in _KNOWN and "error" not in context else _OTHERWISE.format(kind)


def _pointer(path: tuple[str | int, ...]) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
