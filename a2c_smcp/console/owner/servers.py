"""The page of MCP servers: their states, what the owner does with them, sign-ins, and their logs."""

from __future__ import annotations

import asyncio

from a2c_smcp.console.html import Html, joined, tag
from a2c_smcp.console.owner.requests import leading_to
from a2c_smcp.console.owner.shown import duration, long_text, moment, pill
from a2c_smcp.console.owner.state import OwnerState, SignInUnderWay
from a2c_smcp.console.pages import Action, Form, Page, View, button_form, hidden
from a2c_smcp.console.web import Response
from a2c_smcp.errors import NotFound, Unavailable
from a2c_smcp.mcp_host.failures import SignInFailed
from a2c_smcp.mcp_host.status import ServerStatus
from a2c_smcp.protocol.visible import web_host

__all__ = ["ServersPages"]

_KINDS = {
    "ready": "good",
    "starting": "warn",
    "backoff": "warn",
    "auth_required": "warn",
    "failed": "bad",
    "stopped": "",
    "disabled": "",
}
_STARTED = ("ready", "starting", "backoff")
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
            "/servers/start": self._start,
            "/servers/stop": self._stop,
            "/servers/restart": self._restart,
            "/servers/sign-in": self._sign_in,
            "/servers/sign-out": self._sign_out,
        }

    # What is shown

    def _servers(self, view: View) -> Html:
        state, words = self._state, view.words
        connection = (
            tag("p", words("Connection:"), " ", tag("strong", state.connection), class_="soft")
            if state.connection
            else None
        )
        known = state.computer.status()
        if not known:
            return joined(connection, tag("p", words("There are no MCP servers."), class_="empty"))
        cards = [self._server(view, each) for each in known.values()]
        warnings = [tag("p", each, class_="note warn") for each in state.computer.warnings]
        return joined(connection, tag("ul", *cards, class_="cards"), *warnings)

    def _server(self, view: View, server: ServerStatus) -> Html:
        words = view.words
        calls, p50 = self._state.computer.statistics.of(server.name)
        facts = [
            words("{count} tools", count=server.tools),
            words("{count} windows", count=server.windows),
            words("{count} restarts", count=max(server.starts - 1, 0)),
            words("{count} calls", count=calls) + (f" ({words('median')} {duration(p50)})" if p50 is not None else ""),
        ]
        pid = server.diagnostics.get("pid")
        if pid:
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

        def button(action: str, label: str, kind: str = "", *, opens: bool = False) -> Html:
            where = {"target": "_blank"} if opens else {}
            said = f"{words(label)} {name}"
            inner = tag("button", words(label), type="submit", class_=kind or None, aria_label=said)
            return button_form(view, f"/servers/{action}", hidden("server", name), inner, is_live=not opens, **where)

        shown: list[Html] = []
        if server.state == "auth_required":
            shown.append(button("sign-in", "Sign in", "main", opens=True))
        if server.state in _STARTED:
            shown += [button("restart", "Restart"), button("stop", "Stop", "danger")]
        elif server.state != "disabled":
            shown.append(button("start", "Start"))
        if name in self._state.computer.signed_in:
            shown.append(button("sign-out", "Sign out"))
        shown.append(
            tag(
                "a",
                words("Log"),
                href=view.link("/log", server=name),
                class_="button",
                aria_label=f"{words('Log')} {name}",
            )
        )
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
            for line in self._state.computer.logs(name)
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

    # What the owner does

    async def _start(self, view: View, form: Form) -> Response | None:
        name = self._known(form)
        self._state.tasks.spawn(self._state.computer.start(name))
        return None

    async def _stop(self, view: View, form: Form) -> Response | None:
        await self._state.computer.stop(self._known(form))
        return None

    async def _restart(self, view: View, form: Form) -> Response | None:
        self._state.tasks.spawn(self._state.computer.restart(self._known(form)))
        return None

    async def _sign_out(self, view: View, form: Form) -> Response | None:
        await self._state.computer.sign_out(self._known(form))
        self._state.changes.changed("servers")
        return None

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
        if not (host := web_host(url)):
            raise Unavailable("the page to sign in on has no web address")
        return leading_to(view, url, host)

    def _known(self, form: Form) -> str:
        name = form.get("server", [""])[0]
        if name not in self._state.computer.status():
            raise NotFound(f"there is no server {name!r:.100}")
        return name


def _under_way(view: View, sign_in: SignInUnderWay) -> Html:
    words = view.words
    host = web_host(sign_in.url)
    link = (
        tag("a", words("open it again"), href=sign_in.url, target="_blank", rel="noreferrer noopener") if host else None
    )
    said = (
        words("Waiting until you have signed in at {host}.", host=host) if host else words("Asking where to sign in …")
    )
    return tag("p", said, " ", link, class_="soft small")
