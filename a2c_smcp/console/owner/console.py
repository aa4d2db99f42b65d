"""`OwnerConsole`: the pages of a computer's owner as an ASGI application, and the links that open it.

Every process of the machine can reach the pages, also those of other users. A browser is let in by a link that only the
owner reads: it is printed on the terminal, works once, and expires after ten minutes. A page without a session can have
a new one printed, at most every few seconds, so that no process fills the terminal with them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlencode, urlsplit

from a2c_smcp.computer.consent.approval import Grant
from a2c_smcp.computer.consent.decision import Outlook
from a2c_smcp.computer.owner import ToolState
from a2c_smcp.computer.types import OwnedTool
from a2c_smcp.console.app import ConsoleApp
from a2c_smcp.console.html import Html, Response, joined, leads_to, tag
from a2c_smcp.console.owner.calls import CallsPage, DesktopPage
from a2c_smcp.console.owner.changes import ChangePage, change_page, may_update
from a2c_smcp.console.owner.layout import WholePage, difference, duration, long_text, moment, pill
from a2c_smcp.console.owner.requests import WHERE, RequestsPage
from a2c_smcp.console.owner.state import OwnerState, SignInUnderWay
from a2c_smcp.console.pages import Action, ConsoleSessions, Form, Page, View, button_form, chinese, first, hidden
from a2c_smcp.errors import NotFound, Unavailable
from a2c_smcp.mcp_host.failures import SignInFailed
from a2c_smcp.mcp_host.status import ServerStatus
from a2c_smcp.protocol.escaping import web_host

# MCP servers: their states, actions of the owner, sign-ins, and logs

_KINDS = {
    "ready": "good",
    "starting": "warn",
    "backoff": "warn",
    "auth_required": "warn",
    "failed": "bad",
    "asleep": "",
    "stopped": "",
    "disabled": "",
}
_STARTED = ("ready", "starting", "backoff", "asleep")
_PAGE_TIME = 30.0
"""Seconds until a provider must have said where the owner signs in."""
_LOUD = {"error": "error", "critical": "error", "alert": "error", "emergency": "error", "warning": "warning"}


class ServersPages:
    """Servers, and the log of one."""

    def __init__(self, state: OwnerState) -> None:
        self._state = state
        topics = frozenset(["servers"])
        self.page = Page("/servers", "MCP servers", {"servers": self._servers}, topics, menu="Servers")
        self.log_page = Page("/log", "Log of a server", {"log": self._log}, frozenset(["servers", "logs"]), refresh=2.0)
        self.actions: dict[str, Action] = {
            "/servers/start": self._action(state.computer.start, waits=False),
            "/servers/stop": self._action(state.computer.stop),
            "/servers/restart": self._action(state.computer.restart, waits=False),
            "/servers/sign-in": self._sign_in,
            "/servers/sign-out": self._action(state.computer.sign_out),
        }

    # What is shown

    def _servers(self, view: View) -> Html:
        state, words = self._state, view.words
        connection = None
        if state.connection:
            connection = tag("p", words("Connection:"), " ", tag("strong", state.connection), class_="soft")
        add = tag("p", tag("a", words("Add an MCP server"), href=change_page(view), class_="button"))
        servers = state.computer.status()
        if not servers:
            return joined(connection, add, tag("p", words("There are no MCP servers."), class_="empty"))
        cards = [self._server(view, server) for server in servers.values()]
        warnings = [tag("p", warning, class_="note warn") for warning in state.computer.warnings]
        return joined(connection, add, tag("ul", *cards, class_="cards"), *warnings)

    def _server(self, view: View, server: ServerStatus) -> Html:
        words = view.words
        calls, p50 = self._state.computer.statistics.of(server.name)
        facts = [
            words("tools: {count}", count=server.tools),
            words("windows: {count}", count=server.windows),
            words("restarts: {count}", count=max(server.starts - 1, 0)),
            words("calls: {count}", count=calls) + (f" ({words('median')} {duration(p50)})" if p50 is not None else ""),
        ]
        if pid := server.diagnostics.get("pid"):
            facts.append(f"pid {pid}")
        kind = "bad" if _KINDS[server.state] == "bad" else "warn"
        reason = tag("div", long_text(view, server.reason), class_=f"note {kind}") if server.reason else None
        return tag(
            "li",
            tag("div", tag("h2", server.name), pill(words(server.state), _KINDS[server.state]), class_="head"),
            tag("p", " · ".join(facts), class_="soft small"),
            reason,
            self._buttons(view, server),
            class_="card",
            data_key=f"server-{server.name}",
        )

    def _buttons(self, view: View, server: ServerStatus) -> Html:
        words, name = view.words, server.name

        def button(action: str, label: str, kind: str = "", *, opens: bool = False, group: str = "servers") -> Html:
            where = {"target": "_blank"} if opens else {}
            inner = tag("button", words(label), type="submit", class_=kind or None, aria_label=f"{words(label)} {name}")
            return button_form(view, f"/{group}/{action}", hidden("server", name), inner, is_live=not opens, **where)

        shown: list[Html] = []
        if server.state == "auth_required":
            shown.append(button("sign-in", "Sign in", "main", opens=True))
        if server.state in _STARTED:
            shown += [button("restart", "Restart"), button("stop", "Stop", "danger")]
        elif server.state != "disabled":
            shown.append(button("start", "Start"))
        if name in self._state.computer.owner.signed_in:
            shown.append(button("sign-out", "Sign out"))
        log = view.link("/log", server=name)
        shown.append(tag("a", words("Log"), href=log, class_="button", aria_label=f"{words('Log')} {name}"))
        if may_update(self._state, name):
            shown.append(button("update", "Update", group="change"))
        if name in self._state.files.servers:
            shown.append(button("remove", "Remove", "quiet", group="change"))
        if under_way := self._state.sign_ins.get(name):
            shown.append(_under_way(view, under_way))
        return tag("div", *shown, class_="choices")

    def _log(self, view: View) -> Html:
        words, name = view.words, view.query.get("server", "")
        status = self._state.computer.status().get(name)
        back = tag("p", tag("a", words("All servers"), href=view.link("/servers")))
        if status is None:
            return joined(back, tag("p", words("There is no such server."), class_="empty"))
        stderr = str(status.diagnostics.get("stderr") or "").rstrip()
        lines = [
            tag(
                "p",
                moment(line.at),
                f" {line.level:<8} ",
                f"{line.logger}: " if line.logger else None,
                line.text,
                class_=_LOUD.get(line.level),
            )
            for line in self._state.computer.owner.logs(name)
        ]
        parts = [
            joined(tag("h2", "stderr"), tag("pre", stderr, class_="log", tabindex="0")) if stderr else None,
            joined(tag("h2", words("Messages")), tag("div", *lines, class_="log", tabindex="0", role="log"))
            if lines
            else None,
        ]
        nothing = tag("p", words("It has written nothing to stderr, and logged nothing."), class_="empty")
        title = tag("div", tag("h2", name), pill(words(status.state), _KINDS[status.state]), class_="head")
        kept = tag("p", words("The end of stderr and the last messages are kept."), class_="soft small")
        return joined(back, title, [*parts, kept] if stderr or lines else nothing)

    # Actions

    def _action(self, work: Callable[[str], Coroutine[Any, Any, object]], *, waits: bool = True) -> Action:
        """Return the action that does this with a server. If it `waits`, an error is shown."""

        async def act(view: View, form: Form) -> None:
            working = work(self._known(form))
            if not waits:
                self._state.tasks.spawn(working)
                return
            await working
            self._state.changes.changed("servers")

        return act

    async def _sign_in(self, view: View, form: Form) -> Response | None:
        """Begin a sign-in, and lead the new tab to the page of the provider, which leads it back to this machine."""
        name, page = self._known(form), asyncio.get_running_loop().create_future()
        under_way = self._state.sign_ins[name] = SignInUnderWay()

        async def open_page(url: str) -> bool:
            under_way.url = url
            self._state.changes.changed("servers")
            if not page.done():
                page.set_result(url)
            return True

        async def sign_in() -> None:
            try:
                await self._state.computer.sign_in(name, open_url=open_page)
            except SignInFailed as failure:
                if not page.done():
                    page.set_exception(failure)
            finally:
                if self._state.sign_ins.get(name) is under_way:
                    del self._state.sign_ins[name]
                self._state.changes.changed("servers")

        self._state.tasks.spawn(sign_in())
        try:
            async with asyncio.timeout(_PAGE_TIME):
                url = await page
        except TimeoutError:
            raise Unavailable(view.words("The provider has not said where to sign in.")) from None
        if not web_host(url):
            raise Unavailable("the page to sign in on has no web address")
        return leads_to(url)

    def _known(self, form: Form) -> str:
        name = first(form, "server")
        if name not in self._state.computer.status():
            raise NotFound(f"there is no server {name!r:.100}")
        return name


def _under_way(view: View, sign_in: SignInUnderWay) -> Html:
    words = view.words
    if not (host := web_host(sign_in.url)):
        return tag("p", words("Asking where to sign in …"), class_="soft small")
    link = tag("a", words("open it again"), href=sign_in.url, target="_blank", rel="noreferrer noopener")
    waiting = words("Waiting until you have signed in at {host}.", host=host)
    return tag("p", waiting, " ", link, class_="soft small")


# Tools: what each may do, its changes, and what is allowed without asking


class ToolsPage:
    """All tools as agents see them, with the owner's permissions."""

    def __init__(self, state: OwnerState) -> None:
        self._state = state
        self.page = Page(
            "/tools",
            "Tools",
            {"permissions": self._permissions, "tools": self._tools},
            frozenset(["tools", "grants"]),
            menu="Tools",
            pause=0.2,
            count=lambda: sum(
                bool(tool.change and tool.change.asks) for tool in state.computer.owner.tool_states().values()
            ),
        )
        self.actions: dict[str, Action] = {"/tools/forget": self._forget}

    def _permissions(self, view: View) -> Html:
        words, approvals = view.words, self._state.computer.approvals
        known = [grant for grant in approvals.grants if not grant.has_expired()]
        if not known:
            return Html("")
        grants = sorted(known, key=lambda grant: grant.order)
        items = [_grant(view, grant, approvals.last_used.get(grant.for_good)) for grant in grants]
        return joined(tag("h2", words("Allowed without asking")), tag("ul", *items, class_="cards"))

    def _tools(self, view: View) -> Html:
        words = view.words
        tools, states = self._state.computer.get_tools(), self._state.computer.owner.tool_states(self._state.office)
        if not tools:
            return tag("p", words("There are no tools."), class_="empty")
        items = [_tool(view, tool, states.get(tool["name"])) for tool in tools]
        search = tag("input", type="search", data_filter="tool-list", autocomplete="off")
        field = tag("label", words("Find a tool"), search, class_="field search")
        count = tag("p", tag("span", len(tools), id="tool-list-count"), " / ", len(tools), class_="soft small")
        note = None
        if self._state.computer.gate:
            note = tag("p", words("Rules for certain agents may say something else."), class_="soft small")
        return joined(
            tag("h2", words("All tools")), note, field, count, tag("ul", *items, class_="cards", id="tool-list")
        )

    async def _forget(self, view: View, form: Form) -> Response | None:
        approvals, key = self._state.computer.approvals, first(form, "grant")
        grant = next((grant for grant in approvals.grants if _key(grant) == key), None)
        if grant is None:
            raise NotFound(view.words("That is no longer allowed anyway."))
        approvals.revoke(grant)
        self._state.changes.changed("grants")
        return None


