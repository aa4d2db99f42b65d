"""The tools of all computers, shown in a registry beside the local ones.

`Toolbox` keeps two things in step. `_computers` is what each computer offers; `_shown` is which of these tools the
registry has, and under which name. `ToolNames` decides the names: every change of the offers gives a `Renaming`, which
is applied to the registry in one update, so that a reader of the registry never sees half of it.

The registry belongs to the program, which may add and remove local tools at any time and in any thread. A local tool
may take the name of a remote one. `_on_change` therefore marks the local names as stale and has them read again in the
agent's event loop; its own updates are recognised by their thread and not counted as changes of others.

A computer whose connection was lost keeps its entry for `_MAY_COME_BACK`: its tools are hidden, but their names are
reserved, so that a short outage gives no name to another computer.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import count
from threading import get_ident
from typing import Any, NamedTuple, TypeAlias, TypeVar

from a2c_smcp.agent.calls import EmitOptions, StatesAsProgress
from a2c_smcp.agent.desktops import Seat
from a2c_smcp.errors import Unavailable
from a2c_smcp.loops import wait_blocking
from a2c_smcp.protocol.names import MAX_TOOL_NAME
from a2c_smcp.protocol.questions import ELICITATION, Answer, InputRequest, Question
from a2c_smcp.protocol.results import CallToolResult
from a2c_smcp.registry import MCPRegistry
from a2c_smcp.registry.calls.context import ToolCaller, progress_listener, tool_caller
from a2c_smcp.registry.content import note_result, value_of
from a2c_smcp.smcp import SMCPTool

logger = logging.getLogger(__name__)

# The names of computers' tools in an agent's registry: each gets the shortest one that is free.


class Offer(NamedTuple):
    """A tool of a computer, by the name that it has there."""

    seat: Seat
    tool: str


class Renaming(NamedTuple):
    """The effect of a change: names that are no longer used, and names with the tool that has them now."""

    lost: set[str]
    won: dict[str, Offer]


_FORMS: tuple[Callable[[Offer], str], ...] = (
    lambda offer: offer.tool,
    lambda offer: f"{offer.seat.computer}__{offer.tool}",
    lambda offer: f"{offer.seat.office}__{offer.seat.computer}__{offer.tool}",
)


class ToolNames:
    """A name for each tool. The first tool that claims a name keeps it as long as the tool is offered (WIRE §7).

    There are three forms: `tool`, `computer__tool`, `office__computer__tool`. A tool claims the shortest form, and the
    next longer one if it does not get that. Of the tools that claim a name, the one with the smallest number gets it.
    Nobody gets a name that a local tool has, that another tool has in a shorter form, or that begins with the name of
    another computer that is there. A tool that gets none of the three forms has no name.

    A change may cascade: a tool that loses its short name claims a longer one, and may take that from another. So
    `_change` settles the forms from the shortest to the longest, and for each only the names that were touched. Its
    cost depends on what changes, not on the number of tools.
    """

    def __init__(self) -> None:
        self._local: set[str] = set()
        self._numbers: dict[Offer, int] = {}
        self._claims: list[defaultdict[str, set[Offer]]] = [defaultdict(set) for _ in _FORMS]
        self._holders: list[dict[str, Offer]] = [{} for _ in _FORMS]
        self._seats: defaultdict[str, set[Seat]] = defaultdict(set)
        self._by_prefix: defaultdict[str, set[str]] = defaultdict(set)

    def of(self, offer: Offer) -> str | None:
        """The name of a tool, if it has one."""
        names = (form(offer) for form in _FORMS)
        return next((name for name, held in zip(names, self._holders, strict=True) if held.get(name) == offer), None)

    def enter(self, seat: Seat) -> Renaming:
        """A computer has entered: names that begin with its name belong to it."""
        touched: set[str] = set()
        for prefix in _prefixes_of(seat):
            self._seats[prefix].add(seat)
            touched |= self._by_prefix.get(prefix, set())
        return self._change(set(), set(), touched)

    def leave(self, seat: Seat) -> Renaming:
        """A computer has left. Its tools must have been removed before."""
        touched: set[str] = set()
        for prefix in _prefixes_of(seat):
            self._seats[prefix].discard(seat)
            if not self._seats[prefix]:
                del self._seats[prefix]
            touched |= self._by_prefix.get(prefix, set())
        return self._change(set(), set(), touched)

    def change(
        self,
        *,
        come: Iterable[Offer] = (),
        number: int = 0,
        gone: Iterable[Offer] = (),
        local: Collection[str] | None = None,
    ) -> Renaming:
        """Add and remove tools; a smaller `number` comes first. `local`: the names of all local tools, if changed."""
        moved = self._local.symmetric_difference(self._local if local is None else local)
        self._local ^= moved
        claiming, leaving = set(come), set(gone)
        for offer in leaving - claiming:
            self._numbers.pop(offer, None)
        self._numbers |= dict.fromkeys(claiming, number)
        return self._change(claiming, leaving, set(moved))

    def _change(self, claiming: set[Offer], leaving: set[Offer], touched: set[str]) -> Renaming:
        renaming = Renaming(set(), {})
        for level in range(len(_FORMS)):
            touched |= self._claim(level, claiming, leaving)
            won, lost = self._settle(level, touched, renaming)
            claiming, leaving = (claiming | lost) - won - leaving, leaving | won
        return renaming

    def _claim(self, level: int, claiming: set[Offer], leaving: set[Offer]) -> set[str]:
        claims, form = self._claims[level], _FORMS[level]
        for offer in claiming:
            name = form(offer)
            claims[name].add(offer)
            for prefix in _prefixes_in(name):
                self._by_prefix[prefix].add(name)
        for offer in leaving:
            if (name := form(offer)) in claims:
                claims[name].discard(offer)
        return {form(offer) for offer in claiming | leaving}

    def _settle(self, level: int, touched: set[str], renaming: Renaming) -> tuple[set[Offer], set[Offer]]:
        """Decide these names anew. Return the tools that got one, and those that lost one."""
        claims, holders = self._claims[level], self._holders[level]
        won, lost = set(), set()
        for name in touched:
            before, now = holders.pop(name, None), self._winner(level, name)
            if now:
                holders[name] = now
            if before and before != now:
                lost.add(before)
                renaming.lost.add(name)
            if now and now != before:
                won.add(now)
                renaming.won[name] = now
            if not claims.get(name):
                claims.pop(name, None)
                self._forget_prefixes(name)
        return won, lost

    def _winner(self, level: int, name: str) -> Offer | None:
        if name in self._local or any(name in held for held in self._holders[:level]):
            return None
        allowed = (offer for offer in self._claims[level].get(name, ()) if self._may_have(offer, name))
        return min(allowed, key=lambda offer: (self._numbers[offer], offer), default=None)

    def _may_have(self, offer: Offer, name: str) -> bool:
        """`<computer>__<tool>` belongs to that computer. If several computers fit, to the one with the longest name."""
        owned = [prefix for prefix in _prefixes_in(name) if prefix in self._seats]
        return not owned or offer.seat in self._seats[owned[-1]]

    def _forget_prefixes(self, name: str) -> None:
        if any(name in claims for claims in self._claims):
            return
        for prefix in _prefixes_in(name):
            if names := self._by_prefix.get(prefix):
                names.discard(name)
                if not names:
                    del self._by_prefix[prefix]


def _prefixes_of(seat: Seat) -> tuple[str, str]:
    return seat.computer, f"{seat.office}__{seat.computer}"


def _prefixes_in(name: str) -> Iterator[str]:
    """The possible computer prefixes of a qualified name, shortest first."""
    end = name.find("__")
    while end > 0:
        yield name[:end]
        end = name.find("__", end + 1)


Result = TypeVar("Result")

CallSeat: TypeAlias = Callable[[Seat, str, dict[str, Any], EmitOptions], Coroutine[Any, Any, CallToolResult]]
"""Calls a tool of a computer by the name that it has on that computer."""

_MAY_COME_BACK = 60.0
_SHOWN = (
    ("title", "MCP_TOOL_TITLE", str),
    ("icons", "MCP_TOOL_ICONS", list),
    ("annotations", "MCP_TOOL_ANNOTATION", dict),
)
"""Fields of MCP's list of tools, with the entry of `meta` that each comes from, and its type (WIRE §7, §9)."""
_OURS = ("a2c_", "MCP_TOOL_")
"""The beginning of our own entries of `meta`. All others are of the MCP server's `_meta`."""


