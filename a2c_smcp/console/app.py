"""`ConsoleApp`: the pages of a console as an ASGI application, and who may see and use them.

Every request must name this machine (or a host that was configured). What is shown or changed needs the secret of a
session, which the script of our pages sends as a header: a navigation gets a page that holds nothing, only this script.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeAlias

from a2c_smcp.console.html import (
    SAFETY,
    Html,
    Request,
    Response,
    as_page,
    check_page_of_ours,
    encoded,
    is_own_host,
    leads_to,
    read_form,
    send_response,
    static_file,
    tag,
)
from a2c_smcp.console.pages import (
    LANGUAGES,
    SESSION_HEADER,
    THEMES,
    Action,
    ConsoleSession,
    ConsoleSessions,
    Form,
    Page,
    Region,
    Translations,
    View,
    chosen_language,
    document,
    entrance_page,
    first,
    menu,
    notice_page,
    words_in,
)
from a2c_smcp.errors import BadRequest, NotAuthorised, SMCPError
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.server.http_requests import EXTENSION
from a2c_smcp.web import Receive, Scope, Send, until_disconnect

if TYPE_CHECKING:
    from a2c_smcp.server.auth.authentication import Principal

logger = logging.getLogger(__name__)

# Pages that stay current: the regions of a page are sent again over one stream (server-sent events) when they change.
#
# A page names the topics that it shows. `Changes.changed` is called with a topic; every stream of a page that shows it
# makes its regions anew and sends those whose HTML differs from what it sent last. A stream begins with all regions, so
# a browser that was away has everything again as soon as it is back: no log of events is needed. Changes that come
# close together are sent together; the first one is sent at once.

Regions: TypeAlias = Mapping[str, Html]
"""Parts of a page by their ids."""
MakeRegions: TypeAlias = Callable[[], Awaitable[Regions]]

ENDED = b"event: ended\ndata: {}\n\n"
"""The last event of a stream whose session is over."""
_HEARTBEAT = 15.0
"""Seconds between two messages, at most: both ends notice a lost connection."""


class Changes:
    """Counts the changes of each topic, and wakes the streams that wait for one."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._waiting: set[asyncio.Event] = set()

    @property
    def has_readers(self) -> bool:
        """True if a page is open: without one, nothing need be prepared."""
        return bool(self._waiting)

    def changed(self, *topics: str) -> None:
        """Wake the pages that show these topics. Must be called in the event loop; it returns at once."""
        self._counts.update(topics)
        for event in self._waiting:
            event.set()

    def count(self, topics: Iterable[str]) -> int:
        return sum(self._counts[topic] for topic in topics)

    @contextmanager
    def reading(self, topics: Iterable[str]) -> Iterator[Callable[[int], Coroutine[Any, Any, None]]]:
        """Give a function that waits until the topics have changed since they had this count."""
        event = asyncio.Event()

        async def changed_from(count: int) -> None:
            while self.count(topics) == count:
                event.clear()
                await event.wait()

        self._waiting.add(event)
        try:
            yield changed_from
        finally:
            self._waiting.discard(event)


async def live_events(
    changes: Changes,
    topics: frozenset[str],
    make: MakeRegions,
    *,
    pause: float,
    refresh: float | None,
    ended: asyncio.Event,
) -> AsyncIterator[bytes]:
    """Yield the events of one stream, until `ended` is set. `pause` is the least time between two, in seconds.

    With `refresh`, regions are made anew after so many seconds, too: for content whose changes are not announced.
    """
    sent: dict[str, Html] = {}
    ending = asyncio.create_task(ended.wait())
    try:
        with changes.reading(topics) as changed_from:
            while not ended.is_set():
                count = changes.count(topics)
                regions = await make()
                new = {name: html for name, html in regions.items() if sent.get(name) != html}
                sent.update(new)
                yield f"event: regions\ndata: {json.dumps(new)}\n\n".encode() if new else b": nothing new\n\n"
                await asyncio.wait([ending], timeout=pause)
                waiting = asyncio.create_task(changed_from(count))
                await asyncio.wait(
                    [waiting, ending], timeout=refresh or _HEARTBEAT, return_when=asyncio.FIRST_COMPLETED
                )
                await cancel_and_wait(waiting)
    finally:
        await cancel_and_wait(ending)


