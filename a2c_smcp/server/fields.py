"""Reads the fields of a payload that the Server decides by, and leaves everything else as the bytes it came as.

Parsing four mebibytes of JSON takes up to half a second, in which nobody else is served; scanning them takes some ten
milliseconds. So a large payload is only ever scanned: it is checked to be JSON, the fields below are taken out of it,
and of those none is looked into that is an array or an object.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType
from typing_extensions import TypedDict

__all__ = ["LARGE", "NAMES", "Json", "Request", "is_array", "raw_params", "read_fields", "read_request"]

Json: TypeAlias = bytes | memoryview
"""JSON as it came, which is passed on untouched; of what is large, a view of it."""

LARGE = 64 * 1024
"""From this size on, in bytes, nothing is parsed as a whole."""

_OBJECT, _ARRAY, _STRING = b'{["'
_NOT_READ = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class _Object(msgspec.Struct):
    """Any object: what is in it is checked to be JSON, and made nothing of."""


class _Fields(TypedDict, total=False):
    role: Any
    name: Any
    instance: Any
    agent: Any
    robot_id: Any
    req_id: Any
    computer: Any
    office_id: Any
    tool_name: Any
    timeout: Any
    sent_before: Any
    desktop_size: Any
    window: Any
    params: _Object


class Request(msgspec.Struct, eq=False):
    """The fields of a request to a computer that is as nearly all are: read into slots, with their types checked."""

    agent: str | UnsetType = UNSET
    robot_id: str | UnsetType = UNSET
    computer: str | UnsetType = UNSET
    office_id: str | UnsetType = UNSET
    tool_name: str | UnsetType = UNSET
    req_id: str | UnsetType = UNSET
    timeout: int | UnsetType = UNSET
    params: _Object | UnsetType = UNSET
    sent_before: Any = UNSET
    desktop_size: Any = UNSET
    window: Any = UNSET


NAMES = frozenset(_Fields.__annotations__)
"""The routing fields: everything else in a payload passes unseen."""


class _Params(TypedDict, total=False):
    params: msgspec.Raw


class _Elements(msgspec.Struct, array_like=True):
    """Any array: its elements are checked, and made nothing of."""


_RawFields: Any = TypedDict("_RawFields", dict.fromkeys(NAMES, msgspec.Raw), total=False)  # type: ignore[misc]
_fields = msgspec.json.Decoder(_Fields)
_request = msgspec.json.Decoder(Request)
_raw_fields = msgspec.json.Decoder(_RawFields)
_params = msgspec.json.Decoder(_Params)
_elements = msgspec.json.Decoder(_Elements)
_value: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class _UnreadObject(dict[str, Any]):
    """Stands for an object that nobody here has to look into."""


class _UnreadArray(list[Any]):
    """Stands for an array: no field that is read here may be one."""


_AN_OBJECT = _UnreadObject()
_STAND_INS = {_OBJECT: _AN_OBJECT, _ARRAY: _UnreadArray()}
_NO_NAME = "\ud800"


def read_fields(body: Json) -> dict[str, Any] | None:
    """The known fields of a JSON object. `None` if it is none, or a small one that has to be parsed to be read."""
    try:
        fields: Any = _fields.decode(body) if len(body) < LARGE else _fields_of_large(body)
    except _NOT_READ:
        return None
    if "params" in fields and type(fields["params"]) is _Object:
        fields["params"] = _AN_OBJECT
    return fields  # type: ignore[no-any-return]


def read_request(body: Json) -> Request | None:
    """`None` for a request that is large or unusual, which `read_fields` can read all the same, or wrong."""
    if len(body) >= LARGE:
        return None
    try:
        return _request.decode(body)
    except _NOT_READ:
        return None


def raw_params(body: Json) -> Json:
    """The field `params` of a JSON object as it came; empty where there is none, or where it cannot be told."""
    try:
        return memoryview(_params.decode(body).get("params", b""))
    except _NOT_READ:
        pass
    try:
        whole = _without_halves(body)
        params = bytes(_params.decode(whole).get("params", b""))
    except _NOT_READ:
        return b""
    start = whole.find(params)
    return body[start : start + len(params)]


def is_array(body: Json) -> bool:
    """Whether this is a JSON array. Of a small one that has to be parsed to be read, `False`."""
    return _is_array(body) or (len(body) >= LARGE and _is_array(_without_halves(body)))


def _is_array(body: Json) -> bool:
    try:
        _elements.decode(body)
    except _NOT_READ:
        return False
    return True


def _fields_of_large(body: Json) -> dict[str, Any]:
    try:
        found: Any = _raw_fields.decode(body)
        return {name: _shallow(memoryview(raw)) for name, raw in found.items()}
    except msgspec.DecodeError:
        found = _raw_fields.decode(_without_halves(body))
        return {name: _shallow_without_halves(memoryview(raw)) for name, raw in found.items()}


def _shallow(raw: memoryview) -> Any:
    return _STAND_INS[raw[0]] if raw[0] in _STAND_INS else _value.decode(raw)


def _shallow_without_halves(raw: memoryview) -> Any:
    """No name may hold half a surrogate pair: what may have held one is nothing that could be a name."""
    return _NO_NAME if raw[0] == _STRING and b"\\ue" in bytes(raw).lower() else _shallow(raw)


def _without_halves(body: Json) -> bytes:
    """Of the same length, with private characters, which no name of a field has, for escaped surrogates.

    Halves of surrogate pairs are JSON when they are escaped, and are passed on, but the decoder refuses them.
    """
    return bytes(body).replace(b"\\ud", b"\\ue").replace(b"\\uD", b"\\uE")
