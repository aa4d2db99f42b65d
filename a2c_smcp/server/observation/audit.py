"""The audit file of a Server: an entry for everything that happens, which is in the file before the answer leaves.

Progress, logs and other tells are not recorded, nor are updates and requests that only read; `client:get_config` is, as
`config read`. A call takes one line. Its arguments are recorded as a keyed hash of their JSON, or as they are if that
was asked for. The Server cannot read a sealed call: its `tool` is `null`, and its outcome `answered` unless the Server
itself has ended it.

A busy Server writes thousands of lines a second, so little is done for each call: its arguments are found and hashed,
and a small entry is made. The rest is done once for all calls of a turn (time, encoding, the hash of the block, the
system call), or once for all calls of a route: who calls whom and which tool, from where and by which device.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from a2c_smcp.audit.file import AuditFile, encoded
from a2c_smcp.server.auth.authentication import Principal
from a2c_smcp.server.observation.happened import CallEnded, Happened
from a2c_smcp.server.observation.reporting import describe
from a2c_smcp.server.outcomes import Answer
from a2c_smcp.server.routing_fields import read_arguments
from a2c_smcp.smcp import GET_CONFIG_EVENT

__all__ = ["ServerAudit", "in_one_line"]

logger = logging.getLogger(__name__)


class _CallEntry(msgspec.Struct, omit_defaults=True, gc=False):
    """The line of a call.

    `event` is `call`, and behind it, as further members of the line, what calls like it have in common: they are
    encoded once, and noted with their route.
    """

    n: int
    time: str
    event: msgspec.Raw
    req_id: str
    ms: float
    bytes_in: int
    bytes_out: int
    arguments: msgspec.Raw | str | None = None
    trace: str | None = None


class ServerAudit:
    """A recorder that writes an audit file."""

    def __init__(self, file: AuditFile, *, with_arguments: bool = False) -> None:
        self.file = file
        self._with_arguments = with_arguments

    def __call__(self, happened: Sequence[Happened]) -> None:
        """Writes entries, those of calls that stand together by one step."""
        file, now, calls = self.file, self.file.now(), list[_CallEntry]()
        number = file.next_number
        for each in happened:
            try:
                if type(each) is CallEnded and each.call.event.is_call:
                    calls.append(self._call(each, number, now))
                    number += 1
                elif facts := _facts(each):
                    self._write_calls(calls)
                    file.write(facts)
                    number = file.next_number
            except Exception:
                logger.exception("something was not recorded")
                number = file.next_number + len(calls)
        try:
            self._write_calls(calls)
        finally:
            file.flush()

    def _write_calls(self, calls: list[_CallEntry]) -> None:
        entries = calls.copy()
        calls.clear()
        if entries:
            self.file.write_numbered(entries)

    def _call(self, ended: CallEnded, number: int, now: str) -> _CallEntry:
        call, outcome = ended.call, ended.outcome
        fields = read_arguments(ended.envelope.body if ended.envelope else b"")
        arguments: msgspec.Raw | str | None = None
        if not call.event.is_sealed and (params := bytes(fields.params)):
            arguments = in_one_line(params) if self._with_arguments else self.file.hash(params)
        return _CallEntry(
            number,
            now,
            _common_members(ended),
            call.req_id,
            int(ended.seconds * 1_000_000) / 1000,
            call.size,
            len(outcome.body) if type(outcome) is Answer else ended.answered,
            arguments,
            fields.trace if fields.meta is not None else None,
        )


def _common_members(ended: CallEnded) -> msgspec.Raw:
    """What calls like this have in common. It is noted with the route, for calls between the same two connections."""
    notes, word, connection, computer = ended.call.notes, ended.result.outcome, ended.connection, ended.computer
    if notes is None or connection is None or ended.result.code is not None:
        return _members(ended)
    of_computer = computer.principal if computer is not None else None
    known: tuple[msgspec.Raw, str | None, Principal, Principal | None] | None = notes.get(word)
    if known is not None:
        members, address, of_agent, of_last_computer = known
        if of_agent is connection.principal and of_last_computer is of_computer and address is connection.address:
            return members
    members = _members(ended)
    notes[word] = members, connection.address, connection.principal, of_computer
    return members


def _members(ended: CallEnded) -> msgspec.Raw:
    call, result, connection = ended.call, ended.result, ended.connection
    facts = {
        "event": "call",
        "office": call.caller.office_id,
        "agent": call.caller.name,
        "computer": call.target.name,
        "tool": ended.tool,
        "outcome": result.outcome,
        "principal": call.caller.owner,
        "address": connection and connection.address,
        "device": connection and connection.principal.device,
        "computer_device": ended.answered_by,
        "sealed": call.event.is_sealed or None,
        "code": result.code,
        "ran": result.ran,
    }
    text = encoded({name: fact for name, fact in facts.items() if fact is not None or name == "tool"})
    return msgspec.Raw(text.removeprefix(b'{"event":').removesuffix(b"}"))


def _facts(happened: Happened) -> dict[str, Any] | None:
    """The entry of what is not a call that was passed on; `None` if it is not recorded."""
    if not isinstance(happened, CallEnded):
        return describe(happened)
    if happened.call.event.name != GET_CONFIG_EVENT:
        return None
    facts = describe(happened)
    milliseconds = round(facts.pop("seconds") * 1000, 3)
    return {**facts, "event": "config read", "ms": milliseconds}


def in_one_line(arguments: bytes) -> msgspec.Raw | None:
    """JSON as it came, without spaces between its parts: a newline there would begin another entry.

    `None` if it cannot be read.
    """
    try:
        text = msgspec.json.format(arguments, indent=-1)
        text.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _read_and_written(arguments)
    return _read_and_written(arguments) if b"\n" in text else msgspec.Raw(text)


def _read_and_written(arguments: bytes) -> msgspec.Raw | None:
    """The same for JSON that msgspec refuses, such as half a surrogate pair."""
    try:
        return msgspec.Raw(json.dumps(json.loads(arguments), separators=(",", ":"), allow_nan=False).encode("ascii"))
    except (ValueError, RecursionError):
        return None
