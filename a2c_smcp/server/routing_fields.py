"""The fields of a payload that the Server decides by, read without parsing the rest.

Parsing four mebibytes of JSON takes up to half a second, in which no other connection is served; scanning them takes
some ten milliseconds. So a large payload is only scanned: it is checked to be JSON, the fields below are taken out of
it, and arrays and objects among them are not read.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType
from typing_extensions import TypedDict

from a2c_smcp.engine.packets import LARGE, Json
from a2c_smcp.errors import BadRequest
from a2c_smcp.mcp_events import CallState
from a2c_smcp.protocol.codec import loads

_OBJECT, _ARRAY, _STRING = b'{["'
_MOST_TRACE = 128
_NOT_READ = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class _Object(msgspec.Struct):
    """Any object: its content is checked to be JSON, and dropped."""


class _Fields(TypedDict, total=False):
    role: object
    name: object
    instance: object
    seats: object
    agent: object
    robot_id: object
    req_id: object
    computer: object
    office_id: object
    tool_name: object
    timeout: object
    sent_before: object
    extend: object
    desktop_size: object
    window: object
    kid: object
    seat: object
    params: _Object


class _ToldState(msgspec.Struct, gc=False):
    state: CallState


_state_decoder = msgspec.json.Decoder(_ToldState)


def read_state(body: Json) -> CallState | None:
    """The state in what a computer tells of a call; `None` for a sealed or an unknown one."""
    with suppress(*_NOT_READ):
        return _state_decoder.decode(body).state
    return None


class _Meta(msgspec.Struct, gc=False):
    traceparent: str | None = None

    @property
    def trace(self) -> str | None:
        header = self.traceparent
        return header if header and len(header) <= _MOST_TRACE and header.isascii() and header.isprintable() else None


NO_PARAMS = cast(msgspec.Raw, UNSET)
"""The default of `params`: msgspec reads no union with `Raw`."""


class RequestFields(msgspec.Struct, eq=False, gc=False):
    """The fields of an ordinary request to a computer, but its params: read into slots, with their types checked."""

    agent: str | UnsetType = UNSET
    robot_id: str | UnsetType = UNSET
    computer: str | UnsetType = UNSET
    office_id: str | UnsetType = UNSET
    tool_name: str | UnsetType = UNSET
    req_id: str | UnsetType = UNSET
    timeout: int | UnsetType = UNSET
    sent_before: object = UNSET
    extend: bool | UnsetType = UNSET
    desktop_size: object = UNSET
    window: object = UNSET
    kid: object = UNSET
    seat: object = UNSET


class UnrecordedRequest(RequestFields, gc=False):
    """A request whose arguments are not recorded."""

    params: _Object | UnsetType = UNSET


class RecordedRequest(RequestFields, gc=False):
    """A request that may be recorded: with its params as they came, an object, and its trace."""

    params: msgspec.Raw = NO_PARAMS
    meta: _Meta | None = msgspec.field(name="_meta", default=None)

    @property
    def tool(self) -> str | None:
        return None if self.tool_name is UNSET else self.tool_name


NAMES = frozenset(_Fields.__annotations__)
"""The routing fields. All other fields of a payload are passed on unread."""


class _Params(TypedDict, total=False):
    params: msgspec.Raw


class ToolFields(msgspec.Struct, eq=False, gc=False):
    """The fields to record of a request that is large or unusual."""

    tool: str | None = msgspec.field(name="tool_name", default=None)
    params: msgspec.Raw = NO_PARAMS
    meta: _Meta | None = msgspec.field(name="_meta", default=None)


class _ErrorDetails(msgspec.Struct, gc=False):
    outcome: str | None = None


class _ErrorFields(msgspec.Struct, gc=False):
    code: int | None = None
    details: _ErrorDetails | None = None


class ResultFields(msgspec.Struct, eq=False, gc=False):
    """The end of a call: an MCP result, an error of the protocol, or both (WIRE §3)."""

    is_error: bool = msgspec.field(name="isError", default=False)
    error: _ErrorFields | None = None

    @property
    def code(self) -> int | None:
        return self.error.code if self.error else None

    @property
    def ran(self) -> str | None:
        return self.error.details.outcome if self.error and self.error.details else None


class _ResultAck(msgspec.Struct, array_like=True, gc=False):
    result: ResultFields


class _Elements(msgspec.Struct, array_like=True):
    """Any array: its elements are checked to be JSON, and dropped."""


_RawFields: Any = TypedDict("_RawFields", dict.fromkeys(NAMES, msgspec.Raw), total=False)  # type: ignore[misc]
_fields = msgspec.json.Decoder(_Fields)
_unrecorded = msgspec.json.Decoder(UnrecordedRequest)
_recorded = msgspec.json.Decoder(RecordedRequest)
_raw_fields = msgspec.json.Decoder(_RawFields)
_params = msgspec.json.Decoder(_Params)
_tool = msgspec.json.Decoder(ToolFields)
_result = msgspec.json.Decoder(_ResultAck)
_elements = msgspec.json.Decoder(_Elements)
_value: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_steps = json.JSONDecoder(parse_int=str, parse_float=str)
_SPACE = re.compile(r"[ \t\n\r]*")


class _UnreadObject(dict[str, object]):
    """Stands for an object that was not read."""


class _UnreadArray(list[object]):
    """Stands for an array that was not read: no field below may be one."""


_AN_OBJECT = _UnreadObject()
_STAND_INS = {_OBJECT: _AN_OBJECT, _ARRAY: _UnreadArray()}
_NO_NAME = "\ud800"


def read_fields(body: Json) -> dict[str, object] | None:
    """The routing fields of a JSON object. `None` if it is invalid, or small and to be parsed as a whole."""
    try:
        fields: Any = _fields.decode(body) if len(body) < LARGE else _fields_of_large(body)
    except _NOT_READ:
        return None
    if "params" in fields and type(fields["params"]) is _Object:
        fields["params"] = _AN_OBJECT
    return fields  # type: ignore[no-any-return]


def read_request(body: Json) -> UnrecordedRequest | None:
    """The fields of a request. `None` if it is large, unusual or wrong: then use `read_fields`."""
    if len(body) >= LARGE:
        return None
    try:
        return _unrecorded.decode(body)
    except _NOT_READ:
        return None


def read_to_record(body: Json) -> RecordedRequest | None:
    """The same with what may be recorded of the request."""
    if len(body) >= LARGE:
        return None
    try:
        request = _recorded.decode(body)
    except _NOT_READ:
        return None
    params = request.params
    return request if params is NO_PARAMS or bytes(params)[0] == _OBJECT else None


def raw_params(body: Json) -> Json:
    """The bytes of the field `params` of a JSON object; empty if there is none, or if the object cannot be read.

    All of the object stands for them if nothing tells them from equal bytes elsewhere in it. It must be large for that,
    or very deep, and hold half a surrogate pair.
    """
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
    if not params or whole.find(params, start + 1) < 0:
        return body[start : start + len(params)]
    return body[_params_by_steps(whole)] if len(whole) < LARGE else body


def _params_by_steps(whole: bytes) -> slice:
    """Return the place of the value of `params`, of the last one if there are several, in a valid JSON object."""
    text = whole.decode("latin-1")  # one character for each byte
    at, place = text.index("{") + 1, slice(None)
    try:
        while text[at := _after_space(text, at)] != "}":
            name, at = _steps.raw_decode(text, at)
            begin = _after_space(text, _after_space(text, at) + len(":"))
            _, end = _steps.raw_decode(text, begin)
            if name == "params":
                place = slice(begin, end)
            at = _after_space(text, end)
            at += text[at] == ","
    except RecursionError:
        return slice(None)
    return place


def _after_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches anywhere


def read_tool(body: Json) -> ToolFields:
    """The tool of a call, its params and its trace; without what cannot be read."""
    try:
        return _tool.decode(body)
    except _NOT_READ:
        params = raw_params(body)
        known = msgspec.Raw(params) if 0 < len(params) < len(body) else NO_PARAMS
        return ToolFields(_tool_of_unusual(body), known, _meta_of_unusual(body))


def _meta_of_unusual(body: Json) -> _Meta | None:
    """A trace is plain ASCII text, which `_without_halves` does not change."""
    try:
        return _tool.decode(_without_halves(body)).meta
    except _NOT_READ:
        return None


def _tool_of_unusual(body: Json) -> str | None:
    """A small payload of which a part is unusual is parsed as a whole: nothing in it may hide the name of the tool."""
    fields = read_fields(body)
    if fields is None:
        with suppress(BadRequest, UnicodeDecodeError):
            fields = loads(bytes(body).decode())
    name = fields.get("tool_name") if isinstance(fields, dict) else None
    return name if isinstance(name, str) else None


def result_in(ack: Json) -> ResultFields | None:
    """Return the end of a call from an ordinary ack, and check that it is JSON. `None` for any other ack."""
    try:
        return _result.decode(ack).result
    except _NOT_READ:
        return None


def read_result(ack: Json) -> ResultFields | None:
    """Return the end of a call from any ack. `None` if the ack is no result."""
    if read := result_in(ack):
        return read
    try:
        return _result.decode(_without_halves(ack)).result
    except _NOT_READ:
        return None


def is_array(body: Json) -> bool:
    """True for a JSON array; `False` also for a small one that has to be parsed as a whole."""
    return _is_array(body) or (len(body) >= LARGE and _is_array(_without_halves(body)))


def _is_array(body: Json) -> bool:
    try:
        _elements.decode(body)
    except _NOT_READ:
        return False
    return True


def _fields_of_large(body: Json) -> dict[str, object]:
    try:
        fields: Any = _raw_fields.decode(body)
        return {name: _shallow(memoryview(raw)) for name, raw in fields.items()}
    except msgspec.DecodeError:
        fields = _raw_fields.decode(_without_halves(body))
        return {name: _shallow_without_halves(memoryview(raw)) for name, raw in fields.items()}


def _shallow(raw: memoryview) -> object:
    return _STAND_INS[raw[0]] if raw[0] in _STAND_INS else _value.decode(raw)


def _shallow_without_halves(raw: memoryview) -> object:
    """No name may hold half a surrogate pair: a string that may have held one becomes one that is no name."""
    return _NO_NAME if raw[0] == _STRING and b"\\ue" in bytes(raw).lower() else _shallow(raw)


def _without_halves(body: Json) -> bytes:
    """The same JSON with private characters in place of escaped surrogates, so that its length is the same.

    Halves of surrogate pairs are JSON when they are escaped, and are passed on, but the decoder refuses them.
    """
    return bytes(body).replace(b"\\ud", b"\\ue").replace(b"\\uD", b"\\uE")
