"""From text on the wire to checked payloads: strict JSON, and the rules that every named field obeys."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias

import msgspec
import orjson

from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.events import OLDER_FIELDS, Event
from a2c_smcp.protocol.names import MAX_INSTANCE, MAX_TOOL_NAME, MAX_WINDOW_URI, MIN_INSTANCE, fault_in

__all__ = [
    "MAX_TIMEOUT",
    "Check",
    "Written",
    "checks_beside",
    "decode",
    "dumps",
    "loads",
    "loads_exactly",
    "timeout_of",
]

MAX_TIMEOUT = 3600
"""The longest `timeout` of a call, in seconds, unless configured otherwise."""


Rule: TypeAlias = Callable[[object], str | None]
"""Says what is wrong with the value of a field."""

Check: TypeAlias = tuple[str, Rule, bool]
"""A field, its rule, and whether it must be there."""


class Written(dict[str, Any]):
    """An answer together with the JSON that it is sent as."""

    __slots__ = ("text",)

    def __init__(self, answer: dict[str, Any], text: str) -> None:
        super().__init__(answer)
        self.text = text


def loads(text: str) -> Any:
    """JSON, quickly: integers beyond 64 bits may lose digits, so what is passed on is passed on as text."""
    try:
        return orjson.loads(text)
    except ValueError:
        return _loads(text)  # perhaps a lone surrogate or a huge number, which are JSON all the same


def loads_exactly(text: str | bytes | memoryview) -> Any:
    """JSON that can be written again without loss: integers of any size, any string, no infinity."""
    try:
        return _EXACT.decode(text)
    except (ValueError, RecursionError):
        return _loads(_text(text), parse_float=_finite)  # perhaps a lone surrogate, or it is said what is wrong


def dumps(value: Any) -> str:
    """Compact JSON. Raises `BadRequest` for what JSON cannot say."""
    try:
        written = orjson.dumps(value, option=_PLAIN)
    except TypeError:
        return _dumps(value)  # perhaps a huge number, a lone surrogate or a key that is a number
    return written.decode() if orjson.loads(written) == value else _dumps(value)  # it writes NaN, UUIDs and enums too


def decode(event: Event, data: object) -> dict[str, Any]:
    """The payload of an event, checked and otherwise untouched: unknown fields stay. Raises `BadRequest`.

    A field that has an older name is found under the one that was sent.
    """
    if not isinstance(data, dict):
        raise BadRequest("the payload must be an object")
    required = event.required
    if not required <= data.keys():
        _check_missing(required, data)
    for field, rule in _rules(event.checked):
        value = data.get(field)
        if (value is not None or (field in data and field in required)) and (fault := rule(value)):
            raise BadRequest(f"{field}: {fault}", field=field)
    return data


def checks_beside(known: frozenset[str], event: Event) -> tuple[Check, ...]:
    """The checks of `decode` for payloads in which the `known` fields are there and sound.

    A payload passes if each field that must be there is, and no rule finds a fault.
    """
    rules = [(field, rule) for field, rule in _rules(event.checked) if field not in known]
    return tuple((field, rule, field in event.required) for field, rule in rules)


def timeout_of(event: Event, data: Mapping[str, Any], longest: int = MAX_TIMEOUT) -> int | None:
    """The whole seconds a call may take; `None` where the request does not say (WIRE §5)."""
    timeout = data.get("timeout")
    if type(timeout) is int and 1 <= timeout <= longest:
        return timeout
    if "timeout" in event.required:
        raise BadRequest(f"timeout: must be whole seconds from 1 to {longest}", field="timeout")
    return None


_EXACT: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_UNICODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False)
_ASCII = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _dumps(value: Any) -> str:
    try:
        text = _UNICODE.encode(value)
        text.encode()
    except UnicodeEncodeError:
        return _ASCII.encode(value)  # a lone surrogate can only be written escaped
    except RecursionError:
        raise BadRequest("nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise BadRequest(f"not JSON, {error}") from None
    return text


def _text(text: str | bytes | memoryview) -> str:
    try:
        return text if isinstance(text, str) else str(text, "utf-8")
    except UnicodeDecodeError:
        raise BadRequest("not JSON, it is not UTF-8") from None


def _loads(text: str, parse_float: Callable[[str], float] | None = None) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=parse_float)
    except RecursionError:
        raise BadRequest("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise BadRequest(f"not JSON, {error}") from None
    except ValueError:
        raise BadRequest("a number has too many digits") from None


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise BadRequest("a number is too large")
    return number


def _refuse_constant(name: str) -> None:
    raise BadRequest(f"not JSON, {name} is not a number")


def _instance_fault(value: object) -> str | None:
    return fault_in(value, MAX_INSTANCE, MIN_INSTANCE)


def _tool_fault(value: object) -> str | None:
    return fault_in(value, MAX_TOOL_NAME)


def _window_fault(value: object) -> str | None:
    return fault_in(value, MAX_WINDOW_URI)


def _role_fault(value: object) -> str | None:
    return None if value in ("agent", "computer") else 'must be "agent" or "computer"'


def _object_fault(value: object) -> str | None:
    return None if isinstance(value, dict) else "must be an object"


def _integer_fault(value: object) -> str | None:
    return None if type(value) is int else "must be an integer"


_RULES: dict[str, Rule] = {
    "role": _role_fault,
    "name": fault_in,
    "office_id": fault_in,
    "instance": _instance_fault,
    "agent": fault_in,
    "req_id": fault_in,
    "computer": fault_in,
    "tool_name": _tool_fault,
    "params": _object_fault,
    "timeout": _integer_fault,
    "desktop_size": _integer_fault,
    "window": _window_fault,
}


def _check_missing(required: frozenset[str], data: dict[str, Any]) -> None:
    for field in sorted(required):
        if field not in data and data.get(OLDER_FIELDS.get(field, field)) is None:
            raise BadRequest(f"{field}: missing", field=field)


@cache
def _rules(checked: frozenset[str]) -> tuple[tuple[str, Rule], ...]:
    """Kept by the fields, of which there are a few sets, not by the event, which a client may invent."""
    spellings = [(field, field) for field in sorted(checked)]
    spellings += [(older, field) for field, older in OLDER_FIELDS.items() if field in checked]
    return tuple((spelling, _RULES[field]) for spelling, field in spellings if field in _RULES)
