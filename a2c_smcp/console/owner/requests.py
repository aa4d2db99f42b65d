"""The first page: requests that wait for the owner's answer, and calls that run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args
from weakref import WeakKeyDictionary

from a2c_smcp.computer.consent.approval import Decision, NothingToAnswer, PendingApproval, PendingQuestion
from a2c_smcp.computer.consent.risk import CLAIMED, EFFECTS, UNUSUAL, Risk
from a2c_smcp.computer.questions.forms import MISSING, Field, NoForm, check_content, content_of, fields_of
from a2c_smcp.console.html import SHOWN, Attribute, Html, Response, joined, leads_to, tag
from a2c_smcp.console.owner.layout import arguments, difference, long_text, pill, shortened, whole_request
from a2c_smcp.console.owner.state import OwnerState, WatchedCall
from a2c_smcp.console.pages import Action, Form, Page, View, button_form, first, hidden
from a2c_smcp.errors import BadRequest, QuestionEnded
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.escaping import escaped, shown_caller, web_host
from a2c_smcp.protocol.questions import Answer, Question

# A question of an MCP server as a form in the browser, and the answer in a form that was sent.

_TYPES = {"email": "email", "uri": "url", "date": "date"}
"""Inputs of a browser for MCP's formats. A date with a time has a zone, which browsers do not ask for."""


def form_of(view: View, pending: PendingQuestion) -> Html:
    """Draw the fields of a question, and the ways to answer it."""
    words, number = view.words, str(pending.number)

    def button(action: str, label: str, **attributes: Attribute) -> Html:
        return tag("button", words(label), type="submit", name="action", value=action, **attributes)

    later = button("cancel", "Leave unanswered", class_="quiet", formnovalidate=True)
    try:
        fields = fields_of(pending.question)
    except NoForm as problem:
        note = tag("p", words("This cannot be shown as a form:"), " ", str(problem), class_="note bad")
        return joined(
            note, button_form(view, "/requests/answer", hidden("number", number), tag("div", later, class_="choices"))
        )
    goes_to = words("Your answer goes to the MCP server {server}.", server=pending.question.server)
    send = button("accept", "Send answer", class_="main")
    drawn = [_field(view, number, index, field) for index, field in enumerate(fields)]
    return button_form(
        view,
        "/requests/answer",
        hidden("number", number),
        tag("div", *drawn, class_="block") if drawn else None,
        tag("p", goes_to, class_="note"),
        tag("div", send, button("decline", "Decline", formnovalidate=True), later, class_="choices"),
    )


def _field(view: View, number: str, index: int, field: Field) -> Html:
    name, id_ = f"field-{index}", f"field-{number}-{index}"
    optional = None if field.is_required else tag("span", f" ({view.words('optional')})", class_="soft")
    help_id = f"{id_}-help"
    described = [tag("div", long_text(view, field.description))] if field.description else []
    is_plain = bool(field.choices) or field.kind == "boolean" or field.expects == "text"  # the control says it itself
    expects = [] if is_plain else [tag("div", view.words(field.hint.text, **field.hint.values))]
    help_text = tag("div", *described, *expects, id=help_id, class_="help")
    if field.is_multiple:
        return tag("fieldset", tag("legend", field.title, optional), help_text, *_boxes(id_, name, field))
    label = tag("label", field.title, optional, for_=id_)
    control = _control(view, field, id=id_, name=name, required=field.is_required, aria_describedby=help_id)
    return tag("div", label, help_text, control, class_="field")


def _control(view: View, field: Field, **attributes: Attribute) -> Html:
    default = "" if field.default is MISSING else field.typed(field.default)
    if field.choices or field.kind == "boolean":
        choices = [(str(place), choice.title) for place, choice in enumerate(field.choices, 1)]
        known = choices or [("y", view.words("yes")), ("n", view.words("no"))]
        blank = None if default else tag("option", view.words("choose"), value="")
        options = [tag("option", title, value=value, selected=value == default) for value, title in known]
        return tag("select", blank, *options, **attributes)
    if field.kind not in ("string", "integer", "number") or "\n" in default:
        return tag("textarea", "\n", default, rows=4, **attributes)  # a browser leaves out the first line break
    if field.is_secret:
        return tag("input", type="password", autocomplete="off", **attributes)
    return tag("input", value=default or None, autocomplete="off", **_limits(field), **attributes)


def _limits(field: Field) -> dict[str, Attribute]:
    """The type of an input, and what a browser checks by itself."""
    least, most = (limit if limit is None else dumps(limit) for limit in field.limits[:2])
    if field.kind == "string":
        kind = _TYPES.get(str(field.schema.get("format")), "text")
        return {"type": kind, "minlength": _length(least), "maxlength": _length(most)}
    return {"type": "number", "step": "1" if field.kind == "integer" else "any", "min": least, "max": most}


