"""Approval of tool calls: a tool runs if its configuration, a rule or a grant allows it, or if the owner says yes.

If nobody can be asked, or asking fails, the answer is no. The owner may let the person at the MCP client that a call
comes from answer instead (`questions/client_approval.py`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import isawaitable, iscoroutinefunction
from itertools import count
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, get_origin, get_type_hints

from a2c_smcp.computer.calls.table import ToolRoute
from a2c_smcp.computer.consent.decision import Outlook, Verdict
from a2c_smcp.computer.consent.risk import CallMemory, Risk, Who
from a2c_smcp.errors import ApprovalRefused
from a2c_smcp.loops import in_thread
from a2c_smcp.protocol.escaping import shown_caller
from a2c_smcp.protocol.questions import Answer, Question
from a2c_smcp.types import TOOL_NAME

logger = logging.getLogger(__name__)

# Calls functions that ask the owner. They may be async, or block in a thread of their own, never in the event loop.

_NO_LOOP = ("no running event loop", "no current event loop")
_UNREADABLE = (NameError, AttributeError, SyntaxError, TypeError)


async def ask(question: Callable[..., Any], *about: Any) -> Any:
    """The answer of a function that may block or be async.

    A plain function is called in a thread of its own, where it may block. One that is annotated to return an awaitable
    is called in the event loop; so is one that fails in its thread because it needs the event loop.
    """
    functions = (question, getattr(type(question), "__call__", None))  # noqa: B004
    if any(iscoroutinefunction(function) or _returns_awaitable(function) for function in functions):
        return await _awaited(question(*about))
    try:
        answer = await in_thread(question, *about)
    except RuntimeError as error:
        if not any(sign in str(error) for sign in _NO_LOOP):
            raise
        answer = question(*about)
    return await _awaited(answer)


async def _awaited(answer: Any) -> Any:
    if isinstance(answer, Future):
        answer = asyncio.wrap_future(answer)
    return await answer if isawaitable(answer) else answer


def _returns_awaitable(function: Any) -> bool:
    try:
        returned = get_type_hints(function).get("return")
    except _UNREADABLE:
        return False
    kind = get_origin(returned) or returned
    return isinstance(kind, type) and issubclass(kind, Awaitable)


_ACCEPT = "its owner may say yes at the prompt, or start the computer with --pin warn"

Decision: TypeAlias = Literal["no", "yes", "always", "always_for_server", "always_for_agent"]
"""`always` grants this tool to this agent for later calls, the others every tool of this server, or every tool."""


@dataclass(frozen=True, slots=True)
class DecisionFor:
    """A decision, and the seconds after which a grant by it expires: `DecisionFor("always", 3600)`.

    `by` says where the owner has answered, such as `terminal` or `console`.
    """

    decision: Decision | bool
    seconds: float | None = None
    by: str = ""


ApproveBy: TypeAlias = Literal["owner", "client"]
"""The person who approves calls: the owner, or, for calls that can be asked, the person at the MCP client."""


class Grant(NamedTuple):
    """An approval of an agent's later calls: of one tool of an MCP server, of all of its tools, or of every tool.

    It lasts until `until`, in epoch seconds, or for good.
    The tool has the name that its MCP server gives it, because an alias can be changed to mean another tool. A grant
    with a `client` is for calls that the agent makes for this MCP client, one without for calls that name none. A grant
    to an agent that seals its calls is for its `device`, a fingerprint, and for no other of the same name.
    """

    agent: str
    server: str | None = None
    tool: TOOL_NAME | None = None
    client: str = ""
    device: str = ""
    until: float | None = None

    @property
    def who(self) -> str:
        return shown_caller(self.agent, self.client)

    @property
    def order(self) -> tuple[str, ...]:
        """By which grants are listed."""
        return self.agent, self.server or "", self.tool or "", self.client, self.device

    @property
    def for_good(self) -> Grant:
        """The same without an end."""
        return self if self.until is None else self._replace(until=None)

    def has_expired(self) -> bool:
        return self.until is not None and self.until <= time.time()


class NoticeSeal(Protocol):
    """Seals what the agent of one sealed request is told."""

    def notice(self, name: str, data: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """The agent that calls a tool, and its office.

    `client` is the MCP client that the agent calls for, by the name that it gives itself; empty if there is none. It is
    ignored when callers are compared: what is kept for an agent is kept for all of its clients. If the request was
    sealed, `device` is the fingerprint of the agent's key, `seal` is for what it is told, and `is_repeating` says that
    this very request was answered before. `seat` is the identity of its seat, if the Server tells one: the next agent
    of this name is another caller (WIRE §4).
    """

    office: str
    agent: str
    client: str = field(default="", compare=False)
    device: str = field(default="", compare=False)
    seal: NoticeSeal | None = field(default=None, compare=False, repr=False)
    is_repeating: bool = field(default=False, compare=False)
    seat: str = field(default="", repr=False)

    @property
    def who(self) -> str:
        """The agent, with its client: `bridge (claude-desktop)`."""
        return shown_caller(self.agent, self.client)

    @property
    def known_as(self) -> Who:
        return self.agent, self.device, self.client

    def is_exactly(self, other: Caller) -> bool:
        """True for the same agent calling for the same MCP client."""
        return self == other and self.client == other.client


OWNER = Caller("", "")
"""The caller of commands at the prompt. It needs no approval, and is compared by identity: no agent can pass for it."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that the owner is asked about. Secrets in `arguments` are masked.

    `changed` is how the definition of the tool differs from the one that was approved or first seen; empty if it does
    not. Lines of it begin with `-` for what is gone and with `+` for what is new. A yes is a yes to this, too. `rule`
    is the rule of the policy that wants it to be asked about, if there is one. With `every_time` no answer allows more
    than this call. `until` is when the call times out, in epoch seconds, if that is known. `risk` is what the tool says
    of itself, and what is unusual about the call.
    """

    caller: Caller
    name: TOOL_NAME
    server: str
    tool: TOOL_NAME
    arguments: dict[str, Any] = field(repr=False)
    changed: str = field(default="", repr=False)
    rule: str = ""
    every_time: bool = False
    until: float | None = field(default=None, compare=False)
    risk: Risk = field(default=Risk(), repr=False)

    def granted_by(self, decision: Decision | bool) -> Grant | None:
        """The grant that follows from a decision, beyond this one call."""
        if self.every_time:
            return None
        agent, client, device = self.caller.agent, self.caller.client, self.caller.device
        grants = {
            "always": Grant(agent, self.server, self.tool, client, device),
            "always_for_server": Grant(agent, self.server, None, client, device),
            "always_for_agent": Grant(agent, client=client, device=device),
        }
        return grants.get(decision) if isinstance(decision, str) else None


Request = ApprovalRequest  # the older name

_Answer: TypeAlias = Decision | DecisionFor | bool
Approve: TypeAlias = Callable[[ApprovalRequest], _Answer | Awaitable[_Answer]]


def approve_all(request: ApprovalRequest) -> bool:
    """Pass this as `approve` to let every tool run. Agents are told that no tool asks."""
    return True


_LASTING: tuple[Decision, ...] = ("always", "always_for_server", "always_for_agent")
_YES = ("yes", True, *_LASTING)


class Approvals:
    """The grants of an owner, and the function that asks for more.

    `on_grant` is called with each new grant, `on_revoked` with one that the owner takes back, `on_withdrawn` with the
    server and the tool whose grants have ended. No grant lasts longer than `longest_grant` seconds. `last_used` has the
    time of the last call by each grant, without its end. `on_allowed` is called when `memory` has learned from a yes.
    """

    def __init__(
        self,
        ask: Approve | None = None,
        *,
        by: ApproveBy = "owner",
        grants: Iterable[Grant] = (),
        on_grant: Callable[[Grant], None] = lambda grant: None,
    ) -> None:
        self._ask = ask
        self._by = by
        self.on_grant = on_grant
        self.on_revoked: Callable[[Grant], None] = lambda grant: None
        self.on_withdrawn: Callable[[str, TOOL_NAME], None] = lambda server, tool: None
        self.grants = set(grants)
        self.longest_grant: float | None = None
        self.last_used: dict[Grant, float] = {}
        self.memory = CallMemory()
        self.on_allowed: Callable[[], None] = lambda: None

    def allows(self, caller: Caller, route: ToolRoute, verdict: Verdict | None = None) -> bool:
        """True if a tool may run without asking: by the policy, by its configuration or by a grant."""
        if route.asks_again:
            return False
        if verdict is None:
            is_allowed, is_grantable = route.meta.auto_apply is True, True
        else:
            is_allowed, is_grantable = verdict.then == "allow", verdict.then == "ask" and not verdict.every_time
        return is_allowed or (is_grantable and self._has_granted(caller, route))

    def _has_granted(self, caller: Caller, route: ToolRoute) -> bool:
        if not self.grants or route.asks_again:
            return False
        wanted = _grants_for(caller, route)
        if not self.grants.isdisjoint(wanted):
            return True
        return any(grant.until and grant.for_good in wanted and not grant.has_expired() for grant in self.grants)

    def note_use(self, caller: Caller, route: ToolRoute) -> None:
        """A call runs by these grants."""
        used = {grant.for_good for grant in self.grants if not grant.has_expired()} & _grants_for(caller, route)
        self.last_used |= dict.fromkeys(used, time.time())

    @property
    def approves_all(self) -> bool:
        return self._ask is approve_all

    def can_ask(self, route: ToolRoute) -> bool:
        """True if there is a function that asks the owner, or says yes for them (`approve_all`)."""
        return self._ask is not None and not (route.asks_again and self.approves_all)

    @property
    def are_by_client(self) -> bool:
        """True if the person at the MCP client is asked, for calls that can be asked."""
        return self._by == "client" and not self.approves_all

    def approved(self, agent: str, routes: Mapping[TOOL_NAME, ToolRoute]) -> bool | list[TOOL_NAME]:
        """The tools without `auto_apply` that this agent may run without asking. `True` stands for every tool.

        Grants with a client do not count: an agent asks for its tools once, for all of its clients.
        """
        if self.approves_all or Grant(agent) in self.grants:
            return _all_that_do_not_ask_again(routes)
        if not any(grant.agent == agent for grant in self.grants):
            return []
        caller = Caller("", agent)
        return [name for name, route in routes.items() if not route.meta.auto_apply and self.allows(caller, route)]

    def approved_by_policy(
        self, caller: Caller, routes: Mapping[TOOL_NAME, ToolRoute], outlooks: Mapping[TOOL_NAME, Outlook]
    ) -> bool | list[TOOL_NAME]:
        """As `approved`, where a policy decides: a tool of which some calls ask is not among them."""
        if self.approves_all:
            return _all_that_do_not_ask_again(routes)
        return [
            name
            for name, outlook in outlooks.items()
            if not outlook.is_hidden
            and not routes[name].asks_again
            and (not outlook.may_ask or (not outlook.every_time and self._has_granted(caller, routes[name])))
        ]

    async def require(
        self,
        request: ApprovalRequest,
        route: ToolRoute,
        verdict: Verdict | None = None,
        on_answer: Callable[[DecisionFor], None] = lambda answer: None,
    ) -> None:
        """Return if the tool may run, after asking the owner if need be. Raises `ApprovalRefused`.

        `on_answer` is told what the owner has answered.
        """
        if self.allows(request.caller, route, verdict):
            return
        if self._ask is None or not self.can_ask(route):
            remedy = _ACCEPT if route.asks_again else self._remedy(request)
            raise ApprovalRefused(f"{request.name!r} needs its owner's approval and nobody can be asked: {remedy}")
        answer = await self._answer(self._ask, request)
        given = answer if isinstance(answer, DecisionFor) else DecisionFor(answer)
        decision = given.decision
        on_answer(given)
        if grant := request.granted_by(decision):
            self.add(grant, given.seconds)
        elif decision not in _YES:
            raise ApprovalRefused(f"the owner said no to {request.name!r}")

    def limit_grants(self, longest: float | None) -> None:
        """Let no grant last longer than so many seconds from now on, those that were given before included."""
        self.longest_grant = longest
        self.take(self.grants)

    def take(self, grants: Iterable[Grant]) -> None:
        """Replace all grants. None lasts longer than is allowed now."""
        most = math.inf if self.longest_grant is None else time.time() + self.longest_grant
        ends = {grant: min(most, math.inf if grant.until is None else grant.until) for grant in grants}
        self.grants = {
            each._replace(until=None if end == math.inf else end)
            for each, end in ends.items()
            if not each.has_expired()
        }

    def add(self, grant: Grant, seconds: float | None = None) -> None:
        """Grant it, for so many seconds, or for good. An earlier grant of the same is replaced."""
        lasts = min((limit for limit in (seconds, self.longest_grant) if limit is not None), default=None)
        self.grants -= {kept for kept in self.grants if kept.for_good == grant.for_good}
        self.last_used.pop(grant.for_good, None)
        grant = grant._replace(until=None if lasts is None else time.time() + lasts)
        self.grants.add(grant)
        self.on_grant(grant)

    def _remedy(self, request: ApprovalRequest) -> str:
        usual = f"set auto_apply for it in the configuration of {request.server!r}, or start the computer with --yes"
        if self.are_by_client:
            return f"use an MCP client that answers questions (elicitation), {usual}"
        return f"{usual}, or with --approve-by client, which asks the person at the MCP client"

    async def _answer(self, question: Approve, request: ApprovalRequest) -> _Answer:
        """The owner's answer. A failure of the function that asks counts as no."""
        try:
            decision: _Answer = await ask(question, request)
        except ApprovalRefused:
            raise
        except Exception:
            logger.exception("the owner could not be asked about %r of %s", request.name, request.caller.who)
            raise ApprovalRefused(f"the owner could not be asked about {request.name!r}") from None
        return decision

    def revoke(self, grant: Grant) -> None:
        self.grants.discard(grant)
        self.on_revoked(grant)

    def withdraw(self, server: str, tool: TOOL_NAME) -> None:
        """End the grants of one tool, for all agents. Those for every tool, of the server or at all, stay."""
        self.grants = {grant for grant in self.grants if (grant.server, grant.tool) != (server, tool)}
        self.on_withdrawn(server, tool)


