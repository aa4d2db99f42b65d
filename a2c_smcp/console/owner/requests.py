"""The first page: what waits for the owner's answer, and what runs."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from a2c_smcp.computer.approval import Decision
from a2c_smcp.computer.pending import NothingToAnswer, PendingApproval, PendingQuestion
from a2c_smcp.console.html import Html, joined, tag
from a2c_smcp.console.owner.question_form import content_of, form_of
from a2c_smcp.console.owner.shown import arguments, difference, long_text, shortened
from a2c_smcp.console.owner.state import OwnerState, WatchedCall
from a2c_smcp.console.owner.whole import whole_request
from a2c_smcp.console.pages import Action, Form, Page, View, button_form, hidden, notice_page
from a2c_smcp.console.web import Response, as_page
from a2c_smcp.errors import BadRequest, QuestionEnded
from a2c_smcp.protocol.questions import Answer
from a2c_smcp.protocol.visible import shown_caller, web_host

__all__ = ["WHERE", "RequestsPage"]

WHERE = "console"
_DECISIONS: dict[str, Decision] = {
    "yes": "yes",
    "no": "no",
    "always": "always",
    "always_for_agent": "always_for_agent",
}
_LASTS = {"": None, "3600": "for an hour", "28800": "for 8 hours", "86400": "for a day"}
"""How long a permission lasts, in seconds, and what that is called."""


class RequestsPage:
    """Approvals and questions, each of which is answered once: here, or at the terminal."""

    def __init__(self, state: OwnerState) -> None:
        self._state = state
        self._drawn: WeakKeyDictionary[PendingApproval, dict[str, Html]] = WeakKeyDictionary()
        self.page = Page(
            "/",
            "Requests",
            {"requests": self._requests, "running": self._running},
            frozenset(["requests", "calls"]),
            menu="Requests",
            pause=0.02,
            count=lambda: len([*state.approvals]) + len([*state.questions]),
        )
        self.actions: dict[str, Action] = {
            "/requests/decide": self._decide,
            "/requests/answer": self._answer,
            "/requests/visit": self._visit,
        }

    # What is shown

    def _requests(self, view: View) -> Html:
        waiting: list[PendingApproval | PendingQuestion] = [*self._state.approvals, *self._state.questions]
        waiting.sort(key=lambda each: each.number)
        title = tag("h2", view.words("Waiting for you"))
        if not waiting:
            return joined(title, tag("p", view.words("Nothing waits for your answer."), class_="empty"))
        items = [
            _approval(view, each, self._wanted(view, each))
            if isinstance(each, PendingApproval)
            else _question(view, each)
            for each in waiting
        ]
        return joined(title, tag("ul", *items, class_="cards"))

    def _wanted(self, view: View, pending: PendingApproval) -> Html:
        """What a call would do, drawn once: the arguments, and how its tool has changed."""
        drawn = self._drawn.setdefault(pending, {})
        if view.language not in drawn:
            wanted = pending.request
            shown = arguments(view, wanted.arguments, whole_request(view, pending.number))
            drawn[view.language] = joined(_change(view, wanted.changed) if wanted.changed else None, shown)
        return drawn[view.language]

    def _running(self, view: View) -> Html:
        waiting = {each.request.caller.who for each in self._state.approvals}
        running = self._state.running
        if not running:
            return Html("")
        items = [_running_call(view, each) for each in running]
        note = tag("p", view.words("A call that waits for your answer is among them."), class_="soft small")
        return joined(tag("h2", view.words("Running")), note if waiting else None, tag("ul", *items, class_="cards"))

    # What is answered

    async def _decide(self, view: View, form: Form) -> Response | None:
        decision = _DECISIONS.get(_one(form, "decision"))
        lasts = _one(form, "lasts")
        if decision is None or lasts not in _LASTS:
            raise BadRequest("that is no answer to a request")
        try:
            pending = self._state.approvals.find(_one(form, "number"))
        except NothingToAnswer:
            raise QuestionEnded(view.words("It was answered already, or withdrawn: nothing was done.")) from None
        seconds = float(lasts) if lasts and decision.startswith("always") else None
        self._state.approvals.answer(pending, decision, seconds, WHERE)
        return None

    async def _answer(self, view: View, form: Form) -> Response | None:
        pending = self._question_of(view, form)
        action = _one(form, "action")
        if action == "accept":
            content = await content_of(view, pending.question, form)
            pending = self._question_of(view, form)  # the check may have taken time
            pending.settle(Answer("accept", content, by=WHERE), WHERE)
        elif action in ("decline", "cancel"):
            pending.settle(Answer("decline" if action == "decline" else "cancel", by=WHERE), WHERE)
        else:
            raise BadRequest("that is no answer to a question")
        return None

    async def _visit(self, view: View, form: Form) -> Response | None:
        """Accept a question that wants a page to be opened, and lead the new tab there."""
        pending = self._question_of(view, form)
        url, host = pending.question.url, web_host(pending.question.url)
        if not host:
            raise BadRequest("that is no web address, and it is not opened")
        response = leading_to(view, url, host)
        pending.settle(Answer("accept", by=WHERE), WHERE)
        return response

    def _question_of(self, view: View, form: Form) -> PendingQuestion:
        pending = self._state.questions.find(_one(form, "number") or "?")
        if pending is None or pending.answer.done():
            raise QuestionEnded(view.words("It was answered already, or withdrawn: nothing was done."))
        return pending


def leading_to(view: View, url: str, host: str) -> Response:
    """A page in a tab of its own that goes on to a page of another site. Raises `BadRequest`."""
    try:
        link = tag("p", tag("a", url, href=url, rel="noreferrer noopener"))
    except ValueError:
        raise BadRequest("that is no web address, and it is not opened") from None
    return as_page(
        notice_page(view, "a2c-smcp", "Going to another site", tag("p", host, class_="code"), link, goes_to=url)
    )


def _one(form: Form, name: str) -> str:
    return form.get(name, [""])[0]


def _head(view: View, number: int, sentence: Html, *times: Html | None) -> Html:
    return tag(
        "div",
        tag("h3", tag("span", f"#{number} ", class_="soft"), sentence),
        tag("p", *times, class_="soft small"),
        class_="head",
    )


def _left(view: View, until: float | None) -> Html | None:
    """How long a request still waits: until its call times out."""
    if until is None:
        return None
    return tag("span", view.words("expires in"), " ", tag("time", "–", data_until=round(until * 1000)))


def _sentence(view: View, english: str, **parts: str) -> Html:
    """A sentence with names in bold. Names come from others: they are put in after the sentence is translated."""
    pieces: list[Html | str] = [view.words(english)]
    for key, value in parts.items():
        split: list[Html | str] = []
        for piece in pieces:
            if isinstance(piece, Html):
                split.append(piece)
                continue
            before, found, after = piece.partition(f"{{{key}}}")
            split += [before, tag("strong", value), after] if found else [piece]
        pieces = split
    return joined(*pieces)


def _change(view: View, changed: str) -> Html:
    said = view.words("This tool is no longer what you approved. A yes is a yes to this, too:")
    return tag("div", tag("p", said, class_="note warn"), difference(changed))


def _approval(view: View, pending: PendingApproval, drawn: Html) -> Html:
    words, wanted = view.words, pending.request
    caller = wanted.caller
    sentence = _sentence(
        view, "{agent} wants to run {tool} of {server}", agent=caller.who, tool=wanted.name, server=wanted.server
    )
    notes = [
        tag("p", words("Its MCP server calls this tool"), " ", tag("code", wanted.tool), class_="soft small")
        if wanted.tool != wanted.name
        else None,
        tag("p", words("Office"), " ", tag("strong", caller.office), class_="soft small") if caller.office else None,
        tag("p", words("A rule of the policy asks about it:"), " ", tag("strong", wanted.rule), class_="note")
        if wanted.rule
        else None,
    ]
    said = words("{agent} wants to run {tool}", agent=caller.who, tool=wanted.name)
    return tag(
        "li",
        _head(view, pending.number, sentence, _left(view, wanted.until)),
        *notes,
        drawn,
        _decisions(view, pending),
        class_="card request",
        data_key=f"request-{pending.number}",
        data_announce=said,
    )


def _decisions(view: View, pending: PendingApproval) -> Html:
    words, number = view.words, pending.number

    def button(decision: str, label: str, kind: str = "") -> Html:
        return tag("button", words(label), type="submit", name="decision", value=decision, class_=kind or None)

    lasting = None
    if not pending.request.every_time:
        options = [tag("option", words(name or "for good"), value=seconds) for seconds, name in _LASTS.items()]
        choice = tag("select", *options, name="lasts", id=f"lasts-{number}")
        lasting = tag(
            "details",
            tag("summary", words("Allow it again without asking …")),
            tag("label", words("How long"), choice, class_="field", for_=f"lasts-{number}"),
            tag(
                "div",
                button("always", "Always this tool for this agent"),
                button("always_for_agent", "Every tool for this agent"),
                class_="row",
            ),
            data_key=f"lasting-{number}",
        )
    return button_form(
        view,
        "/requests/decide",
        hidden("number", str(number)),
        tag("div", button("yes", "Allow once", "main"), button("no", "Deny", "danger"), class_="choices"),
        lasting,
    )


def _question(view: View, pending: PendingQuestion) -> Html:
    words, asked = view.words, pending.question
    who = shown_caller(asked.agent, asked.client) if asked.agent else words("you")
    sentence = _sentence(
        view, "{server} asks while {tool} runs for {agent}", server=asked.server, tool=asked.tool, agent=who
    )
    age = tag("span", words("asked"), " ", tag("time", "–", data_since=round(pending.since * 1000)))
    left = _left(view, asked.until)
    problem = (
        tag("p", words("Your last answer was refused:"), " ", asked.problem, class_="note bad")
        if asked.problem
        else None
    )
    return tag(
        "li",
        _head(view, pending.number, sentence, age if left is None else left),
        tag("div", long_text(view, asked.message, whole_request(view, pending.number)), class_="block"),
        problem,
        _page_to_open(view, pending) if asked.mode == "url" else form_of(view, pending),
        class_="card request",
        data_key=f"request-{pending.number}",
        data_announce=words("{server} asks a question", server=asked.server),
    )


def _page_to_open(view: View, pending: PendingQuestion) -> Html:
    """The page is opened in a tab of its own, by the person, after its host was shown."""
    words, url = view.words, pending.question.url
    host = web_host(url)
    decline = button_form(
        view,
        "/requests/answer",
        hidden("number", str(pending.number)),
        tag("button", words("Decline"), type="submit", name="action", value="decline"),
    )
    if not host:
        note = tag(
            "p", words("That is no web address, and it is not opened:"), " ", tag("code", url), class_="note bad"
        )
        return joined(note, tag("div", decline, class_="choices"))
    visit = button_form(
        view,
        "/requests/visit",
        hidden("number", str(pending.number)),
        tag("button", words("Open the page"), type="submit", class_="main"),
        is_live=False,
        target="_blank",
    )
    note = tag("p", words("A page of {host}. Whatever you enter there goes there:", host=host), class_="note")
    return joined(note, tag("p", tag("code", url)), tag("div", visit, decline, class_="choices"))


def _running_call(view: View, call: WatchedCall) -> Html:
    record = call.record
    sentence = _sentence(
        view,
        "{tool} of {server} for {agent}",
        tool=record["tool"],
        server=record["server"],
        agent=record["caller"] or view.words("you"),
    )
    bar = None
    if call.progress is not None:
        is_known = call.total is not None and call.total > 0
        said = f"{call.progress:g} / {call.total:g}" if is_known else f"{call.progress:g}"
        value = f"{call.progress:g}" if is_known else None
        drawn = tag(
            "progress", value=value, max=f"{call.total:g}" if is_known else None, aria_label=view.words("Progress")
        )
        bar = tag(
            "div",
            drawn,
            tag("p", said, f" – {shortened(call.message)}" if call.message else None, class_="soft small number"),
        )
    age = tag("time", "–", data_since=round(call.began * 1000))
    return tag(
        "li", tag("div", tag("h3", sentence), age, class_="head"), bar, class_="card", data_key=f"call-{call.number}"
    )
