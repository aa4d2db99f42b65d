"""A question of an MCP server as a form in the browser, and the answer in a form that was sent."""

from __future__ import annotations

from typing import Any

from a2c_smcp.computer.pending import PendingQuestion
from a2c_smcp.computer.questions.fields import MISSING, Field, NoForm, fields_of
from a2c_smcp.computer.questions.forms import check_content
from a2c_smcp.console.html import SHOWN, Attribute, Html, joined, tag
from a2c_smcp.console.owner.shown import long_text
from a2c_smcp.console.pages import Form, View, button_form, hidden
from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.questions import Question
from a2c_smcp.protocol.visible import escaped

__all__ = ["content_of", "form_of"]

_TYPES = {"email": "email", "uri": "url", "date": "date"}
"""Inputs of a browser for MCP's formats. A date with a time has a zone, which browsers do not ask for."""


def form_of(view: View, pending: PendingQuestion) -> Html:
    """The fields of a question, and the ways to answer it."""
    words, number = view.words, str(pending.number)
    decline = tag("button", words("Decline"), type="submit", name="action", value="decline", formnovalidate=True)
    later = tag(
        "button",
        words("Leave unanswered"),
        type="submit",
        name="action",
        value="cancel",
        class_="quiet",
        formnovalidate=True,
    )
    try:
        fields = fields_of(pending.question)
    except NoForm as problem:
        note = tag("p", words("This cannot be shown as a form:"), " ", str(problem), class_="note bad")
        return joined(
            note, button_form(view, "/requests/answer", hidden("number", number), tag("div", later, class_="choices"))
        )
    goes_to = tag(
        "p", words("Your answer goes to the MCP server {server}.", server=pending.question.server), class_="note"
    )
    send = tag("button", words("Send answer"), type="submit", name="action", value="accept", class_="main")
    drawn = [_field(view, number, index, each) for index, each in enumerate(fields)]
    return button_form(
        view,
        "/requests/answer",
        hidden("number", number),
        tag("div", *drawn, class_="block") if drawn else None,
        goes_to,
        tag("div", send, decline, later, class_="choices"),
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
        return _select(view, field, default, **attributes)
    if field.kind not in ("string", "integer", "number") or "\n" in default:
        return tag("textarea", "\n", default, rows=4, **attributes)  # a browser leaves out the first line break
    if field.is_secret:
        return tag("input", type="password", autocomplete="off", **attributes)
    limits = _limits(field)
    return tag("input", value=default or None, autocomplete="off", **limits, **attributes)


def _limits(field: Field) -> dict[str, Attribute]:
    """The type of an input, and what a browser checks by itself."""
    if field.kind == "string":
        kind = _TYPES.get(str(field.schema.get("format")), "text")
        return {"type": kind, "minlength": _whole(field, "minLength"), "maxlength": _whole(field, "maxLength")}
    step = "1" if field.kind == "integer" else "any"
    return {"type": "number", "step": step, "min": _number(field, "minimum"), "max": _number(field, "maximum")}


def _select(view: View, field: Field, default: str, **attributes: Attribute) -> Html:
    choices = [(str(place), each.title) for place, each in enumerate(field.choices, 1)]
    known = choices or [("y", view.words("yes")), ("n", view.words("no"))]
    blank = [] if default else [tag("option", view.words("choose"), value="")]
    options = [tag("option", title, value=value, selected=value == default) for value, title in known]
    return tag("select", *blank, *options, **attributes)


def _boxes(id_: str, name: str, field: Field) -> list[Html]:
    chosen = [] if field.default is MISSING else field.default
    return [
        tag(
            "label",
            tag(
                "input", type="checkbox", name=name, value=str(place), id=f"{id_}-{place}", checked=each.value in chosen
            ),
            tag("span", each.title),
            class_="option",
        )
        for place, each in enumerate(field.choices, 1)
    ]


def _number(field: Field, key: str) -> str | None:
    found = field.schema.get(key)
    return dumps(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _whole(field: Field, key: str) -> str | None:
    found = field.schema.get(key)
    return str(found) if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


async def content_of(view: View, question: Question, form: Form) -> dict[str, Any]:
    """The content of an answer. Raises `BadRequest`, which says which field is wrong, and why."""
    try:
        fields = fields_of(question)
    except NoForm as problem:
        raise BadRequest(str(problem)) from None
    found = {field.name: _value(view, field, form.get(f"field-{index}", [])) for index, field in enumerate(fields)}
    content = {name: value for name, value in found.items() if value is not MISSING}
    await check_content(question.schema, content)
    return content


def _value(view: View, field: Field, given: list[str]) -> Any:
    nothing = "0" if field.is_multiple and field.is_required else ""
    typed = ",".join(given) if field.is_multiple else next(iter(given), "")
    typed = typed.replace("\r\n", "\n") or nothing
    if not typed.strip():
        if field.is_required:
            raise BadRequest(f"{field.title}: {view.words('an answer is needed')}")
        return MISSING
    if field.default is not MISSING and typed == escaped(field.typed(field.default), keep=SHOWN):
        return field.default  # with its invisible characters, which the page shows in another way
    try:
        return field.read(typed)
    except ValueError as problem:
        raise BadRequest(f"{field.title}: {problem}") from None