def _boxes(id_: str, name: str, field: Field) -> list[Html]:
    chosen = [] if field.default is MISSING else field.default
    return [
        tag(
            "label",
            tag(
                "input",
                type="checkbox",
                name=name,
                value=str(place),
                id=f"{id_}-{place}",
                checked=choice.value in chosen,
            ),
            tag("span", choice.title),
            class_="option",
        )
        for place, choice in enumerate(field.choices, 1)
    ]


def _length(limit: str | None) -> str | None:
    """The limit, if it is one that a browser knows: a whole number that is not negative."""
    return limit if limit and limit.isdecimal() else None


async def read_answer(view: View, question: Question, form: Form) -> dict[str, Any]:
    """Return the content of an answer. Raises `BadRequest`, which says which field is wrong, and why."""
    try:
        fields = fields_of(question)
    except NoForm as problem:
        raise BadRequest(str(problem)) from None
    values = {field.name: _value(view, field, form.get(f"field-{index}", [])) for index, field in enumerate(fields)}
    content = content_of(values)
    await check_content(question.schema, content)
    return content


def _value(view: View, field: Field, sent: list[str]) -> Any:
    typed = ",".join(sent) if field.is_multiple else next(iter(sent), "")
    typed = typed.replace("\r\n", "\n") or ("0" if field.is_multiple and field.is_required else "")
    if typed.strip() and field.default is not MISSING and typed == escaped(field.typed(field.default), keep=SHOWN):
        return field.default  # with its invisible characters, which the page shows in another way
    try:
        return field.answer(typed)
    except ValueError as problem:
        raise BadRequest(f"{field.title}: {view.words(str(problem))}") from None


WHERE = "console"
_DECISIONS: Mapping[str, Decision] = {decision: decision for decision in get_args(Decision)}
_LASTS = {"3600": "for an hour", "28800": "for 8 hours", "86400": "for a day", "good": "for good"}
"""The durations of a permission, in seconds, and their names. The first one is chosen unless the owner says so."""
_COLOURS = {"destroys": "bad", "changes": "warn", "internet": "warn"}


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

    def _requests(self, view: View) -> Html:
        approvals, questions = self._state.approvals, self._state.questions
        items = [(pending.number, _approval(view, pending, self._wanted(view, pending))) for pending in approvals]
        items += [(pending.number, _question(view, pending)) for pending in questions]
        title = tag("h2", view.words("Waiting for you"))
        if not items:
            return joined(title, tag("p", view.words("Nothing waits for your answer."), class_="empty"))
        return joined(title, tag("ul", *(item for _, item in sorted(items)), class_="cards"))

    def _wanted(self, view: View, pending: PendingApproval) -> Html:
        """The effect of a call, drawn once: its arguments, and the change of its tool."""
        drawn = self._drawn.setdefault(pending, {})
        if view.language not in drawn:
            wanted = pending.request
            shown = arguments(view, wanted.arguments, whole_request(view, pending.number))
            changed = None
            if wanted.changed:
                note = view.words("This tool is no longer what you approved. A yes is a yes to this, too:")
                changed = tag("div", tag("p", note, class_="note warn"), difference(wanted.changed))
            risk = _risk(view, wanted.risk, whole_request(view, pending.number))
            drawn[view.language] = joined(risk, changed, shown)
        return drawn[view.language]

    def _running(self, view: View) -> Html:
        if not (running := [call for call in self._state.running if call.state != "waiting"]):
            return Html("")
        items = [_running_call(view, call) for call in running]
        return joined(tag("h2", view.words("Running")), tag("ul", *items, class_="cards"))

    # Answers

    async def _decide(self, view: View, form: Form) -> Response | None:
        decision, lasts = _DECISIONS.get(first(form, "decision")), first(form, "lasts")
        is_lasting = decision not in ("yes", "no")
        if decision is None or (is_lasting and lasts not in _LASTS):
            raise BadRequest("that is no answer to a request")
        try:
            pending = self._state.approvals.find(first(form, "number"))
        except NothingToAnswer:
            raise QuestionEnded(view.words("It was answered already, or withdrawn: nothing was done.")) from None
        seconds = float(lasts) if is_lasting and lasts != "good" else None
        self._state.approvals.answer(pending, decision, seconds, WHERE)
        return None

    async def _answer(self, view: View, form: Form) -> Response | None:
        pending = self._question_of(view, form)
        action = first(form, "action")
        if action == "accept":
            content = await read_answer(view, pending.question, form)
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
        if not web_host(pending.question.url):
            raise BadRequest("that is no web address, and it is not opened")
        response = leads_to(pending.question.url)
        pending.settle(Answer("accept", by=WHERE), WHERE)
        return response

    def _question_of(self, view: View, form: Form) -> PendingQuestion:
        pending = self._state.questions.find(first(form, "number") or "?")
        if pending is None or pending.answer.done():
            raise QuestionEnded(view.words("It was answered already, or withdrawn: nothing was done."))
        return pending