Entrance: TypeAlias = Callable[[View], Html]
"""Draws the way in for browsers without a session."""


class ConsoleApp:
    """`pages` and `actions` are by their paths. Actions of `open_actions` need no session: they let people in.

    `banner` is shown on every page, and made again with the topic `state`.
    `prefix` is the path that all are below, such as `/console`. `hosts` are further names of this machine, `None` if
    the web server checks host names.
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
        banner: Region | None = None,
        open_actions: Mapping[str, Action] | None = None,
        translations: Translations | None = None,
        prefix: str = "",
        hosts: Collection[str] | None = (),
    ) -> None:
        self.sessions = sessions
        self._brand, self._prefix = brand, prefix
        self._pages = {page.path: page for page in pages}
        self._actions = {"/preferences": self._prefer, "/sign-out": self._sign_out, **actions}
        self._open_actions = {"/open": self._open, **(open_actions or {})}
        self._changes, self._entrance, self._banner = changes, entrance, banner
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
        session = await self.sessions.find(request.header(SESSION_HEADER))
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
        for name, region in {**({"banner": self._banner} if self._banner else {}), **page.regions}.items():
            html = region(view)
            made[name] = await html if isawaitable(html) else html
        return made

    # Without a session

    def _without_session(self, request: Request) -> Response:
        """Return the answer to a navigation, and to a script whose session is over."""
        view = self._view(request, None, request.path)
        status = 401 if SESSION_HEADER in request.headers else 200
        return as_page(entrance_page(view, self._brand, self._entrance(view)), status)

    async def _open(self, view: View, form: Form) -> Response:
        """Open a session by a link, which the script takes from the address: looking at that uses none up."""
        secret = self.sessions.use_link(first(form, "link"))
        return leads_to(view.link("/"), secret=secret) if secret else Response(401, "", "text/plain")

    def let_in(self, view: View, operator: Principal) -> Response:
        """Return the answer to a form of `open_actions` that opens a session."""
        return leads_to(view.link("/"), secret=self.sessions.open(operator))

    # Forms

    async def _post(self, request: Request, session: ConsoleSession | None, receive: Receive) -> Response:
        check_page_of_ours(request)
        action = self._open_actions.get(request.path) or (self._actions.get(request.path) if session else None)
        if action is None:
            return Response(404 if session else 401, "there is no such action", "text/plain")
        view = self._view(request, session, request.path)
        return await action(view, await read_form(receive)) or Response(204)

    def _failure(self, request: Request, session: ConsoleSession | None, error: SMCPError) -> Response:
        status = 400 if isinstance(error, BadRequest) else 403 if isinstance(error, NotAuthorised) else 409
        if request.method == "POST":
            return Response(status, error.about, "text/plain; charset=utf-8")
        view = self._view(request, session, request.path)
        back = tag("p", tag("a", view.words("Back"), href=view.link("/"), class_="button"))
        return as_page(notice_page(view, self._brand, "That did not work", tag("p", error.about), back), status)

    async def _prefer(self, view: View, form: Form) -> Response:
        response = Response(204)
        for name, known in (("language", LANGUAGES), ("theme", THEMES)):
            if (value := first(form, name)) in known:
                response.keep_preference(name, value, path=self._prefix or "/")
        return response

    async def _sign_out(self, view: View, form: Form) -> Response:
        assert view.session
        await self.sessions.sign_out(view.session)
        return leads_to(view.link("/"), secret="")

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

        async def end_with(end: Coroutine[Any, Any, object]) -> None:
            await end
            over.set()

        ends = (until_disconnect(receive), self._ending.wait())
        watching = [asyncio.create_task(end_with(end)) for end in ends]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": encoded([*kind, *SAFETY])})
            async for event in live_events(
                self._changes, page.topics | {"state"}, make, pause=page.pause, refresh=page.refresh, ended=over
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
        language = chosen_language(request.preference("language"), request.header("accept-language"))
        theme = request.preference("theme")
        return View(
            words_in(language, self._translations),
            language,
            theme if theme in THEMES else "auto",
            self._prefix,
            path,
            request.query if query is None else query,
            session,
            session.ends if session else 0.0,
            self.sessions.idle,
        )
