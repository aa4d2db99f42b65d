"""`ConsoleApp`: the pages of a console as an ASGI application, and who may see and use them.

Every request must name this machine (or a host that was configured), every change must come from a page of ours with
the token of its session. Without a session there is one page, which says how to get one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from inspect import isawaitable
from typing import TypeAlias

from a2c_smcp.console.html import Html, tag
from a2c_smcp.console.languages import LANGUAGES, THEMES, Translations, chosen_language, words_in
from a2c_smcp.console.live import ENDED, Changes, Regions, live_events
from a2c_smcp.console.pages import Action, Page, View, document, menu, notice_page
from a2c_smcp.console.sessions import ConsoleSession, ConsoleSessions
from a2c_smcp.console.web import (
    SAFETY,
    Request,
    Response,
    as_page,
    check_page_of_ours,
    encoded,
    is_own_host,
    read_form,
    redirect,
    send_response,
    static_file,
)
from a2c_smcp.errors import BadRequest, SMCPError
from a2c_smcp.http.asgi import Receive, Scope, Send, until_disconnect
from a2c_smcp.server.mounts import EXTENSION

__all__ = ["ConsoleApp", "Entrance"]

logger = logging.getLogger(__name__)

_YEAR = 365 * 86400

Entrance: TypeAlias = Callable[[View], Html]
"""What the page shows to those who have no session: how they get one."""


class ConsoleApp:
    """`pages` and `actions` are by their paths. Actions of `open_actions` need no session: they let people in.

    `prefix` is the path that all are below, such as `/console`. `hosts` are further names of this machine, `None` if
    the web server checks host names. `cookie` is the name of the session's cookie: browsers do not tell ports apart.
    """

    def __init__(
        self,
        brand: str,
        pages: Iterable[Page],
        actions: Mapping[str, Action],
        *,
        changes: Changes,
        sessions: ConsoleSessions,
        entrance: Entrance,
        open_actions: Mapping[str, Action] | None = None,
        translations: Translations | None = None,
        prefix: str = "",
        hosts: Collection[str] | None = (),
        cookie: str = "a2c_console",
    ) -> None:
        self.sessions = sessions
        self._brand, self._prefix, self._cookie = brand, prefix, cookie
        self._pages = {page.path: page for page in pages}
        self._actions = {"/preferences": self._prefer, "/sign-out": self._sign_out, **actions}
        self._open_actions = open_actions or {}
        self._changes, self._entrance = changes, entrance
        self._hosts = None if hosts is None else frozenset(hosts)
        self._translations = translations or {}
        self._ending = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._ending.set()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request.of(scope, self._prefix)
        if self._hosts is not None and not is_own_host(request, self._hosts):
            await send_response(Response(421, "this console is not to be reached under this name", "text/plain"), send)
            return
        session = await self.sessions.find(request.cookie(self._cookie))
        if session and (extension := scope.get("extensions", {}).get(EXTENSION)):
            extension["trust"]()
        if session and request.path == "/live" and request.method == "GET":
            await self._stream(request, session, receive, send)
            return
        try:
            response = await self._response(request, session, receive)
        except SMCPError as error:
            response = self._failure(request, session, error)
        except Exception:
            logger.exception("a page of the console failed: %s", request.path)
            response = Response(500, "this page failed; the log says why", "text/plain")
        await send_response(response, send, has_body=request.method != "HEAD")

    async def _response(self, request: Request, session: ConsoleSession | None, receive: Receive) -> Response:
        if request.method == "POST":
            return await self._post(request, session, receive)
        if request.method not in ("GET", "HEAD"):
            return Response(405, "only GET and POST", "text/plain", [("allow", "GET, HEAD, POST")])
        if request.path.startswith("/static/"):
            return static_file(request.path.removeprefix("/static/"))
        if request.path == "/session":
            return Response(204 if session else 401)
        if request.path == "/open" and request.method == "GET":  # a program that only looks at a link uses none up
            return self._open(request)
        if session is None:
            return self._without_session(request)
        page, path = self._page(request.path)
        view = self._view(request, session, path)
        if page is None:
            text = tag("p", view.words("There is no such page here."))
            back = tag("p", tag("a", view.words("Back"), href=view.link("/"), class_="button"))
            return as_page(notice_page(view, self._brand, "Not found", text, back), 404)
        regions = await self._regions(page, view)
        regions.pop("menu")
        return as_page(document(view, self._brand, self._pages, page, regions))

    def _page(self, path: str) -> tuple[Page | None, str]:
        path = path.rstrip("/") or "/"
        return self._pages.get(path), path

    async def _regions(self, page: Page, view: View) -> dict[str, Html]:
        made = {"menu": menu(view, self._pages, page)}
        for name, region in page.regions.items():
            html = region(view)
            made[name] = await html if isawaitable(html) else html
        return made

    # Without a session

    def _open(self, request: Request) -> Response:
        """Open a session by a link. The browser goes on by a page of ours: a redirect from a page of another site, such
        as a chat, would not carry the cookie."""
        cookie = self.sessions.use_link(request.query.get("link", ""))
        if cookie is None:
            return self._without_session(request)
        goes_to = request.query.get("to", "/")
        page, path = self._page(goes_to)
        response = self._passing(request, path if page else "/")
        self._set_session(response, cookie, is_secure=request.is_secure)
        return response

    def _without_session(self, request: Request) -> Response:
        """The page for those who have no session. A browser that comes from another site may have one: it does not send
        the cookie then, but does so when a page of ours leads it on."""
        came_from = request.header("sec-fetch-site")
        if came_from in ("cross-site", "same-site") and "again" not in request.query and request.path != "/open":
            page, path = self._page(request.path)
            return self._passing(request, path if page else "/", again="1")
        view = self._view(request, None, request.path)
        return as_page(notice_page(view, self._brand, "There is no session", self._entrance(view)), 401)

    def _passing(self, request: Request, path: str, **query: str) -> Response:
        view = self._view(request, None, path)
        goes_to = view.link(path, **query)
        link = tag("p", tag("a", view.words("Go on"), href=goes_to))
        return as_page(notice_page(view, self._brand, "Opening the console", link, goes_to=goes_to))

    def let_in(self, view: View, who: str = "") -> Response:
        """The answer to a form of `open_actions` that opens a session."""
        response = redirect(view.link("/"))
        self._set_session(response, self.sessions.open(who), is_secure=view.is_secure)
        return response

    def _set_session(self, response: Response, cookie: str, *, is_secure: bool) -> None:
        response.set_cookie(self._cookie, cookie, path=self._prefix or "/", seconds=None, secure=is_secure)

    # Forms

    async def _post(self, request: Request, session: ConsoleSession | None, receive: Receive) -> Response:
        check_page_of_ours(request)
        is_open = request.path in self._open_actions
        action = self._open_actions.get(request.path) or (self._actions.get(request.path) if session else None)
        if action is None and session is None:
            return self._without_session(request)
        if action is None:
            return Response(404, "there is no such action", "text/plain")
        form = await read_form(receive)
        view = self._view(request, session, request.path)
        if not is_open and not (session and self.sessions.is_token(session, form.get("token", [""])[0])):
            raise BadRequest(view.words("The form is not of this session: load the page again."))
        response = await action(view, form)
        if response is not None:
            return response
        return Response(204) if _is_by_script(request) else redirect(self._back(form))

    def _back(self, form: Mapping[str, list[str]]) -> str:
        back = form.get("back", [""])[0]
        path = back.partition("?")[0].removeprefix(self._prefix)
        is_address = back.startswith(f"{self._prefix}/") and back.isascii() and back.isprintable()
        return back if is_address and self._page(path)[0] else f"{self._prefix}/"

    def _failure(self, request: Request, session: ConsoleSession | None, error: SMCPError) -> Response:
        status = 400 if isinstance(error, BadRequest) else 409
        if _is_by_script(request):
            return Response(status, error.about, "text/plain; charset=utf-8")
        view = self._view(request, session, request.path)
        back = tag("p", tag("a", view.words("Back"), href=view.link("/"), class_="button"))
        return as_page(notice_page(view, self._brand, "That did not work", tag("p", error.about), back), status)

    async def _prefer(self, view: View, form: Mapping[str, list[str]]) -> Response:
        response = redirect(self._back(form))
        for name, known in (("language", LANGUAGES), ("theme", THEMES)):
            value = form.get(name, [""])[0]
            if value in known:
                path = self._prefix or "/"
                response.set_cookie(f"a2c_{name}", value, path=path, seconds=_YEAR, secure=False)
        return response

    async def _sign_out(self, view: View, form: Mapping[str, list[str]]) -> Response:
        assert view.session
        await self.sessions.sign_out(view.session)
        response = redirect(view.link("/"))
        response.set_cookie(self._cookie, "", path=self._prefix or "/", seconds=0, secure=False)
        return response

    # Live pages

    async def _stream(self, request: Request, session: ConsoleSession, receive: Receive, send: Send) -> None:
        query = dict(request.query)
        page, path = self._page(query.pop("page", "/"))
        if page is None or not page.is_live:
            await send_response(Response(404, "there is no such page", "text/plain"), send)
            return
        view = self._view(request, session, path, query)

        async def make() -> Regions:
            return await self._regions(page, view)

        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self.sessions.seconds_left(session), self.sessions.end, session)
        session.on_end.append(over.set)
        self.sessions.stream_began(session)
        kind = [("content-type", "text/event-stream"), ("cache-control", "no-store"), ("x-accel-buffering", "no")]
        watching = [asyncio.create_task(_gone(receive, over)), asyncio.create_task(_end_with_app(self._ending, over))]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": encoded([*kind, *SAFETY])})
            async for event in live_events(
                self._changes, page.topics, make, pause=page.pause, refresh=page.refresh, ended=over
            ):
                await send({"type": "http.response.body", "body": event, "more_body": True})
            last = ENDED if self.sessions.is_over(session) else b""
            await send({"type": "http.response.body", "body": last})
        finally:
            timer.cancel()
            for task in watching:
                task.cancel()
            session.on_end.remove(over.set)
            self.sessions.stream_ended(session)

    # Inside

    def _view(
        self, request: Request, session: ConsoleSession | None, path: str, query: Mapping[str, str] | None = None
    ) -> View:
        language = chosen_language(request.cookie("a2c_language"), request.header("accept-language"))
        theme = request.cookie("a2c_theme")
        shown = {name: value for name, value in (query or request.query).items() if name not in ("again", "link")}
        return View(
            words_in(language, self._translations),
            language,
            theme if theme in THEMES else "auto",
            self._prefix,
            path,
            shown,
            session,
            session.ends if session else 0.0,
            self.sessions.idle,
            request.is_secure,
        )


async def _gone(receive: Receive, over: asyncio.Event) -> None:
    """Set `over` when the browser has closed the stream."""
    await until_disconnect(receive)
    over.set()


async def _end_with_app(ending: asyncio.Event, over: asyncio.Event) -> None:
    await ending.wait()
    over.set()


def _is_by_script(request: Request) -> bool:
    return request.header("x-a2c-console") == "1"