def _grants_for(caller: Caller, route: ToolRoute) -> set[Grant]:
    """The grants, without an end, that let this agent call this tool."""
    agent, client, device = caller.agent, caller.client, caller.device
    whole = ((None, None), (route.server, None), (route.server, route.tool))
    return {Grant(agent, server, tool, client, device) for server, tool in whole}


def _all_that_do_not_ask_again(routes: Mapping[TOOL_NAME, ToolRoute]) -> bool | list[TOOL_NAME]:
    """`True`, or, if a tool has changed and asks for that, the names of the others."""
    if not any(route.asks_again for route in routes.values()):
        return True
    return [name for name, route in routes.items() if not route.meta.auto_apply and not route.asks_again]


# Requests that wait for the owner: calls that need approval, and questions of MCP servers.
#
# The Computer awaits `PendingApprovals` for each call that needs approval, and `PendingQuestions` for each question.
# The owner may answer at the prompt of the terminal, or in the browser: all see the same requests, and the first answer
# counts. An answer at the prompt without a number means the request that was the oldest when the owner began to type: a
# request that arrives while the owner types must not be approved by mistake, and one that is withdrawn meanwhile is not
# replaced by the next. A form does not open by itself there: a key that is meant for the line must not become an
# answer.
#
# If a call ends before there is an answer, the Computer cancels what it awaits: the request is withdrawn everywhere.
#
# A listener that fails is logged. It withdraws no request, and the other listeners are told all the same.

