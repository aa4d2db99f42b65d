"""The base of all configuration models: strict, immutable, hides secrets; and the texts of its errors."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.fields import HIDDEN, FieldContent, hidden_url, hidden_values

__all__ = [
    "MISSING",
    "Fault",
    "FieldPath",
    "StrictModel",
    "closest_name",
    "config_error",
    "contents_of",
    "did_you_mean",
    "faults_of",
    "meaningless_fields",
    "unknown_fields",
]

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
"""What the `repr` of a model shows instead of a value; without a function it shows the value."""
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
    """Return what the fields of these models hold, by name. Models that share a name mark it in the same way."""
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
    """Return the path of each fault and what is expected there, without the value that was found."""
    details = error.errors(include_url=False, include_input=False)
    return [
        (fault["loc"], _MESSAGES.get(fault["type"], "is not usable").format(said=fault["msg"], **fault.get("ctx", {})))
        for fault in details
    ]


def config_error(about: str, faults: Iterable[Fault]) -> ConfigError:
    """Return one error for all faults; `about` is the file, the server or the input that has them."""
    said = [(_dotted(path), fault) for path, fault in faults]
    text = "; ".join(f"{field}: {fault}" if field else fault for field, fault in said)
    return ConfigError(text, subject=about, fields=[field for field, _ in said])


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
    by_spelling = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_spelling, n=1, cutoff=_SIMILARITY)
    return by_spelling[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that proposes the most similar name; empty if none is similar."""
    found = closest_name(name, known)
    return f", did you mean {found!r}?" if found else ""
