"""Tables and texts of the prompt. Text written by others is escaped: it cannot control the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from a2c_smcp.cli.errors import at_the_prompt
from a2c_smcp.cli.form import cut
from a2c_smcp.cli.prompt.language import Command
from a2c_smcp.cli.terminal import STATE_COLOURS, first_sentence, printable
from a2c_smcp.computer.calls.definitions import CHANGED
from a2c_smcp.computer.calls.incoming import CallStatistics
from a2c_smcp.computer.configuration.resolver import InputState
from a2c_smcp.computer.consent.approval import Grant, PendingApproval
from a2c_smcp.computer.consent.gate import BudgetState
from a2c_smcp.computer.consent.risk import UNUSUAL, Risk, effect_words
from a2c_smcp.computer.consent.rules import AccessPolicy
from a2c_smcp.computer.types import AttributedCall, OwnedTool
from a2c_smcp.mcp_host.status import ServerStatus
from a2c_smcp.protocol.escaping import one_line, values_in_lines
from a2c_smcp.v04_events import A2CSkillRef

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


_VALUE = 160
"""Characters of one value that a request shows; `approve` shows all."""
_VALUES = 200
"""Values that a request shows; `approve` shows all."""
_CHANGED_LINES, _CHANGED_LINE = 40, 400
"""Lines of a change that a request shows, and characters of one; `approve` shows all."""


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, column in enumerate(columns):
        drawn.add_column(column, overflow="fold", no_wrap=index == 0)
    for row in rows:
        drawn.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in row))
    return drawn


def status(
    servers: Mapping[str, ServerStatus], errors: Mapping[str, str], statistics: CallStatistics
) -> RenderableType:
    columns = ("server", "state", "tools", "restarts", "calls", "p50", "last error")
    return table(columns, [_status_row(server, errors.get(name, ""), statistics) for name, server in servers.items()])


def _status_row(server: ServerStatus, error: str, statistics: CallStatistics) -> Sequence[str | Text]:
    from rich.text import Text

    calls, p50 = statistics.of(server.name)
    return (
        server.name,
        Text(server.state, STATE_COLOURS[server.state]),
        str(server.tools),
        str(max(server.starts - 1, 0)),
        str(calls),
        "" if p50 is None else f"{p50 * 1000:.0f} ms" if p50 < 1 else f"{p50:.1f} s",
        " ".join(at_the_prompt(server.reason or error).split()),
    )


def tools(listed: Iterable[OwnedTool], *, asks: bool) -> RenderableType:
    """`asks`: whether tools need approval at all; false with --yes."""
    return table(("tool", "server", "approval", "description"), (_tool_row(tool, asks=asks) for tool in listed))


def _tool_row(tool: OwnedTool, *, asks: bool) -> Sequence[str]:
    known = tool.get("meta") or {}
    meta, changed = (json.loads(str(known.get(key) or "{}")) for key in ("a2c_tool_meta", "a2c_changed"))
    approval = "asks" if asks and meta.get("auto_apply") is not True else ""
    if changed:
        approval = "asks, changed" if approval or changed["asks"] else "changed"
    return tool["name"], tool["mcp_server"], approval, first_sentence(tool.get("description") or "")


def skills(listed: Iterable[A2CSkillRef]) -> RenderableType:
    rows = ((skill["name"], skill["source"], first_sentence(skill["description"])) for skill in listed)
    return table(("skill", "source", "description"), rows)


def history(records: Iterable[AttributedCall]) -> RenderableType:
    columns = ("time", "for", "server", "tool", "outcome", "arguments")
    return table(columns, map(_record_row, records))


def _record_row(record: AttributedCall) -> Sequence[str]:
    when = datetime.fromisoformat(record["timestamp"]).astimezone()
    outcome = f"{record['state']}: {record['error']}" if record["error"] else record["state"]
    whom, arguments = record["caller"] or "you", one_line(record["parameters"], 120)
    return f"{when:%H:%M:%S}", whom, record["server"], record["tool"], outcome, arguments


def inputs(known: Iterable[InputState]) -> RenderableType:
    rows = []
    for state in known:
        value = "hidden" if state.is_secret and state.source else "" if state.value is None else str(state.value)
        rows.append((state.id, state.source or "not known yet", value, state.definition.description or ""))
    return table(("input", "from", "value", "description"), rows)


def who_wants(pending: PendingApproval) -> str:
    """Return the agent and the tool of a request, in one line."""
    wanted, caller = pending.request, pending.request.caller
    alias = f" ({wanted.tool})" if wanted.name != wanted.tool else ""
    rule = f", which the rule {one_line(wanted.rule)} asks about" if wanted.rule else ""
    return f"#{pending.number} {caller.who} in {caller.office} wants {wanted.name}{alias} of {wanted.server}{rule}"


def request(pending: PendingApproval, *, in_full: bool = False) -> str:
    """Return the agent, the tool, the arguments and the risk of a request, and the change since it was approved."""
    wanted = pending.request
    arguments = _arguments(wanted.arguments, in_full=in_full)
    risk, change = _risk(wanted.risk, in_full=in_full), _change(wanted.changed, in_full=in_full)
    return "\n  ".join([who_wants(pending), *arguments, *risk, *change])


def _risk(risk: Risk, *, in_full: bool) -> list[str]:
    """Return what the tool says and does, and what is unusual, in a line each."""
    most = None if in_full else _VALUE
    says = [f"says of itself: {one_line(risk.description, most)}"] if risk.description else []
    does = [f"the tool {effect_words(risk.effects)}"] if risk.effects else []
    unusual = [(UNUSUAL[kind], cut(argument, _VALUE), one_line(value, most)) for kind, argument, value in risk.unusual]
    return [*says, *does, *(f"! {text.format(argument=argument, value=value)}" for text, argument, value in unusual)]


def _change(changed: str, *, in_full: bool) -> list[str]:
    if not changed:
        return []
    lines = changed.split("\n")
    shown = lines if in_full else [cut(line, _CHANGED_LINE) for line in lines[:_CHANGED_LINES]]
    is_whole = in_full or (len(lines) <= _CHANGED_LINES and all(len(line) <= _CHANGED_LINE for line in lines))
    rest = [] if is_whole else ["`approve` shows the change in full"]
    return [f"{CHANGED}:", *(f"  {line}" for line in shown), *rest]


def _arguments(arguments: dict[str, Any], *, in_full: bool) -> list[str]:
    shown = values_in_lines(arguments) if in_full else values_in_lines(arguments, _VALUE, _VALUES)
    if shown.missing:
        return [*shown.lines, f"[… {shown.missing} more values are not shown: `approve` shows all of them …]"]
    return [*shown.lines, "`approve` shows the values in full"] if shown.is_cut else shown.lines


def granted(grant: Grant) -> str:
    what = f"{grant.tool or 'every tool'} of {grant.server}" if grant.server else "every tool"
    return f"{grant.who} may use {what} without asking{_until(grant)}"


def grants(known: Iterable[Grant], last_used: Mapping[Grant, float]) -> RenderableType:
    columns = ("agent", "server", "may use without asking", "until", "last used")
    return table(columns, [_grant_row(grant, last_used.get(grant.for_good)) for grant in known])


def _grant_row(grant: Grant, used: float | None) -> Sequence[str]:
    when = "for good" if grant.until is None else _minute(grant.until)
    last = "never" if used is None else _minute(used)
    return grant.who, grant.server or "every server", grant.tool or "every tool", when, last


def _minute(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M}"


def _until(grant: Grant) -> str:
    return "" if grant.until is None else f" until {_minute(grant.until)}"


def rules(policy: AccessPolicy) -> RenderableType:
    """Return the rules, in their order."""
    rows = []
    for index, rule in enumerate(policy.rules):
        conditions = rule.model_dump(mode="json", exclude_defaults=True, exclude={"name", "then", "why"})
        text = ", ".join(f"{name} {one_line(value, _VALUE)}" for name, value in conditions.items())
        rows.append((policy.rule_label(index), rule.then, text or "always"))
    return table(("rule", "then", "if"), rows)


def budgets(used: Iterable[BudgetState]) -> RenderableType:
    return table(("budget", "of", "used"), used)


def help_on(commands: Iterable[Command[Any]]) -> RenderableType:
    return table(("command", "what it does"), [(command.usage, command.text) for command in commands])
