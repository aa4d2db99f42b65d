"""The audit file of a Server: an entry for everything that happens, which is in the file before the answer leaves.

Progress, logs and other tells are not recorded, nor are updates and requests that only read; `client:get_config` is, as
`config read`. A call takes one line. Its arguments are recorded as a keyed hash of their JSON, or as they are if that
was asked for. The Server cannot read a sealed call: its `tool` is `null`, and its outcome `answered` unless the Server
itself has ended it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from a2c_smcp.audit.file import AuditFile
from a2c_smcp.server.observation.happened import CallEnded, Happened
from a2c_smcp.server.observation.reporting import describe
from a2c_smcp.smcp import GET_CONFIG_EVENT

__all__ = ["ServerAudit", "in_one_line"]

logger = logging.getLogger(__name__)


class _CallEntry(msgspec.Struct, omit_defaults=True, gc=False):
    """The line of a call. `tool` is always there."""

    n: int
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


class ServerAudit:
    """A recorder that writes an audit file."""

    def __init__(self, file: AuditFile, *, with_arguments: bool = False) -> None:
        self.file = file
        self._with_arguments = with_arguments

    def __call__(self, happened: Sequence[Happened]) -> None:
        """Writes entries, those of calls that stand together by one step."""
        now, calls = self.file.now(), list[_CallEntry]()
        for each in happened:
            try:
                if type(each) is CallEnded and each.call.event.is_call:
                    calls.append(self._call(each, self.file.next_number + len(calls), now))
                elif facts := _facts(each):
                    self._write_calls(calls)
                    self.file.write(facts)
            except Exception:
                logger.exception("something was not recorded")
        self._write_calls(calls)
        self.file.flush()

    def _write_calls(self, calls: list[_CallEntry]) -> None:
        if calls:
            self.file.write_numbered(calls)
            calls.clear()

    def _call(self, ended: CallEnded, number: int, now: str) -> _CallEntry:
        call, result, connection = ended.call, ended.result, ended.connection
        caller, fields = call.caller, ended.fields
        entry = _CallEntry(
            number,
            now,
            "call",
            caller.office_id,
            caller.name,
            call.target.name,
            call.req_id,
            ended.tool,
            result.outcome,
            _milliseconds(ended.seconds),
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
        if call.event.is_sealed:
            entry.sealed = True
        elif params := bytes(fields.params):
            entry.arguments = in_one_line(params) if self._with_arguments else self.file.hash(params)
        if fields.meta is not None:
            entry.trace = fields.trace
        return entry


def _facts(happened: Happened) -> dict[str, Any] | None:
    """The entry of what is not a call that was passed on; `None` if it is not recorded."""
    if not isinstance(happened, CallEnded):
        return describe(happened)
    if happened.call.event.name != GET_CONFIG_EVENT:
        return None
    facts = describe(happened)
    return {**facts, "event": "config read", "ms": _milliseconds(facts.pop("seconds"))}


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


def _milliseconds(seconds: float) -> float:
    return int(seconds * 1_000_000) / 1000