Pending = TypeVar("Pending", "PendingApproval", "PendingQuestion")


class NothingToAnswer(Exception):
    """The request to be answered does not exist, or exists no longer."""


@dataclass(eq=False)
class PendingApproval:
    """A call that waits for approval. The owner names it by its number.

    `since` is in seconds since the epoch; `where` says where it was answered.
    """

    number: int
    request: ApprovalRequest
    answer: asyncio.Future[Decision | DecisionFor] = field(repr=False)
    since: float = field(default_factory=time.time)
    where: str = ""


class _Waiting(Generic[Pending]):
    """Requests that wait for the owner's answers, by number.

    All of `on_added` and `on_removed` are called for each request; `first_added` is set by the first one. `numbers` are
    the numbers of the next requests, and of anything else that the owner is asked.
    """

    def __init__(self, numbers: Iterator[int], first_added: asyncio.Event) -> None:
        self.on_added: list[Callable[[Pending], None]] = []
        self.on_removed: list[Callable[[Pending], None]] = []
        self.numbers, self.first_added = numbers, first_added
        self._pending: dict[int, Pending] = {}

    def __iter__(self) -> Iterator[Pending]:
        return iter(list(self._pending.values()))

    @contextmanager
    def _waiting(self, pending: Pending) -> Iterator[None]:
        self._pending[pending.number] = pending
        self.first_added.set()
        try:
            _tell_all(self.on_added, pending)
            yield
        finally:
            self._pending.pop(pending.number, None)
            _tell_all(self.on_removed, pending)

    def _numbered(self, number: str) -> Pending | None:
        wanted = number.removeprefix("#")
        return self._pending.get(int(wanted)) if wanted.isdecimal() else None


