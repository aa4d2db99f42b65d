"""The first page: numbers, charts, computers that are slow or fail, and nodes."""

from __future__ import annotations

from a2c_smcp.console.html import Child, Html, joined, tag
from a2c_smcp.console.operator.charts import calls_chart, latency_chart
from a2c_smcp.console.operator.shown import clock_time, missing_note, office_link, row_table, seconds_text
from a2c_smcp.console.operator.state import TOPIC, OperatorState
from a2c_smcp.console.pages import Page, Region, View
from a2c_smcp.errors import SMCPError
from a2c_smcp.server.admin.history import ComputerNumbers, quantile

__all__ = ["OverviewPage"]

_SHOWN = 10
_SLOW = 5.0


class OverviewPage:
    """What an operator looks at first."""

    def __init__(self, state: OperatorState) -> None:
        self._state = state
        regions: dict[str, Region] = {
            "numbers": self._numbers,
            "charts": self._charts,
            "troubled": self._troubled,
            "nodes": self._nodes,
        }
        self.page = Page("/", "Overview", regions, TOPIC, menu="Overview", pause=0.3)

    async def _numbers(self, view: View) -> Html:
        words = view.words
        members, missing = await self._state.members()
        past, _ = await self._state.past()
        computers = [row for row in members if row.role == "computer"]
        calls, failed = (sum(getattr(step, name) for step in past.steps) for name in ("calls", "failed"))
        tiles = {
            "Offices": len({row.office for row in members}),
            "Agents": len(members) - len(computers),
            "Computers": len(computers),
            "Away": sum(not row.connected for row in members),
            "Calls in flight": sum(row.calls for row in computers),
            "Calls in 15 minutes": calls,
            "Failed": failed,
            "Refused": sum(step.refused for step in past.steps),
        }
        shown = [
            tag("div", tag("dt", words(name)), tag("dd", f"{number:,}", class_="number"), class_="card tile")
            for name, number in tiles.items()
        ]
        return joined(missing_note(view, missing), tag("dl", *shown, class_="tiles"))

    async def _charts(self, view: View) -> Html:
        past, _ = await self._state.past()
        return tag("div", calls_chart(view.words, past.steps), latency_chart(view.words, past.steps), class_="charts")

    async def _troubled(self, view: View) -> Html:
        words = view.words
        past, _ = await self._state.past()
        chosen = sorted((each for each in past.computers if _trouble(each)), key=_trouble, reverse=True)
        title = tag("h2", words("Slow or failing computers"))
        if not chosen:
            return joined(title, tag("p", words("No computer is slow, and no call has failed."), class_="empty"))
        rows = [
            (
                each.computer,
                office_link(view, each.office),
                f"{each.calls:,}",
                f"{each.failed:,}",
                seconds_text(quantile(each.durations, 0.95)),
                _last_failure(view, each),
            )
            for each in chosen[:_SHOWN]
        ]
        columns = ("Computer", "Office", "Calls", "Failed", "95 of 100 within", "Last failure (UTC)")
        keys = [f"troubled-{each.office}-{each.computer}" for each in chosen[:_SHOWN]]
        more = len(chosen) - _SHOWN
        rest = tag("p", words("and {count} more", count=more), class_="soft") if more > 0 else None
        return joined(title, row_table(view, columns, rows, keys), rest)

    async def _nodes(self, view: View) -> Html:
        words = view.words
        title = tag("h2", words("Nodes"))
        try:
            nodes, missing = await self._state.nodes()
        except SMCPError as error:
            return joined(title, tag("p", error.about, class_="note bad"))
        rows = [
            (
                row.node or words("this Server"),
                tag("span", words("ready") if row.ready else words("not ready"), class_=_state_class(row.ready)),
                f"{row.connections:,}",
                f"{row.members:,}",
                f"{row.calls:,}",
                row.version,
                row.url or "–",
            )
            for row in nodes
        ]
        columns = ("Node", "State", "Connections", "Members", "Calls in flight", "Version", "Address")
        table = row_table(view, columns, rows, [f"node-{row.node}" for row in nodes])
        return joined(title, missing_note(view, missing), table)


def _state_class(is_good: bool) -> str:
    return "state good" if is_good else "state bad"


def _last_failure(view: View, numbers: ComputerNumbers) -> Child:
    """How the last call ended that failed, such as `timeout 408`, and when."""
    if not numbers.last_failure or not numbers.failed_at:
        return "–"
    outcome, _, code = numbers.last_failure.partition(" ")
    return joined(view.words(outcome), " ", code, " ", clock_time(numbers.failed_at))


def _trouble(numbers: ComputerNumbers) -> float:
    """How much a computer needs attention: the part of its calls that failed, and whether it is slow. 0 is fine."""
    slowest = quantile(numbers.durations, 0.95) or 0.0
    return numbers.failed / max(numbers.calls, 1) + (slowest / 100 if slowest >= _SLOW else 0.0)
