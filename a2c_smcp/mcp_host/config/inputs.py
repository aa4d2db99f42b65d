"""Definitions of inputs (000): where the value of `${input:id}` comes from."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from a2c_smcp import smcp
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.fields import HIDDEN, FieldContent, InputId, NonEmpty, hidden_url, hidden_values

# The base of all configuration models: strict, immutable, hides secrets; and the texts of its errors.

FieldPath: TypeAlias = tuple[str | int, ...]
Fault: TypeAlias = tuple[FieldPath, str]

MISSING = "missing"
_SIMILARITY = 0.75
_SHOWN: dict[FieldContent, Callable[[Any], Any] | None] = {
    FieldContent.NAME: None,
    FieldContent.NAMES: None,
    FieldContent.SETTING: None,
    FieldContent.PROSE: None,
    FieldContent.PATH: None,
    FieldContent.COMMAND: None,
    FieldContent.URL: hidden_url,
    FieldContent.ARGUMENTS: hidden_values,
    FieldContent.OPTIONS: hidden_values,
    FieldContent.PAIRS: hidden_values,
    FieldContent.SECRET: hidden_values,
    FieldContent.DEFAULT: None,
    FieldContent.SIGN_IN: None,
}
"""The function that hides a value in the `repr` of a model; without one it is shown."""
_MESSAGES = {
    "missing": MISSING,
    "string_type": "must be a string",
    "string_too_short": "must not be empty",
    "string_unicode": "must be Unicode text",
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must have at most {max_length} characters",
    "too_long": "must have at most {max_length} entries",
    "tuple_type": "must be a list",
    "extra_forbidden": "is an unknown field",
    "list_type": "must be a list",
    "too_short": "must not be empty",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "literal_error": "must be one of {expected}",
    "config": "{said}",
}


class StrictModel(BaseModel):
    """Converts nothing, keeps unknown fields, and hides values that may be secret in its `repr`."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, hide_input_in_errors=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, HIDDEN if name in (self.model_extra or {}) else self._shown(name or "", value)

    def _shown(self, name: str, value: Any) -> Any:
        content = contents_of(type(self)).get(name)
        hide = _SHOWN[content] if content else None
        return hide(value) if hide and value is not None else value


def contents_of(*models: type[StrictModel]) -> dict[str, FieldContent]:
    """Return the contents of the fields of these models, by name. Models that share a name mark it in the same way."""
    return {
        name: mark
        for model in models
        for name, field in model.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, FieldContent)
    }


def unknown_fields(config: StrictModel) -> list[str]:
    """Return the dotted paths of fields that no model has; often they are typing errors."""
    return [_dotted(path) for path, _ in _unknown(config, ())]


def meaningless_fields(config: StrictModel, prefix: str) -> list[str]:
    """Return a sentence for each unknown field, with the closest known name."""
    return [
        f"{prefix}.{_dotted(path)} is an unknown field and is ignored{did_you_mean(str(path[-1]), known)}"
        for path, known in _unknown(config, ())
    ]


def faults_of(error: ValidationError) -> list[Fault]:
    """Return the path of each fault and what is expected there, without the value."""
    details = error.errors(include_url=False, include_input=False)
    return [
        (fault["loc"], _MESSAGES.get(fault["type"], "is not usable").format(said=fault["msg"], **fault.get("ctx", {})))
        for fault in details
    ]


def config_error(about: str, faults: Iterable[Fault]) -> ConfigError:
    """Return one error for all faults; `about` is the file, the server or the input that has them."""
    named = [(_dotted(path), fault) for path, fault in faults]
    text = "; ".join(f"{field}: {fault}" if field else fault for field, fault in named)
    return ConfigError(text, subject=about, fields=[field for field, _ in named])


def _dotted(path: FieldPath) -> str:
    return ".".join(map(str, path))