def _head(view: View, number: int, sentence: Html, *times: Html | None) -> Html:
    return tag(
        "div",
        tag("h3", tag("span", f"#{number} ", class_="soft"), sentence),
        tag("p", *times, class_="soft small"),
        class_="head",
    )


def _left(view: View, until: float | None) -> Html | None:
    """The time that is left for a request: until its call times out."""
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


def _risk(view: View, risk: Risk, whole: str) -> Html:
    """Effects and description of the tool, and what is unusual. Each is in words, not only in a sign and a colour."""
    words, pills = view.words, []
    for kind, is_claimed in risk.effects:
        sign, text = EFFECTS[kind]
        claimed = f" ({words(CLAIMED)})" if is_claimed else ""
        colour = "good" if kind == "reads" and not is_claimed else _COLOURS.get(kind, "")
        pills += [pill(joined(tag("span", sign, aria_hidden="true"), " ", words(text), claimed), colour), " "]
    unusual = [
        tag("li", words(UNUSUAL[kind], argument=shortened(argument), value=shortened(value)))
        for kind, argument, value in risk.unusual
    ]
    return joined(
        tag("p", *pills, class_="effects") if pills else None,
        tag("div", long_text(view, risk.description, whole), class_="soft") if risk.description else None,
        tag("div", tag("strong", words("Unusual")), tag("ul", *unusual), class_="note warn") if unusual else None,
    )


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
    announcement = words("{agent} wants to run {tool}", agent=caller.who, tool=wanted.name)
    return tag(
        "li",
        _head(view, pending.number, sentence, _left(view, wanted.until)),
        *notes,
        drawn,
        _decisions(view, pending),
        class_="card request",
        data_key=f"request-{pending.number}",
        data_announce=announcement,
    )


def _decisions(view: View, pending: PendingApproval) -> Html:
    words, number = view.words, pending.number

    def button(decision: str, label: str, kind: str = "") -> Html:
        return tag("button", words(label), type="submit", name="decision", value=decision, class_=kind or None)

    def wide(decision: str, label: str, about: str, allow: str) -> Html:
        effect = tag("p", words(about, server=pending.request.server))
        return tag(
            "details", tag("summary", words(label)), effect, button(decision, allow, "danger"), data_key=decision
        )

    lasting = None
    if not pending.request.every_time:
        options = [tag("option", words(name), value=seconds) for seconds, name in _LASTS.items()]
        choice = tag("select", *options, name="lasts", id=f"lasts-{number}")
        lasting = tag(
            "details",
            tag("summary", words("Allow it again without asking …")),
            tag("label", words("How long"), choice, class_="field", for_=f"lasts-{number}"),
            button("always", "This tool for this agent"),
            wide(
                "always_for_server",
                "Every tool of this server for this agent …",
                "It may then use all tools of {server}, also later ones, and you are not asked.",
                "Allow every tool of this server",
            ),
            wide(
                "always_for_agent",
                "Every tool for this agent …",
                "It may then use all tools of this computer, also later ones, and you are not asked.",
                "Allow every tool for this agent",
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
        view,
        "{server} asks while {tool} runs for {agent}" if asked.tool else "{server} asks in one of several calls",
        server=asked.server,
        tool=asked.tool,
        agent=who,
    )
    age = tag("span", words("asked"), " ", tag("time", "–", data_since=round(pending.since * 1000)))
    left = _left(view, asked.until)
    problem = None
    if asked.problem:
        problem = tag("p", words("Your last answer was refused:"), " ", asked.problem, class_="note bad")
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
        text = words("That is no web address, and it is not opened:")
        return joined(tag("p", text, " ", tag("code", url), class_="note bad"), tag("div", decline, class_="choices"))
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
        value, most = f"{call.progress:g}", f"{call.total:g}" if call.total is not None and call.total > 0 else None
        drawn = tag("progress", value=value if most else None, max=most, aria_label=view.words("Progress"))
        message = f" – {shortened(call.message)}" if call.message else None
        bar = tag("div", drawn, tag("p", f"{value} / {most}" if most else value, message, class_="soft small number"))
    age = tag("time", "–", data_since=round(call.since * 1000))
    if call.state != "running":
        age = pill(view.words(call.state), "warn")
    return tag(
        "li", tag("div", tag("h3", sentence), age, class_="head"), bar, class_="card", data_key=f"call-{call.number}"
    )