class AgentLoop:
    """The agent's event loop, for callers in any thread and in any other loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def wait(self, work: Coroutine[Any, Any, Result], instead: str) -> Result:
        """Block until it is done. Raises `LoopIsRunning` in a thread with a running event loop."""
        return wait_blocking(self.begin, work, instead)

    async def done(self, work: Coroutine[Any, Any, Result]) -> Result:
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(self.begin(work))

    def begin(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Raises `Unavailable` after the end of the agent."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is closed
            work.close()
            raise Unavailable("the agent is closed") from None


class RemoteTool:
    """A tool of a computer in a registry. Calling it returns a Python value or raises `ToolFailed`."""

    def __init__(
        self,
        name: str,
        seat: Seat,
        tool: SMCPTool,
        call: CallSeat,
        loop: AgentLoop,
        *,
        is_trusted: bool = False,
    ) -> None:
        meta = _object_in(tool.get("meta"))
        ours = _object_in(meta.get("a2c_tool_meta"))
        self.name = name
        self.seat = seat
        self.tool = tool
        self.own_name = own if isinstance(own := meta.get("a2c_tool_name"), str) else tool["name"]
        """The name that its MCP server gave."""
        self.description = str(tool.get("description") or "")
        self.input_schema = tool.get("params_schema") or {}
        self.output_schema = tool.get("return_schema")
        self.tags = [str(tag) for tag in tags] if isinstance(tags := ours.get("tags"), list) else []
        self.meta = _shown(meta)
        self.origin = str(seat)
        self.trusts_hints = is_trusted
        self.trusts_tags = is_trusted and not meta.get("a2c_tags_of_server")  # the owner vouches for no such tag
        self._call = call
        self._loop = loop

    def __repr__(self) -> str:
        return f"RemoteTool({self.name!r}, {self.origin!r})"

    def call(self, arguments: dict[str, Any]) -> Any:
        """Call the tool and block. Raises `LoopIsRunning` in a thread with a running event loop."""
        return self._value(self._loop.wait(self._request(arguments), f"await acall of {self.name!r} instead"))

    async def acall(self, arguments: dict[str, Any]) -> Any:
        """Call the tool from any event loop."""
        return self._value(await self._loop.done(self._request(arguments)))

    def _request(self, arguments: dict[str, Any]) -> Coroutine[Any, Any, CallToolResult]:
        """The listeners belong to this context, not to the loop in which the coroutine will run."""
        options: EmitOptions = {}
        if listener := progress_listener():
            reporting = StatesAsProgress(listener)
            options["on_progress"], options["on_state"] = reporting.on_progress, reporting.on_state
        caller = tool_caller()
        if caller and caller.client:
            options["client"] = caller.client
        if caller and "elicitation" in caller.capabilities:
            options["on_question"] = partial(_put_to, caller)
        return self._call(self.seat, self.tool["name"], arguments, options)

    def _value(self, result: CallToolResult) -> Any:
        whole = result.to_wire()
        note_result(self, whole)
        return value_of(whole)


class Toolbox:
    """The computers of the agent's offices with their tools. Used in one event loop.

    Names are given in the order in which computers entered; tools that a computer adds later come after all others.
    Tags and hints of tools are used only for computers that are trusted; those of others are shown.
    """

    def __init__(
        self, registry: MCPRegistry, call: CallSeat, is_trusted: Callable[[Seat], bool] = lambda seat: False
    ) -> None:
        self.registry = registry
        self._call = call
        self._is_trusted = is_trusted
        self._numbers = count()
        self._computers: dict[Seat, _Computer] = {}
        self._names = ToolNames()
        self._shown: dict[str, RemoteTool] = {}
        self._local_names: set[str] = set()
        self._is_stale = True
        self._updates_in: int | None = None
        self._updates_heard = 0
        self._stop_listening: Callable[[], None] = lambda: None

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._agent_loop = AgentLoop(self._loop)
        self._is_stale = True
        self._stop_listening = self.registry.on_change(self._on_change)

    def close(self) -> None:
        self._stop_listening()
        for seat in [*self._computers]:
            self.leave(seat)

    def seats(self, office: str | None = None) -> list[Seat]:
        """The computers that are there now, in one office or in all."""
        here = [seat for seat, computer in list(self._computers.items()) if computer.is_here]
        return [seat for seat in here if office in (None, seat.office)]

    def seats_of(self, computer: object, office: object) -> list[Seat]:
        """The computers of this name that are there now, in one office or in all."""
        here = [seat for seat, each in list(self._computers.items()) if each.is_here and seat.computer == computer]
        return [seat for seat in here if office in (None, seat.office)]

    def tool(self, seat: Seat, name: str) -> SMCPTool | None:
        """A tool of a computer, by the name that it has there."""
        computer = self._computers.get(seat)
        return computer.tools.get(name) if computer else None

    def enter(self, seat: Seat) -> bool:
        """A computer has entered; its tools are not known yet. Return whether it was away before."""
        if computer := self._computers.get(seat):
            was_here, computer.is_here = computer.is_here, True
            computer.stop_forgetting()
            return not was_here
        self._computers[seat] = _Computer(next(self._numbers))
        self._show(self._names.enter(seat))
        return True

    def lose(self, seat: Seat) -> bool:
        """Hide the tools of a computer whose connection was lost, and reserve their names for a while."""
        computer = self._computers.get(seat)
        if computer is None or not computer.is_here:
            return False
        computer.is_here = computer.is_shown = False
        names = [name for tool in computer.tools if (name := self._names.of(Offer(seat, tool)))]
        if hidden := [name for name in names if self._shown.pop(name, None)]:
            self._update((), hidden)
        computer.forgetting = self._loop.call_later(_MAY_COME_BACK, self.leave, seat)
        return True

    def leave(self, seat: Seat) -> bool:
        """Remove a computer and its tools. Return whether it was there."""
        computer = self._computers.get(seat)
        if computer is None:
            return False
        computer.stop_forgetting()
        self._offer(seat, computer, {})
        del self._computers[seat]
        self._show(self._names.leave(seat))
        return computer.is_here

    def receive(self, seat: Seat, tools: list[SMCPTool]) -> None:
        """The tools that a computer offers now. Ignored if it has left."""
        valid = {tool["name"]: tool for tool in tools if _is_valid(tool)}
        if len(valid) < len(tools):
            logger.warning("%s: %d of its tools are malformed and left out", seat, len(tools) - len(valid))
        computer = self._computers.get(seat)
        if computer and computer.is_here:
            self._offer(seat, computer, valid)

    def _offer(self, seat: Seat, computer: _Computer, tools: dict[str, SMCPTool]) -> None:
        number = next(self._numbers) if computer.has_offered else computer.number
        added, removed, changed = computer.replace(tools)
        if not (added or removed or changed):
            return
        come, gone = [Offer(seat, tool) for tool in added], [Offer(seat, tool) for tool in removed]
        renaming = self._names.change(come=come, number=number, gone=gone, local=self._local())
        for offer in (Offer(seat, tool) for tool in changed):
            if name := self._names.of(offer):
                renaming.won[name] = offer
        self._show(renaming)

    def _on_change(self) -> None:
        """The registry has changed, perhaps in another thread: a local tool may have taken a name of ours."""
        if self._updates_in == get_ident():
            self._updates_heard += 1
        elif not self._is_stale:
            self._read_local_later()

    def _read_local_later(self) -> None:
        self._is_stale = True
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._apply_local)

    def _apply_local(self) -> None:
        self._show(self._names.change(local=self._local()))
        replaced = [tool for name, tool in self._shown.items() if not self.registry.is_registered(name)]
        if replaced:  # by local tools that are gone already
            self._update(replaced)

    def _local(self) -> set[str]:
        """The names of tools that this toolbox has not added."""
        if self._is_stale:
            self._is_stale = False
            self._local_names = {name for name, tool in self.registry.items() if self._shown.get(name) is not tool}
        return self._local_names

    def _show(self, renaming: Renaming) -> None:
        for name in renaming.lost:
            self._shown.pop(name, None)
        shown = {name: offer for name, offer in renaming.won.items() if self._computers[offer.seat].is_shown}
        new = {name: self._remote(name, offer) for name, offer in shown.items()}
        self._shown |= new
        gone = renaming.lost - self._local_names
        if not (gone or new):
            return
        try:
            self._update(new.values(), gone)
        except TypeError:  # one of them is not a valid tool, and nothing was changed
            self._update((), gone)
            for tool in new.values():
                try:
                    self._update([tool])
                except TypeError as error:
                    del self._shown[tool.name]
                    logger.warning("%s of %s is left out: %s", tool.name, tool.origin, error)

    def _update(self, add: Iterable[RemoteTool], remove: Iterable[str] = ()) -> None:
        """Change the registry. A second change during it is that of another listener, so local names are read again."""
        self._updates_in, self._updates_heard = get_ident(), 0
        try:
            self.registry.update(add=add, remove=remove)
        finally:
            self._updates_in = None
        if self._updates_heard > 1:
            self._read_local_later()

    def _remote(self, name: str, offer: Offer) -> RemoteTool:
        tool = self._computers[offer.seat].tools[offer.tool]
        is_trusted = self._is_trusted(offer.seat)
        return RemoteTool(name, offer.seat, tool, self._call, self._agent_loop, is_trusted=is_trusted)


class _Computer:
    """A computer that is there, or that was there until its connection was lost."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tools: dict[str, SMCPTool] = {}
        self.has_offered = False
        self.is_here = True
        self.is_shown = True
        self.forgetting: asyncio.TimerHandle | None = None

    def replace(self, tools: dict[str, SMCPTool]) -> tuple[list[str], list[str], list[str]]:
        """Store its tools, and show them. Return the names of those added, removed and changed."""
        before, was_shown = self.tools, self.is_shown
        self.tools, self.has_offered, self.is_shown = tools, True, True
        kept = tools.keys() & before.keys()
        return (
            [tool for tool in tools if tool not in kept],
            [tool for tool in before if tool not in kept],
            [tool for tool in tools if tool in kept and not (was_shown and tools[tool] == before[tool])],
        )

    def stop_forgetting(self) -> None:
        if self.forgetting:
            self.forgetting.cancel()