def _unknown(value: object, path: FieldPath) -> Iterator[tuple[FieldPath, list[str]]]:
    """Yield the path of each unknown field, and the names that are known beside it."""
    if isinstance(value, StrictModel):
        parameters = getattr(value, "server_parameters", None)  # they may stand beside the other fields (003)
        known = [*type(value).model_fields, *(type(parameters).model_fields if parameters else ())]
        yield from (((*path, name), known) for name in value.model_extra or {})
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name), (*path, name))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _unknown(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(item, (*path, index))


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar, in any case; `None` if none is similar."""
    by_spelling = {spelling.lower(): spelling for spelling in known}
    close = difflib.get_close_matches(name.lower(), by_spelling, n=1, cutoff=_SIMILARITY)
    return by_spelling[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that proposes the most similar name; empty if none is similar."""
    near = closest_name(name, known)
    return f", did you mean {near!r}?" if near else ""


class _Input(StrictModel):
    id: Annotated[InputId, FieldContent.NAME]
    description: Annotated[str, FieldContent.PROSE] = ""


class PromptStringInput(_Input):
    """A value that the owner types in."""

    type: Annotated[Literal["promptString"], FieldContent.SETTING] = "promptString"
    default: Annotated[str | None, FieldContent.DEFAULT] = None
    password: Annotated[bool | None, FieldContent.SETTING] = None

    def _shown(self, name: str, value: Any) -> Any:
        if name == "default" and value is not None and self.password:
            return HIDDEN
        return super()._shown(name, value)


class PickOption(StrictModel):
    label: Annotated[str, FieldContent.NAME]
    value: Annotated[str, FieldContent.NAME]


class PickStringInput(_Input):
    """A value that the owner chooses. An option is a text, or a label with a value."""

    type: Annotated[Literal["pickString"], FieldContent.SETTING] = "pickString"
    options: Annotated[list[PickOption], FieldContent.NAME] = Field(min_length=1)
    default: Annotated[str | None, FieldContent.DEFAULT] = None

    @field_validator("options", mode="before")
    @classmethod
    def _labelled(cls, options: object) -> object:
        if not isinstance(options, list):
            return options
        return [{"label": option, "value": option} if isinstance(option, str) else option for option in options]

    @model_validator(mode="after")
    def _default_is_an_option(self) -> PickStringInput:
        if self.default is not None and all(self.default != option.value for option in self.options):
            raise PydanticCustomError("config", "default must be the value of one of the options")
        return self


class CommandInput(_Input):
    """A value that a command prints."""

    type: Annotated[Literal["command"], FieldContent.SETTING] = "command"
    command: Annotated[NonEmpty, FieldContent.COMMAND]
    args: Annotated[dict[str, str] | None, FieldContent.OPTIONS] = None


MCPServerInput: TypeAlias = Annotated[PromptStringInput | PickStringInput | CommandInput, Field(discriminator="type")]

_KINDS: dict[object, type[PromptStringInput | PickStringInput | CommandInput]] = {
    "promptString": PromptStringInput,
    "pickString": PickStringInput,
    "command": CommandInput,
}

INPUT_CONTENTS = contents_of(*_KINDS.values())
"""The contents of the fields of inputs, by name."""


def parse_input(data: object) -> MCPServerInput:
    """Return the model of an input in 000's JSON. Raises `ConfigError`, which names the fields and quotes no value."""
    if not isinstance(data, Mapping):
        raise config_error("input", [((), "must be an object")])
    name, kind = data.get("id"), data.get("type")
    about = f"input {name!r}" if isinstance(name, str) else "input"
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise config_error(about, [(("type",), f"must be one of {', '.join(map(str, _KINDS))}")])
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise config_error(about, faults_of(error)) from None


def input_to_wire(definition: MCPServerInput, *, labelled: bool = False) -> smcp.MCPServerInput:
    """Return the input in the wire form of 000. A password's default is still in it.

    Options are texts, as in 000. If `labelled`, or if one has a label of its own, they are `{"label", "value"}`, as in
    the published 0.4 generation.
    """
    wire = {name: getattr(definition, name) for name in type(definition).model_fields}
    if isinstance(definition, PickStringInput):
        options = definition.options
        is_labelled = labelled or any(option.label != option.value for option in options)
        wire["options"] = [
            {"label": option.label, "value": option.value} if is_labelled else option.value for option in options
        ]
    return cast("smcp.MCPServerInput", wire)
