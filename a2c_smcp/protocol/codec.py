"""Strict JSON, and the checks of payloads: one rule for every field that has a name in the protocol."""

from __future__ import annotations

import gc
import json
import marshal
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, TypeAlias, get_args

import msgspec
import orjson

from a2c_smcp.errors import BadRequest
from a2c_smcp.mcp_events import AnswerAction, CallState, LogLevel
from a2c_smcp.protocol.events import OLDER_FIELDS, Action, EventSpec
from a2c_smcp.protocol.names import MAX_INSTANCE, MAX_TOOL_NAME, MAX_WINDOW_URI, MIN_INSTANCE, fault_in, fault_in_client
from a2c_smcp.protocol.operations import MCP_OPERATIONS, Rule

MAX_TIMEOUT = 3600
"""The longest `timeout` of a call, in seconds, unless configured otherwise."""


Check: TypeAlias = tuple[str, Rule, bool]
"""A field, its rule, and whether it must be there."""


class Encoded(dict[str, Any]):
    """An answer with the JSON that it is sent as."""

    __slots__ = ("text",)

    def __init__(self, answer: dict[str, Any], text: str) -> None:
        super().__init__(answer)
        self.text = text


def loads(text: str) -> Any:
    """Reads JSON quickly. Integers beyond 64 bits may lose digits. Raises `BadRequest`."""
    try:
        return orjson.loads(text)
    except ValueError:
        return _loads(text)  # perhaps a lone surrogate or a huge number, which are JSON too


def loads_exactly(text: str | bytes | memoryview) -> Any:
    """Reads JSON without loss: integers of any size, any string, no infinity. Raises `BadRequest`."""
    try:
        with collector_paused(len(text)):
            return _EXACT.decode(text)
    except (ValueError, RecursionError):
        return _loads(_text(text), parse_float=_finite)  # perhaps a lone surrogate, else it says what is wrong


def dumps(value: Any) -> str:
    """Writes compact JSON. Raises `BadRequest` for a value that JSON cannot express."""
    try:
        written = orjson.dumps(value, option=_PLAIN)
    except TypeError:
        return _dumps(value)  # perhaps a huge number, a lone surrogate or a key that is a number
    return written.decode() if _is_plain(value, written) else _dumps(value)  # it writes NaN, UUIDs and enums too


def _is_plain(value: Any, written: bytes) -> bool:
    """True if a value has JSON's own types only, and finite numbers. To read what was written takes far longer."""
    try:
        plain = marshal.dumps(value, 2)  # of no other types; a float is `g` and its eight bytes
    except ValueError:
        return bool(orjson.loads(written) == value)  # subclasses, perhaps
    return b"null" not in written or not _NOT_FINITE.search(plain) or orjson.loads(written) == value


def collector_paused(size: int) -> AbstractContextManager[None]:
    """Stop the garbage collector while so much JSON is read: it would visit all that is new again and again."""
    return _NOT_PAUSED if size <= _LARGE or not gc.isenabled() else _paused()


@contextmanager
def _paused() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def dumps_each(values: list[Any]) -> str:
    """Writes a JSON array. Values that are `Encoded` are not written again. Raises `BadRequest`."""
    if not any(isinstance(value, Encoded) for value in values):
        return dumps(values)
    return f"[{','.join(value.text if isinstance(value, Encoded) else dumps(value) for value in values)}]"


def decode(event: EventSpec, data: object, known: frozenset[str] | None = None) -> dict[str, Any]:
    """Checks the payload of an event and returns it: unknown fields stay. Raises `BadRequest`.

    A field that was sent under its older name stays under that name. If only the fields `known` were read, only these
    are checked: the receiver checks the others.
    """
    if not isinstance(data, dict):
        raise BadRequest("the payload must be an object")
    required = event.required if known is None else event.required & known
    if not required <= data.keys():
        _check_missing(required, data)
    for field, rule in _rules(event.checked if known is None else event.checked & known, event.action):
        value = data.get(field)
        if (value is not None or (field in data and field in required)) and (fault := rule(value)):
            raise BadRequest(f"{field}: {fault}", field=field)
    return data


def checks_beside(checked: frozenset[str], event: EventSpec, known: frozenset[str]) -> tuple[Check, ...]:
    """The checks of `decode` that are left for payloads whose fields `checked` were checked.

    A payload passes if no required field is missing, and no rule finds a fault.
    """
    rules = [(field, rule) for field, rule in _rules(event.checked & known, event.action) if field not in checked]
    return tuple((field, rule, field in event.required) for field, rule in rules)