class PendingApprovals(_Waiting["PendingApproval"]):
    """The `approve` callback of a Computer: it returns when the owner has answered."""

    def __init__(self) -> None:
        super().__init__(count(1), asyncio.Event())
        self._oldest_seen: PendingApproval | None = None

    async def __call__(self, request: ApprovalRequest) -> Decision | DecisionFor:
        if request.caller is OWNER:
            return "yes"
        pending = PendingApproval(next(self.numbers), request, asyncio.get_running_loop().create_future())
        with self._waiting(pending):
            return await pending.answer

    def remember_oldest(self) -> None:
        """Called when the owner begins a line: an answer without a number is for the request that is the oldest now."""
        self._oldest_seen = next(iter(self), None)

    def find(self, number: str | None = None) -> PendingApproval:
        """The request with this number, or the one that an answer without a number means. Raises `NothingToAnswer`."""
        if number is not None:
            if (pending := self._numbered(number)) is None:
                raise NothingToAnswer(f"no request {number} waits for an answer")
            return pending
        if self._oldest_seen is None:
            raise NothingToAnswer("no request waited for an answer when this line was begun")
        if self._oldest_seen.number not in self._pending:
            raise NothingToAnswer(f"request #{self._oldest_seen.number} has been withdrawn, nothing was answered")
        return self._oldest_seen

    def answer(
        self, pending: PendingApproval, decision: Decision, seconds: float | None = None, where: str = ""
    ) -> None:
        """Answer a request, here or `where`. A grant also answers the pending requests that it covers.

        It lasts for so many seconds, or for good. A request that shows a change of its tool is answered along only if
        the same change was shown.
        """
        asked = pending.request
        grant = asked.granted_by(decision)
        self._decide(pending, _noted(decision, seconds, where), where)
        for other in self if grant else ():
            known = (asked.server, asked.tool, asked.changed) if other.request.changed else None
            if known and (other.request.server, other.request.tool, other.request.changed) != known:
                continue
            if grant in map(other.request.granted_by, _LASTING):
                self._decide(other, _noted("yes", None, where), where)

    def _decide(self, pending: PendingApproval, decision: Decision | DecisionFor, where: str = "") -> None:
        del self._pending[pending.number]
        pending.where = where
        if not pending.answer.done():
            pending.answer.set_result(decision)


