"""Asks all scanners about a call, one after the other, in the order of their configuration.

Before a call each of them sees the arguments, after it the result as it would leave the Computer: masked and
transformed. The answer of a scanner is an object: `{}` lets pass, `{"refuse": "why"}` refuses with 403,
`{"arguments": {…}}` and `{"result": {…}}` replace what the next scanner, and then the tool or the agent, gets.
Everything else refuses, too: another answer, an error, a deadline that passes. Nothing passes unchecked.

A replaced result is masked again. Replaced arguments are checked against the schema of the tool by the caller. The
owner's log says which scanner has refused, replaced or failed on what, with its own words; never what it has seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from a2c_smcp.computer.calls.incoming import IncomingCall
from a2c_smcp.computer.calls.table import ToolRoute
from a2c_smcp.computer.consent.programs import (
    FunctionProgram,
    ProgramFailed,
    ScannerConfig,
    ScannerProgram,
    When,
    parse_scanner,
    program_of,
)
from a2c_smcp.errors import CallTimeout, ScannerRefused
from a2c_smcp.mcp_host.processes.guard import ProcessGuard
from a2c_smcp.protocol.escaping import one_line
from a2c_smcp.protocol.questions import is_input_required

logger = logging.getLogger(__name__)

ScannerLike: TypeAlias = ScannerConfig | Mapping[str, Any] | str | Callable[[dict[str, Any]], Any]
"""A function, or a scanner as it is written in a configuration file or on the command line."""

_LONGEST_WORD = 300
_REPLACES: Mapping[When, str] = {"before": "arguments", "after": "result"}


@dataclass(frozen=True, slots=True)
class _Scanner:
    name: str
    when: frozenset[When]
    deadline: float
    program: ScannerProgram


class Scanners:
    """The scanners of a computer: those that are `given` for good come before those that are configured.

    `before` and `after` are those that are asked then. Raises `ConfigError` for one that cannot be used.
    """

    def __init__(self, computer: str, given: Iterable[ScannerLike] = ()) -> None:
        self._computer = computer
        self._guard = ProcessGuard()
        self._configured: Sequence[_Scanner] = ()
        self.give(given)

    def give(self, given: Iterable[ScannerLike]) -> None:
        """Use these from now on, before those that are configured. Raises `ConfigError` before anything is changed."""
        self._given = [self._scanner(scanner) for scanner in given]
        self._use()

    def configure(self, configs: Sequence[ScannerConfig]) -> None:
        """Use these from now on, after those that are given. Raises `ConfigError` before anything is changed."""
        self._configured = [*map(self._scanner, configs)]
        self._use()

    def _use(self) -> None:
        scanners = [*self._given, *self._configured]
        self.before = tuple(scanner for scanner in scanners if "before" in scanner.when)
        self.after = tuple(scanner for scanner in scanners if "after" in scanner.when)

    async def close(self) -> None:
        await self._guard.close()

    async def arguments(self, call: IncomingCall, route: ToolRoute, deadline: float) -> dict[str, Any]:
        """The arguments that pass: those of the call, or others. Raises `ScannerRefused` or `CallTimeout`."""
        question = self._question(call, route)
        if call.options is not None and call.options.input_responses is not None:
            question["answers"] = dict(call.options.input_responses)
        for scanner in self.before:
            await self._ask(scanner, "before", question, deadline)
        found: dict[str, Any] = question["arguments"]
        return found

    async def result(
        self, call: IncomingCall, route: ToolRoute, result: dict[str, Any], deadline: float
    ) -> dict[str, Any]:
        """The result that passes. Raises `ScannerRefused` or `CallTimeout`."""
        question = {**self._question(call, route), "result": result}
        for scanner in self.after:
            await self._ask(scanner, "after", question, deadline)
        found: dict[str, Any] = question["result"]
        return found

    def _question(self, call: IncomingCall, route: ToolRoute) -> dict[str, Any]:
        caller = call.caller
        return {
            "computer": self._computer,
            "office": caller.office,
            "agent": caller.agent,
            "client": caller.client,
            "server": route.server,
            "tool": route.tool,
            "name": call.name,
            "arguments": call.arguments,
        }

    async def _ask(self, scanner: _Scanner, when: When, question: dict[str, Any], deadline: float) -> None:
        """Ask one scanner. What it replaces is replaced in the question."""
        name = question["name"]
        outcome = "not_run" if when == "before" else "unknown"
        what = f"the {_REPLACES[when]} of {name!r}"
        about = f"scanner {scanner.name!r}"
        try:
            answer = await _answer(scanner, {"when": when, **question}, deadline)
            replaced = _read(answer, when)
        except _CallIsLate:
            raise CallTimeout(f"{about} did not check {what} in time", outcome=outcome) from None
        except ProgramFailed as failure:
            logger.warning(
                "%s failed on %s of server %r, which do not pass: %s", about, what, question["server"], failure
            )
            raise ScannerRefused(f"it could not check {what}", subject=about, outcome=outcome) from None
        except _Refused as refused:
            logger.warning("%s refused %s for %s: %s", about, what, question["agent"] or "the owner", refused)
            raise ScannerRefused(f"{what}: {refused}", subject=about, outcome=outcome) from None
        if replaced is not None:
            logger.info("%s replaced %s", about, what)
            question[_REPLACES[when]] = replaced

    def _scanner(self, given: ScannerLike) -> _Scanner:
        if callable(given):
            name = getattr(given, "__name__", type(given).__name__)
            plain = ScannerConfig(name=name)
            return _Scanner(name, frozenset(plain.when), plain.deadline, FunctionProgram(given))
        config = given if isinstance(given, ScannerConfig) else parse_scanner(given)
        return _Scanner(config.shown, frozenset(config.when), config.deadline, program_of(config, self._guard))


class _CallIsLate(Exception):
    """The deadline of the call has passed before that of the scanner."""


class _Refused(Exception):
    """A scanner does not let it pass. The message is its word."""


async def _answer(scanner: _Scanner, question: dict[str, Any], deadline: float) -> Any:
    loop = asyncio.get_running_loop()
    own = loop.time() + scanner.deadline
    try:
        async with asyncio.timeout_at(min(own, deadline)):
            return await scanner.program.ask(question)
    except TimeoutError:
        if deadline < own:
            raise _CallIsLate from None
        raise ProgramFailed(f"it gave no answer within {scanner.deadline:g} s") from None


def _read(answer: Any, when: When) -> dict[str, Any] | None:
    """The replacement of the arguments or the result; `None` if they pass. Raises `_Refused` or `ProgramFailed`."""
    if answer == {}:
        return None
    key = _REPLACES[when]
    match answer:
        case {"refuse": str(word), **others} if not others:
            raise _Refused(one_line(word, _LONGEST_WORD)[1:-1])
        case {"arguments": dict(found), **others} if not others and key == "arguments":
            return found
        case {"result": dict(found), **others} if not others and key == "result":
            if isinstance(found.get("content"), list) or is_input_required(found):
                return found
    raise ProgramFailed(f'its answer is neither {{}} nor {{"refuse": "…"}} nor {{"{key}": {{…}}}}')