def _grant(view: View, grant: Grant, used: float | None) -> Html:
    words = view.words
    what = grant.tool or words("every tool")
    what += f" ({grant.server})" if grant.server else ""
    until = words("for good") if grant.until is None else words("until {time}", time=_minute(grant.until))
    last = words("not used yet") if used is None else words("last used {time}", time=_minute(used))
    label = f"{words('Ask again')}: {grant.who}, {what}"
    inner = tag("button", words("Ask again"), type="submit", aria_label=label)
    key = _key(grant)
    return tag(
        "li",
        tag(
            "div",
            tag("h3", grant.who, " → ", what),
            tag("span", f"{until}, {last}", class_="soft small"),
            class_="head",
        ),
        button_form(view, "/tools/forget", hidden("grant", key), inner),
        class_="card",
        data_key=f"grant-{key}",
    )


def _minute(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _key(grant: Grant) -> str:
    return ascii(tuple(grant))  # as `Html` shows it, whatever is in the name of a tool


def _tool(view: View, tool: OwnedTool, state: ToolState | None) -> Html:
    words = view.words
    change = state.change if state else None
    changed = None
    if change:
        asks = words("Its definition has changed. The next call shows this, and asks you.")
        runs = words("Its definition has changed. It runs as before.")
        changed = joined(tag("p", asks if change.asks else runs, class_="note warn"), difference(change.diff))
    description = tool.get("description") or ""
    return tag(
        "li",
        tag("div", tag("h3", tool["name"]), _may(view, state), class_="head"),
        tag("p", tool["mcp_server"], class_="soft small"),
        tag("div", long_text(view, description)) if description else None,
        changed,
        class_="card",
        data_key=f"tool-{tool['name']}",
        data_text=f"{tool['name']} {tool['mcp_server']} {description}",
    )


def _may(view: View, state: ToolState | None) -> Html:
    may = state.outlook if state else Outlook(frozenset(["ask"]))
    if state and state.change and state.change.asks:
        return pill(view.words("asks, changed"), "warn")
    if may.is_hidden:
        return pill(view.words("denied"), "bad")
    if len(may.may) > 1:
        names = ", ".join(view.words(outcome) for outcome in ("allow", "ask", "deny") if outcome in may.may)
        return pill(view.words("by its arguments: {names}", names=names), "warn")
    return pill(view.words("asks"), "warn") if may.may_ask else pill(view.words("runs without asking"), "good")


_BETWEEN_LINKS = 5.0


class OwnerConsole:
    """`url` is its address. `on_link` is called with a link that is requested in the browser.

    It shows the link on the terminal, for the owner alone: a process of another user can request it, but not read it.
    """

    def __init__(
        self, state: OwnerState, url: str, on_link: Callable[[str], None], sessions: ConsoleSessions | None = None
    ) -> None:
        self.state, self.url = state, url.rstrip("/")
        self._sessions = sessions or ConsoleSessions()
        self._on_link, self._last_link = on_link, -_BETWEEN_LINKS
        requests, servers, tools, calls = RequestsPage(state), ServersPages(state), ToolsPage(state), CallsPage(state)
        desktop, whole, change = DesktopPage(state), WholePage(state), ChangePage(state)
        self.app = ConsoleApp(
            state.computer.name,
            [
                *(requests.page, servers.page, tools.page, calls.page, desktop.page),
                *(servers.log_page, whole.page, change.page),
            ],
            {
                **requests.actions,
                **servers.actions,
                **tools.actions,
                **change.actions,
                "/freeze": self._freeze,
                "/thaw": self._thaw,
            },
            banner=self._banner,
            open_actions={"/new-link": self._new_link},
            changes=state.changes,
            sessions=self._sessions,
            entrance=_entrance,
            translations=chinese("owner"),
            hosts={urlsplit(self.url).hostname or ""},
        )

    def link(self) -> str:
        """Return an address that opens the console once, within ten minutes."""
        return f"{self.url}/open?{urlencode({'link': self._sessions.new_link()})}"

    # The freeze

    def _banner(self, view: View) -> Html:
        words, state = view.words, self.state.computer.owner.frozen
        if state is None:
            happens = words("All calls end at once. Nothing is let through until you release it, even after a restart.")
            reason = tag("input", name="reason", maxlength=200, autocomplete="off")
            field = tag("label", words("Reason, for you and the agents"), reason, class_="field")
            button = tag("button", words("Freeze now"), type="submit", class_="stop")
            form = button_form(view, "/freeze", tag("p", happens, class_="small"), field, button, is_live=False)
            return tag("details", tag("summary", words("Stop everything")), tag("div", form), class_="stop")
        told = words("since {time} ({where}): nothing is let through.", time=state.clock, where=words(state.where))
        text = tag("p", tag("strong", words("Frozen")), " ", told, f" “{state.reason}”" if state.reason else None)
        release = button_form(view, "/thaw", tag("button", words("Release"), type="submit"), is_live=False)
        return tag("div", text, release, class_="frozen", role="alert")

    async def _freeze(self, view: View, form: Form) -> None:
        self.state.computer.owner.freeze(first(form, "reason"), WHERE)

    async def _thaw(self, view: View, form: Form) -> None:
        self.state.computer.owner.thaw(WHERE)

    async def _new_link(self, view: View, form: Form) -> Response:
        if time.monotonic() - self._last_link >= _BETWEEN_LINKS:
            self._last_link = time.monotonic()
            self._on_link(self.link())
        return leads_to(view.link("/", asked="1"))


def _entrance(view: View) -> Html:
    words = view.words
    if view.query.get("asked"):
        return tag("p", words("A new link is on the terminal where the computer runs. It works once, for ten minutes."))
    ask = tag(
        "form",
        tag("button", words("Show a new link on the terminal"), type="submit", class_="main"),
        method="post",
        action=view.link("/new-link"),
    )
    text = words("This console is opened with a link that the program prints when it starts. Each link works once.")
    return joined(tag("p", text), ask)