def _tell_all(listeners: Iterable[Callable[[Pending], None]], pending: Pending) -> None:
    for tell in listeners:
        try:
            tell(pending)
        except Exception:
            logger.exception("what waits for the owner was not told to everything that shows it")


def _noted(decision: Decision, seconds: float | None, where: str) -> Decision | DecisionFor:
    """The decision, with how long it lasts and where it was made."""
    return DecisionFor(decision, seconds, by=where) if where or seconds is not None else decision


@dataclass(eq=False)
class PendingQuestion:
    """A question that waits for the owner, who names it by its number. The other fields are those of an approval."""

    number: int
    question: Question
    answer: asyncio.Future[Answer] = field(repr=False)
    since: float = field(default_factory=time.time)
    where: str = ""

    @property
    def who(self) -> str:
        """The asker and the reason, in one line."""
        asked = self.question
        if not asked.tool:
            return f"{asked.server}, in one of several calls,"
        caller = f"{shown_caller(asked.agent, asked.client)} in {asked.office}" if asked.agent else "you"
        return f"{asked.server}, while {asked.tool} runs for {caller},"

    def settle(self, answer: Answer, where: str = "") -> None:
        """Answer it, here or `where`, unless it has an answer."""
        if not self.answer.done():
            self.where = where
            self.answer.set_result(answer)


class PendingQuestions(_Waiting[PendingQuestion]):
    """The `on_question` callback of a Computer: it returns when the owner has answered.

    The numbers are shared with requests for approval.
    """

    async def __call__(self, question: Question) -> Answer:
        pending = PendingQuestion(next(self.numbers), question, asyncio.get_running_loop().create_future())
        with self._waiting(pending):
            return await pending.answer

    def find(self, number: str | None = None) -> PendingQuestion | None:
        """The question with this number, or the oldest."""
        return next(iter(self), None) if number is None else self._numbered(number)