def timeout_of(event: EventSpec, data: Mapping[str, object], longest: int = MAX_TIMEOUT) -> int | None:
    """Whole seconds that a call may take; `None` if the request does not say (WIRE §5). Raises `BadRequest`."""
    timeout = data.get("timeout")
    if type(timeout) is int and 1 <= timeout <= longest:
        return timeout
    if "timeout" in event.required:
        raise BadRequest(f"timeout: must be whole seconds from 1 to {longest}", field="timeout")
    return None


_EXACT: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_NOT_FINITE = re.compile(rb"g.{6}[\xf0-\xff][\x7f\xff]", re.DOTALL)
_LARGE = 64 * 1024
_NOT_PAUSED = nullcontext()
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


def _uri_fault(value: object) -> str | None:
    return fault_in(value, MAX_WINDOW_URI)


def _object_fault(value: object) -> str | None:
    return None if isinstance(value, dict) else "must be an object"


def _integer_fault(value: object) -> str | None:
    return None if type(value) is int else "must be an integer"


def _boolean_fault(value: object) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _number_fault(value: object) -> str | None:
    return None if type(value) in (int, float) else "must be a number"


def _text_fault(value: object) -> str | None:
    return None if isinstance(value, str) else "must be a string"


def _one_of(*words: str) -> Rule:
    fault = f"must be one of {', '.join(words)}"
    return lambda value: None if isinstance(value, str) and value in words else fault


_RULES: dict[str, Rule] = {
    "role": lambda value: None if value in ("agent", "computer") else 'must be "agent" or "computer"',
    "name": fault_in,
    "office_id": fault_in,
    "instance": lambda value: fault_in(value, MAX_INSTANCE, MIN_INSTANCE),
    "seats": _boolean_fault,
    "seat": fault_in,
    "agent": fault_in,
    "req_id": fault_in,
    "computer": fault_in,
    "tool_name": lambda value: fault_in(value, MAX_TOOL_NAME),
    "params": _object_fault,
    "timeout": _integer_fault,
    "desktop_size": _integer_fault,
    "window": _uri_fault,
    "progress": _boolean_fault,
    "states": _boolean_fault,
    "frozen": _boolean_fault,
    "state": _one_of(*get_args(CallState)),
    "since": _number_fault,
    "reason": _text_fault,
    "questions": lambda value: (
        None if isinstance(value, bool) or value == "result" else 'must be true, false or "result"'
    ),
    "extend": _boolean_fault,
    "input_responses": _object_fault,
    "request_state": _text_fault,
    "client_capabilities": _object_fault,
    "client": fault_in_client,
    "_meta": _object_fault,
    "call": fault_in,
    "question_id": fault_in,
    "action": _one_of(*get_args(AnswerAction)),
    "content": _object_fault,
    "request": _object_fault,
    "mcp_server": fault_in,
    "level": _one_of(*get_args(LogLevel)),
    "logger": _text_fault,
    "message": _text_fault,
    "total": _number_fault,
    "uri": _uri_fault,
    "cursor": _text_fault,
    "context": _object_fault,
    "blobs": _boolean_fault,
    "binary": _boolean_fault,
    "titles": _boolean_fault,
    "approval": _boolean_fault,
    "kid": fault_in,
    "nonce": fault_in,
    "sealed": _text_fault,
}
_RULES_OF_REQUESTS = {
    **_RULES,
    "name": _text_fault,
    "rel_path": _text_fault,
    "as_mcp": _boolean_fault,
    **{name: rule for operation in MCP_OPERATIONS for name, rule in operation.rules.items()},
}
"""Names of skills and prompts have rules of their own."""
_RULES_OF_TELLS = _RULES | {"progress": _number_fault}
"""A call asks for progress with `true`; what is told is a number."""


def _check_missing(required: frozenset[str], data: dict[str, Any]) -> None:
    for field in sorted(required):
        if field not in data and data.get(OLDER_FIELDS.get(field, field)) is None:
            raise BadRequest(f"{field}: missing", field=field)


@cache
def _rules(checked: frozenset[str], action: Action) -> tuple[tuple[str, Rule], ...]:
    """Cached by the set of fields, of which there are few, and not by the event, which a client may invent."""
    spellings = [(field, field) for field in sorted(checked)]
    spellings += [(older, field) for field, older in OLDER_FIELDS.items() if field in checked]
    rules = {Action.TELL: _RULES_OF_TELLS, Action.FORWARD: _RULES_OF_REQUESTS}.get(action, _RULES)
    return tuple((spelling, rules[field]) for spelling, field in spellings if field in rules)
