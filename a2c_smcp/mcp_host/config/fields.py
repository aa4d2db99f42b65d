"""Types of configuration fields: which values they accept, whether they may hold secrets, and how they are shown."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import timedelta
from enum import Enum, auto
from typing import Annotated, Any, TypeGuard
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from a2c_smcp.protocol.names import MAX_TOOL_NAME, fault_in, fault_in_bundle_id

HIDDEN = "***"


class FieldContent(Enum):
    """The contents of a field of a configuration, as far as secrets are concerned.

    Four tables have an entry for each mark: what `get_config` masks and which values are secrets everywhere
    (`computer/secrets/rules.py`), which words of a message stay (`mask.py`), what an import replaces by inputs and
    a diff masks (`replace.py`), what a `repr` shows (`config/inputs.py`). A field without a mark, such as one that we
    do not know, is judged by its name, and its text is searched for secrets.
    """

    NAME = auto()
    """A name that others refer to: of a server, a tool, an input, a choice. It stays as it is."""
    NAMES = auto()
    """An object whose keys and values are names."""
    SETTING = auto()
    """A word that the format defines, a number or a flag."""
    PROSE = auto()
    """A description or a script. It stays as it is."""
    PATH = auto()
    COMMAND = auto()
    """A command line."""
    URL = auto()
    ARGUMENTS = auto()
    """The arguments of a program, in a list."""
    OPTIONS = auto()
    """The arguments of a program, by name."""
    PAIRS = auto()
    """Variables or headers by name. Each value may be a secret."""
    SECRET = auto()
    """A parameter of a server that is a secret as a whole."""
    DEFAULT = auto()
    """The default of an input: a secret if the input is a password."""
    SIGN_IN = auto()
    """An object whose fields have marks of their own (`SIGN_IN_CONTENTS`)."""


WRITTEN_OUT = "must be written out, an input cannot stand for it"

_PLACEHOLDER = re.compile(r"\$\{input:[^}]*\}")
_FLAGS = {"true": True, "false": False}  # an input that was typed in arrives as text
_BLANK = re.compile(r"[\x00-\x20\x7f]")
_QUERY_VALUE = re.compile(r"=[^&;]*")
_ISO_DURATION = TypeAdapter(timedelta)
_DURATION_FAULT = 'must be an ISO-8601 duration above zero, such as "PT30S"'
_URL_FAULT = 'must be an http or https URL, such as "https://example.com/mcp"'


def has_placeholder(value: object) -> TypeGuard[str]:
    """True for text with a placeholder for an input, such as `Bearer ${input:token}`."""
    return isinstance(value, str) and _PLACEHOLDER.search(value) is not None


def hidden_values(value: Any) -> Any:
    """Hide the values of an object or a list; its names and its length stay."""
    if isinstance(value, dict):
        return dict.fromkeys(value, HIDDEN)
    if isinstance(value, list):
        return [HIDDEN] * len(value)
    return None if value is None else HIDDEN


def hidden_url(url: str) -> str:
    """Hide user, query values and fragment of a URL; scheme, host, path and names in the query stay."""
    parts = _split(url)
    if parts is None:
        return HIDDEN
    user, at, host = parts.netloc.rpartition("@")
    query = _QUERY_VALUE.sub(f"={HIDDEN}", parts.query) if "=" in parts.query else parts.query and HIDDEN
    fragment = parts.fragment and HIDDEN
    return parts._replace(netloc=f"{user and HIDDEN}{at}{host}", query=query, fragment=fragment).geturl()


def fault(text: str) -> PydanticCustomError:
    """Return the error of a validator; its text goes into the `ConfigError` as it is."""
    return PydanticCustomError("config", text)


def _name(fault_of: Callable[[str], str | None], *, written_out: bool = True) -> AfterValidator:
    """Return a validator of names. `fault_of` says what is wrong with one."""

    def check(value: str) -> str:
        if written_out and has_placeholder(value):
            raise fault(WRITTEN_OUT)
        if wrong := fault_of(value):
            raise fault(wrong)
        return value

    return AfterValidator(check)


def _url(value: str) -> str:
    if has_placeholder(value):
        return value
    parts = _split(value)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise fault(_URL_FAULT)
    return value


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        return None if _BLANK.search(url) or parts.port == 0 else parts
    except ValueError:
        return None


def _encoding(value: str) -> str:
    try:
        "".encode(value)
    except (LookupError, ValueError):
        raise fault('must be a text encoding, such as "utf-8"') from None
    return value


def _duration(value: object) -> timedelta:
    """Accept 000's ISO-8601, and seconds as a number, which files of other programs have."""
    seconds = _number(value)
    clock = isinstance(seconds, str) and not seconds.startswith("P")
    try:
        duration = _ISO_DURATION.validate_python(seconds)
    except ValidationError:
        raise fault(_DURATION_FAULT) from None
    if clock or isinstance(value, bool) or duration <= timedelta():
        raise fault(_DURATION_FAULT)
    return duration


def _number(value: object) -> object:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _seconds(value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise fault("must be a number of seconds above zero, such as 30")
    return value


def _header(value: object) -> object:
    if not isinstance(value, str | int | float):
        raise fault("must be a string or a number")
    return value


NonEmpty = Annotated[str, Field(min_length=1)]
ServerName = Annotated[str, _name(fault_in)]
BundleId = Annotated[str, _name(fault_in_bundle_id)]
InputId = Annotated[
    str,
    _name(lambda value: "must not hold a closing brace" if "}" in value else fault_in(value), written_out=False),
]
ToolAlias = Annotated[str, _name(lambda value: fault_in(value, MAX_TOOL_NAME), written_out=False)]
Url = Annotated[str, AfterValidator(_url)]
Encoding = Annotated[str, AfterValidator(_encoding)]
Duration = Annotated[timedelta, BeforeValidator(_duration)]
Seconds = Annotated[float, BeforeValidator(_number), AfterValidator(_seconds)]
Flag = Annotated[bool, BeforeValidator(lambda value: _FLAGS.get(value, value) if isinstance(value, str) else value)]
HeaderValue = Annotated[Any, AfterValidator(_header)]
