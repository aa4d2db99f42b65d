"""Definitions of inputs (000): where the value of `${input:id}` comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from a2c_smcp import smcp
from a2c_smcp.mcp_host.config.fields import HIDDEN, FieldContent, InputId, NonEmpty
from a2c_smcp.mcp_host.config.validation import StrictModel, config_error, contents_of, faults_of

__all__ = [
    "INPUT_CONTENTS",
    "CommandInput",
    "MCPServerInput",
    "PickOption",
    "PickStringInput",
    "PromptStringInput",
    "input_to_wire",
    "parse_input",
]


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
"""What the fields of inputs hold."""


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
        is_labelled = labelled or any(each.label != each.value for each in options)
        wire["options"] = [
            {"label": each.label, "value": each.value} if is_labelled else each.value for each in options
        ]
    return cast("smcp.MCPServerInput", wire)
