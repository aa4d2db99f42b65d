"""The audit file of a Server: an entry for everything that happens, which is in the file before the answer leaves.

Progress, logs and other tells are not recorded, nor are updates and requests that only read; `client:get_config` is, as
`config read`. A call takes one line. Its arguments are recorded as a keyed hash of their JSON, or as they are if that
was asked for. The Server cannot read a sealed call: its `tool` is `null`, and its outcome `answered` unless the Server
itself has ended it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from a2c_smcp.audit.file import AuditFile
from a2c_smcp.server.observation.happened import CallBegun, CallEnded, EventRefused, Happened, Told, Updated
from a2c_smcp.server.observation.reporting import describe
from a2c_smcp.smcp import GET_CONFIG_EVENT

__all__ = ["ServerAudit", "in_one_line"]


class _CallEntry(msgspec.Struct, omit_defaults=True):
    """The line of a call. `tool` is always there."""

    time: str
    event: str
    office: str
    agent: str
    computer: str
    req_id: str
    tool: str | None
    outcome: str
    ms: float
    bytes_in: int
    bytes_out: int
    principal: str = ""
    address: str | None = None
    device: str | None = None
    computer_device: str | None = None
    sealed: bool = False
    code: int | None = None
    ran: str | None = None
    reason: str | None = None
    arguments: msgspec.Raw | str | None = None
    trace: str | None = None


_encode = msgspec.json.Encoder().encode


class ServerAudit:
    """An observer that writes an audit file.

    If it `gathers`, the entries of one turn of the event loop are written together: the web server then has to call
    `flush` before it writes to a socket. Otherwise each entry is written at once.
    """

    gathers = False

    def __init__(self, file: AuditFile, *, with_arguments: bool = False) -> None:
        self.file = file
        self.flush = file.flush
        self._with_arguments = with_arguments
        self._is_scheduled = False

    def __call__(self, happened: Happened) -> None:
        if isinstance(happened, CallEnded):
            if happened.call.event.is_call:
                self.file.write_encoded(self._call(happened))
            elif happened.call.event.name == GET_CONFIG_EVENT:
                self.file.write({**_in_milliseconds(describe(happened)), "event": "config read"})
            else:
                return
        elif isinstance(happened, EventRefused) and happened.event and happened.event.is_call:
            self.file.write(_in_milliseconds(describe(happened)))
        elif isinstance(happened, CallBegun | Updated | Told):
            return
        else:
            self.file.write(describe(happened))
        if not self.gathers:
            self.file.flush()
        elif not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """At the end of a turn of the loop, if nothing was written to a socket before."""
        self._is_scheduled = False
        self.file.flush()

    def _call(self, ended: CallEnded) -> bytes:
        call, result, connection = ended.call, ended.result, ended.connection
        caller, is_sealed = call.caller, call.event.is_sealed
        entry = _CallEntry(
            self.file.now(),
            "call",
            caller.office_id,
            caller.name,
            call.target.name,
            call.req_id,
            ended.tool,
            result.outcome,
            round(ended.seconds * 1000, 3),
            call.size,
            ended.answered,
            caller.owner,
        )
        if connection is not None:
            entry.address, entry.device = connection.address, connection.principal.device
        if ended.computer is not None:
            entry.computer_device = ended.answered_by
        if result.code is not None:
            entry.code, entry.ran = result.code, result.ran
        if is_sealed:
            entry.sealed = True
        elif raw := memoryview(ended.fields.params):
            entry.arguments = in_one_line(bytes(raw)) if self._with_arguments else self.file.hash(raw)
        if ended.fields.meta is not None:
            entry.trace = ended.fields.trace
        return _encode(entry)


def in_one_line(arguments: bytes) -> msgspec.Raw | None:
    """JSON as it came, without spaces between its parts: a newline there would begin another entry.

    `None` if it cannot be read.
    """
    try:
        text = msgspec.json.format(arguments, indent=-1)
        text.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _read_and_written(arguments)
    return msgspec.Raw(text)


def _read_and_written(arguments: bytes) -> msgspec.Raw | None:
    """The same for JSON that msgspec refuses, such as half a surrogate pair."""
    try:
        return msgspec.Raw(json.dumps(json.loads(arguments), separators=(",", ":"), allow_nan=False).encode("ascii"))
    except (ValueError, RecursionError):
        return None


def _in_milliseconds(facts: dict[str, Any]) -> dict[str, Any]:
    seconds = facts.pop("seconds", None)
    return facts if seconds is None else {**facts, "ms": round(seconds * 1000, 3)}
