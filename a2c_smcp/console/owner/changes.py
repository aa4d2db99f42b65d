"""The page on which the owner adds, updates and removes MCP servers: one change at a time, shown and asked first."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path

from a2c_smcp.computer.configuration import additions
from a2c_smcp.computer.configuration.additions import Dialog, Said, Wanted
from a2c_smcp.computer.configuration.packages import NotDone
from a2c_smcp.computer.configuration.target import ServersFile
from a2c_smcp.computer.secrets.rules import secrets_of
from a2c_smcp.console.html import Attribute, Html, Response, joined, leads_to, tag
from a2c_smcp.console.owner.state import OwnerState
from a2c_smcp.console.pages import Action, Form, Page, View, button_form, first, hidden
from a2c_smcp.errors import BadRequest, ConfigError, QuestionEnded, SMCPError
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, source

_PATH = "/change"
_KINDS = {"yellow": "note warn", "red": "note bad"}
_NUMBERS = count(1)
"""Of questions, also of earlier changes: an answer is to the one that its page has shown."""
_NETWORK = {"none": "none", "443": "HTTPS only (443)", "443,80": "web pages (443, 80)", "all": "all"}


def change_page(view: View) -> str:
    return view.link(_PATH)


def may_update(state: OwnerState, name: str) -> bool:
    """True if `add` has installed this server."""
    config = state.files.servers.get(name)
    return config is not None and additions.installed_in(source(config)) is not None


class ChangeUnderWay:
    """A change under way, as the `Dialog` of its owner, or how it ended."""

    def __init__(self, state: OwnerState) -> None:
        self._state = state
        self.lines: list[tuple[str, str, Mapping[str, str] | None]] = []
        self.doing, self.since = "", 0.0
        self.question, self.asked, self.is_risk = "", 0, False
        self.answer: asyncio.Future[bool] | None = None
        self.done = self.failed = ""
        self.task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        return bool(self.done or self.failed)

    def show(self, line: str, style: str = "", facts: Mapping[str, str] | None = None) -> None:
        self.lines.append((line, style, facts))
        self._changed()

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        self.doing, self.since = what, time.time()
        self._changed()
        try:
            yield
        finally:
            self.doing = ""
            self._changed()

    async def agrees(self, question: str, *, is_risk: bool = False) -> bool:
        self.question, self.asked, self.is_risk = question, next(_NUMBERS), is_risk
        self.answer = asyncio.get_running_loop().create_future()
        self._changed()
        try:
            return await self.answer
        finally:
            self.answer = None
            self._changed()

    async def written(self, name: str, config: MCPServerConfig | None) -> None:
        await self._state.files.agreed(name, config)

    async def run(self, make: Callable[[ServersFile, Dialog], Awaitable[str]], file: ServersFile) -> None:
        try:
            self.done = await make(file, self)
            self._changed("added")
        except (NotDone, OSError) as error:
            self.failed = str(error)
        except SMCPError as error:
            self.failed = error.about
        finally:
            self.failed = self.failed or ("" if self.done else Said("It was given up."))
            self._changed("servers")

    def _changed(self, *topics: str) -> None:
        self._state.changes.changed("change", *topics)


class ChangePage:
    """The form for a new server, and the change under way."""

    def __init__(self, state: OwnerState) -> None:
        self._state = state
        self._change: ChangeUnderWay | None = None
        regions = {"change": self._shown, "form": self._form}
        self.page = Page(_PATH, "Add or change a server", regions, frozenset(["change", "servers"]))
        self.actions: dict[str, Action] = {
            "/change/add": self._add,
            "/change/update": self._begin_with(additions.update),
            "/change/remove": self._begin_with(additions.remove),
            "/change/answer": self._answer,
            "/change/stop": self._stop,
        }

    # What is shown

    def _shown(self, view: View) -> Html:
        words, change = view.words, self._change
        back = tag("p", tag("a", words("All servers"), href=view.link("/servers")))
        if change is None:
            return back
        lines = [self._line(view, *line) for line in change.lines]
        if change.doing:
            age = tag("time", "–", data_since=round(change.since * 1000))
            lines.append(tag("p", self._text(view, change.doing), " … ", age, class_="note", role="status"))
        if change.is_over:
            text = self._text(view, change.done or change.failed)
            end = tag("p", text, class_="note good" if change.done else "note bad", role="status")
        else:
            end = self._question(view, change)
        return joined(back, tag("div", *lines, end, class_="card", data_key=f"change-{id(change)}"))

    def _line(self, view: View, text: str, style: str, facts: Mapping[str, str] | None) -> Html:
        shown = self._text(view, text)
        if facts is None:
            return tag("p", shown, class_=_KINDS.get(style, "note"))
        known = [(view.words(name), self._text(view, fact)) for name, fact in facts.items() if fact]
        rows = [tag("div", tag("dt", name), tag("dd", fact)) for name, fact in known]
        return joined(tag("h2", shown), tag("dl", *rows, class_="values") if rows else None)

    def _text(self, view: View, text: str) -> str:
        said = view.words(text.english, **text.values) if isinstance(text, Said) else text
        return self._state.computer.mask.logged(said)

    def _question(self, view: View, change: ChangeUnderWay) -> Html:
        words = view.words
        stop = button_form(view, "/change/stop", tag("button", words("Give up"), type="submit", class_="quiet"))
        if change.answer is None:
            return tag("div", stop, class_="choices")
        yes = tag("button", words("Yes"), name="answer", value="yes", class_="danger" if change.is_risk else "main")
        no = tag("button", words("No"), name="answer", value="no")
        question = self._text(view, change.question)
        asked = hidden("question", str(change.asked))
        form = button_form(view, "/change/answer", asked, tag("div", yes, no, class_="choices"))
        asking = tag("p", tag("strong", question))
        return tag("div", asking, form, class_="asking", data_key=question, data_announce=question)

    def _form(self, view: View) -> Html:
        words = view.words
        try:
            self._state.files.file_of("")
        except ConfigError as error:
            return tag("p", error.about, class_="empty")

        def entry(name: str, label: str, about: str = "", *, lines: bool = False) -> Html:
            more: dict[str, Attribute] = {"name": name, "id": name, "autocomplete": "off", "spellcheck": "false"}
            control = tag("textarea", rows=2, **more) if lines else tag("input", type="text", required=True, **more)
            return tag("div", tag("label", label, for_=name), tag("div", about, class_="help"), control, class_="field")

        each = words("One in each line.")
        networks = [tag("option", words(text), value=key) for key, text in _NETWORK.items()]
        start = words("As its README gives it: npx -y PACKAGE …, uvx PACKAGE …, or the URL of a server.")
        form = button_form(
            view,
            "/change/add",
            entry("name", words("Name")),
            entry("start", words("Started by"), start),
            tag(
                "details",
                tag("summary", words("What it may do")),
                tag("label", words("Network"), tag("select", *networks, name="network"), class_="field"),
                entry("read", words("It may read"), each, lines=True),
                entry("write", words("It may change"), each, lines=True),
                entry("env", words("Environment: NAME=VALUE"), each, lines=True),
                data_key="more",
            ),
            tag("p", words("Nothing is installed before you have seen it and said yes."), class_="note"),
            tag("div", tag("button", words("Look it up"), type="submit", class_="main"), class_="choices"),
        )
        key = f"form-{self._state.changes.count(['added'])}"  # what was typed stays until it has been added
        return tag("div", tag("h2", words("Add an MCP server")), form, class_="card", data_key=key)

    # Actions

    async def _add(self, view: View, form: Form) -> Response | None:
        typed = {key: first(form, key).replace("\r", "").strip() for key in form}
        name, start = typed.get("name", ""), typed.get("start", "")
        words: list[str] | None = []
        with suppress(ValueError):  # a quotation mark is not closed
            words = None if start.startswith(("http://", "https://")) else shlex.split(start)
        if not name or words == []:
            raise BadRequest(view.words("A server needs a name, and a line that starts it or a URL."))

        def listed(key: str) -> list[str]:
            return [line.strip() for line in typed.get(key, "").split("\n") if line.strip()]

        wanted = Wanted(
            name=name,
            words=words,
            url=start if words is None else None,
            read=[*map(Path, listed("read"))],
            write=[*map(Path, listed("write"))],
            network=typed.get("network", "none"),
            env=listed("env"),
        )
        self._state.computer.mask.add(secrets_of(wanted.typed()).found, name)
        self._begin(view, name, partial(additions.add, wanted))
        return None

    def _begin_with(self, work: Callable[..., Awaitable[str]]) -> Action:
        async def act(view: View, form: Form) -> Response:
            name = first(form, "server")
            self._begin(view, name, partial(work, name))
            return leads_to(change_page(view))

        return act

    def _begin(self, view: View, name: str, make: Callable[[ServersFile, Dialog], Awaitable[str]]) -> None:
        """Raises `BadRequest` while another change is under way, `ConfigError` if no file can be edited."""
        if self._change and not self._change.is_over:
            raise BadRequest(view.words("Another change is under way."))
        file = self._state.files.file_of(name)
        change = self._change = ChangeUnderWay(self._state)
        change.task = self._state.tasks.spawn(change.run(make, file))
        self._state.changes.changed("change")

    async def _answer(self, view: View, form: Form) -> Response | None:
        answer, asked = (self._change.answer, self._change.asked) if self._change else (None, 0)
        if answer is None or answer.done() or first(form, "question") != str(asked):
            raise QuestionEnded(view.words("It was answered already, or withdrawn: nothing was done."))
        answer.set_result(first(form, "answer") == "yes")
        return None

    async def _stop(self, view: View, form: Form) -> Response | None:
        if self._change and self._change.task:
            self._change.task.cancel()
        return None