async def _put_to(caller: ToolCaller, question: Question) -> Answer:
    """The answer of the program that has called the tool. Raises `CannotAsk`, which cancels the question."""
    about: dict[str, Any] = {"requestedSchema": dict(question.schema)}
    if question.mode == "url":
        about = {"mode": "url", "url": question.url, "elicitationId": question.question_id}
    given = await caller.request(InputRequest(ELICITATION, {"message": question.message, **about}))
    return Answer(given["action"], given.get("content"))


def _is_valid(tool: Any) -> bool:
    """Computers of other makes may send anything."""
    schemas = (tool.get("params_schema"), tool.get("return_schema")) if isinstance(tool, dict) else ()
    return (
        all(schema is None or isinstance(schema, dict) for schema in schemas)
        and bool(schemas)
        and isinstance(tool.get("name"), str)
        and 0 < len(tool["name"]) <= MAX_TOOL_NAME
    )


def _shown(meta: Mapping[str, Any]) -> dict[str, Any]:
    found = {field: (_in_json(meta.get(entry)), kind) for field, entry, kind in _SHOWN}
    shown = {field: value for field, (value, kind) in found.items() if value and isinstance(value, kind)}
    own = {key: _in_object(value) for key, value in meta.items() if not key.startswith(_OURS)}
    return {**shown, "_meta": own} if own else shown


def _in_object(value: Any) -> Any:
    """A value of the MCP server's own `_meta`, in which objects and lists are JSON (WIRE §7), other texts are texts."""
    return _in_json(value) if isinstance(value, str) and value.startswith(("{", "[")) else value


def _in_json(text: object) -> Any:
    """000: `meta` holds objects as JSON strings. A string that is not JSON is taken as it is."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _object_in(text: object) -> Mapping[str, Any]:
    found = _in_json(text)
    return found if isinstance(found, Mapping) else {}
