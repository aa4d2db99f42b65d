"""The parts of a console: pages with live regions, actions, sessions, and the frame around every page."""

from __future__ import annotations

import hashlib
import secrets
import time
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlencode

from a2c_smcp.console.html import Child, Html, Response, joined, tag, version_of

if TYPE_CHECKING:
    from a2c_smcp.server.auth.authentication import Principal

ACCOUNT_PATH = "/account"
"""The page of an operator's own account."""

# The languages of the pages. `chinese.toml` has the Chinese texts, by the English ones.

LANGUAGES = {"en": "English", "zh": "中文"}
THEMES = ("auto", "light", "dark")
Translations: TypeAlias = Mapping[str, str]
Words: TypeAlias = Callable[..., str]
"""A text in the language of the reader: `words("tools: {count}", count=3)`."""


@cache
def chinese(console: str) -> Translations:
    """Return the Chinese texts of the `owner`, of the `operator`, or those `shared` by all consoles."""
    catalogue = resources.files("a2c_smcp.console") / "chinese.toml"
    texts: Translations = tomllib.loads(catalogue.read_text("utf-8"))[console]
    return texts


def chosen_language(kept: str, accepts: str) -> str:
    """Return the language that was chosen on the page, else the best known one that the browser asks for."""
    if kept in LANGUAGES:
        return kept
    ranges = [part.split(";") for part in accepts.lower().split(",")]
    ranked = sorted(ranges, key=lambda part: -_quality(part[1:]))
    known = (name[0].strip().partition("-")[0] for name in ranked)
    return next((name for name in known if name in LANGUAGES), "en")


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def words_in(language: str, translations: Translations) -> Words:
    """Return the function that translates. A text without a translation is English."""
    table: Translations = {} if language == "en" else {**chinese("shared"), **translations}

    def words(english: str, /, **values: object) -> str:
        translated = table.get(english, english)
        return translated.format(**values) if values else translated

    return words


# Sessions of browsers: opened by a link that works once, or by a form; ended by time, or by the person.
#
# A session ends some time after its last page was closed, and at the latest after `longest`. A page that is open
# holds a stream, which counts as use: an owner who waits for requests need not touch it. Only digests of secrets and
# links are kept.
#
# The secret of a session is no cookie: cookies know no port, so a browser would send it to every program of this
# machine that it is led to. The script of our pages keeps it in the storage of their origin, port included, and sends
# it as a header with each request. So no page of others, and no navigation, acts or reads with it.

SESSION_HEADER = "x-a2c-session"

_LINK_LASTS = 600.0
_MOST_LINKS, _MOST_SESSIONS = 8, 64


@dataclass(eq=False, slots=True)
class ConsoleSession:
    """A browser that was let in, on a Server for an `operator`. `ends` is in seconds since the epoch.

    `id` names the session, and opens nothing.
    """

    ends: float
    operator: Principal | None = None
    last_used: float = 0.0
    streams: int = 0
    on_end: list[Callable[[], None]] = field(default_factory=list)
    id: str = ""

    @property
    def role(self) -> str:
        return "".join(self.operator.roles or ()) if self.operator else ""


class ConsoleSessions:
    """`idle` and `longest` are seconds; `clock` gives seconds since the epoch."""

    def __init__(
        self, *, idle: float = 30 * 60, longest: float = 12 * 3600, clock: Callable[[], float] = time.time
    ) -> None:
        self.idle, self.longest = idle, longest
        self._clock = clock
        self._sessions: dict[str, ConsoleSession] = {}
        self._links: dict[str, float] = {}

    def new_link(self) -> str:
        """Return the secret of a link that opens one session, within ten minutes. Only the newest few can be used."""
        secret = secrets.token_urlsafe(32)
        self._links[_digest(secret)] = self._clock() + _LINK_LASTS
        while len(self._links) > _MOST_LINKS:
            del self._links[next(iter(self._links))]
        return secret

    def use_link(self, secret: str) -> str | None:
        """Return the secret of a new session; `None` if the link is unknown, expired, or was used."""
        until = self._links.pop(_digest(secret), 0.0)
        return self.open() if until > self._clock() else None

    def open(self, operator: Principal | None = None) -> str:
        """Return the secret of a new session."""
        secret, now = secrets.token_urlsafe(32), self._clock()
        self.add(secret, ConsoleSession(now + self.longest, operator, now))
        return secret

    def add(self, secret: str, session: ConsoleSession) -> None:
        """Begin a session with this secret. The oldest one ends if there are too many."""
        self._sessions[_digest(secret)] = session
        while len(self._sessions) > _MOST_SESSIONS:
            self.end(next(iter(self._sessions.values())))

    def known(self, secret: str) -> ConsoleSession | None:
        """Return the session with this secret, also one that is over."""
        return self._sessions.get(_digest(secret)) if secret else None

    async def find(self, secret: str) -> ConsoleSession | None:
        """Return the session with this secret, and count this as use."""
        session = self.known(secret)
        if session is None or self.is_over(session):
            return None
        session.last_used = self._clock()
        return session

    def is_over(self, session: ConsoleSession) -> bool:
        """End a session whose time is over. True if it has ended."""
        if self._clock() >= session.ends or self.is_idle(session):
            self.end(session)
        return session not in self._sessions.values()

    def is_idle(self, session: ConsoleSession) -> bool:
        """True if it was not used for too long."""
        return not session.streams and self._clock() >= session.last_used + self.idle

    @property
    def has_page(self) -> bool:
        """True while a browser has a page open."""
        return any(session.streams for session in self._sessions.values())

    def seconds_left(self, session: ConsoleSession) -> float:
        return max(session.ends - self._clock(), 0.0)

    def stream_began(self, session: ConsoleSession) -> None:
        session.streams += 1

    def stream_ended(self, session: ConsoleSession) -> None:
        session.streams -= 1
        session.last_used = self._clock()

    def end(self, session: ConsoleSession) -> None:
        """End a session, and its streams."""
        self._sessions = {key: known for key, known in self._sessions.items() if known is not session}
        for callback in [*session.on_end]:
            callback()

    async def sign_out(self, session: ConsoleSession) -> None:
        """End a session for its person."""
        self.end(session)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


Form: TypeAlias = Mapping[str, list[str]]
"""The fields of a form that was sent, by name."""


def first(form: Form, name: str) -> str:
    """Return the first value of a field; empty if the form has no such field."""
    return form.get(name, [""])[0]


@dataclass(frozen=True)
class View:
    """The reader of a page, and its address: language, appearance, session, path and query."""

    words: Words
    language: str
    theme: str
    prefix: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    session: ConsoleSession | None = None
    ends: float = 0.0
    idle: float = 0.0

    @property
    def may_change(self) -> bool:
        """True unless the reader is a viewer, whose forms would be refused."""
        return self.session is None or self.session.role != "viewer"

    def link(self, path: str, **query: str) -> str:
        """Return the address of a page or an action of this console."""
        return f"{self.prefix}{path}{'?' + urlencode(query) if query else ''}"


Region: TypeAlias = Callable[[View], Html | Awaitable[Html]]
"""Makes a part of a page, again when something has changed."""


@dataclass(frozen=True)
class Page:
    """A page at a path. `title` and `menu` are English texts; a page without `menu` is in no menu.

    `regions` are its parts, in their order, by ids that a document may have. `topics` are what they show. `pause` is
    the least time between two updates, in seconds; with `refresh`, it is made again after so many seconds. `count` is a
    number beside its title in the menu, such as that of pending requests; 0 is not shown. A page that is not `is_live`
    is made once, and stays as it is. `named_by` is the field of its address that names what it is about.
    """

    path: str
    title: str
    regions: Mapping[str, Region]
    topics: frozenset[str]
    menu: str = ""
    pause: float = 0.05
    refresh: float | None = None
    count: Callable[[], int] | None = None
    is_live: bool = True
    named_by: str = ""


Action: TypeAlias = Callable[[View, Form], Awaitable[Response | None]]
"""Does the work of a form. Without a response the browser goes back to its page. Raises `SMCPError`."""


def hidden(name: str, value: str) -> Html:
    return tag("input", type="hidden", name=name, value=value)


def button_form(view: View, action: str, *children: Child, is_live: bool = True, **attributes: str) -> Html:
    """Return a form that changes something. With `is_live`, the page updates itself; otherwise it is loaded again."""
    return tag("form", *children, method="post", action=view.link(action), data_live=is_live, **attributes)


def row_table(view: View, columns: Sequence[str], rows: Sequence[Sequence[Child]], empty: str = "") -> Html:
    """Return a table of rows, each a key and its cells. `columns` and `empty`, for no rows, are English texts.

    A viewer gets no column of actions.
    """
    words = view.words
    if columns[-1] == "Action" and not view.may_change:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    if not rows:
        return tag("p", words("Nothing matches." if view.query.get("search") else empty), class_="empty")
    head = tag("thead", tag("tr", *(tag("th", words(column), scope="col") for column in columns)))
    body = [
        tag(
            "tr",
            *(tag("td", cell, data_label=words(column)) for column, cell in zip(columns, cells, strict=True)),
            data_key=str(key),
        )
        for key, *cells in rows
    ]
    return tag("div", tag("table", head, tag("tbody", *body), class_="table"), class_="scroll", tabindex="0")


def document(view: View, brand: str, pages: Mapping[str, Page], page: Page, regions: Mapping[str, Html]) -> Html:
    """Return a whole page with its menu, its settings and its regions."""
    words = view.words
    drawn = {name: tag("div", html, id=name, data_region=True) for name, html in regions.items()}
    banner = drawn.pop("banner", None)
    name = view.query.get(page.named_by)
    title = f"{words(page.title)}: {name}" if name else words(page.title)
    main = tag("main", tag("h1", title), *drawn.values(), id="content", tabindex="-1")
    parts = [_header(view, brand, pages, page, banner), main, _footer(view)]
    return _frame(view, title, brand, parts, is_live=page.is_live)


def notice_page(view: View, brand: str, title: str, *children: Child, has_script: bool = True) -> Html:
    """Return a page with a short text."""
    box = tag("main", tag("h1", view.words(title)), *children, id="content", class_="notice")
    return _frame(view, view.words(title), brand, [_plain_header(brand), box], has_script=has_script)


def entrance_page(view: View, brand: str, way_in: Html) -> Html:
    """Return what every navigation gets: its script replaces it by the page, or shows the way in if it has no session.

    A navigation cannot send the secret of the session.
    """
    title = view.words("Sign in")
    box = tag("main", tag("h1", title), way_in, id="content", class_="notice", hidden=True)
    needs = tag("noscript", tag("p", view.words("This console needs JavaScript."), class_="note bad"))
    return _frame(view, title, brand, [_plain_header(brand), needs, box], is_entrance=True)


def _plain_header(brand: str) -> Html:
    return tag("header", tag("span", brand, class_="brand"))


def _frame(
    view: View,
    title: str,
    brand: str,
    body: list[Html],
    *,
    is_live: bool = False,
    is_entrance: bool = False,
    has_script: bool = True,
) -> Html:
    words = view.words
    live = view.link("/live", page=view.path, **view.query) if is_live else None
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} – {brand}"),
        tag("link", rel="stylesheet", href=_asset(view, "console.css")),
        tag("link", rel="icon", href=_asset(view, "icon.svg")),
        tag("script", type="module", src=_asset(view, "console.js")) if has_script else None,
    )
    skip = tag("a", words("Skip to the content"), href="#content", class_="skip")
    announcements = tag("p", id="announcements", class_="unseen", role="status", aria_live="polite")
    close = tag("button", words("Close"), type="button", id="failure-close", class_="quiet")
    failed = tag("div", tag("p", id="failure-text", role="alert"), close, id="failure", hidden=True)
    content = tag(
        "body",
        skip,
        *body,
        announcements,
        failed,
        data_prefix=view.prefix,
        data_live_url=live,
        data_entrance=is_entrance,
        data_unreachable=words("The console cannot be reached."),
    )
    return tag("html", head, content, lang=view.language, data_theme=view.theme)


def _asset(view: View, name: str) -> str:
    return view.link(f"/static/{name}", v=version_of(name))


def _header(view: View, brand: str, pages: Mapping[str, Page], page: Page, banner: Html | None) -> Html:
    return tag(
        "header",
        tag("a", brand, href=view.link("/"), class_="brand"),
        tag("div", menu(view, pages, page), id="menu", data_region=True),
        _connection(view) if page.is_live else None,
        _account_link(view),
        banner,
        _settings(view, has_requests=pages["/"].count is not None),
    )


def menu(view: View, pages: Mapping[str, Page], page: Page) -> Html:
    """Return the menu: the pages, each with its count. It is a region of every page."""
    items = [_menu_item(view, item, item.path == page.path) for item in pages.values() if item.menu]
    return tag("nav", tag("ul", *items), aria_label=view.words("Pages"))


def _menu_item(view: View, page: Page, is_this: bool) -> Html:
    count = page.count() if page.count else 0
    badge = tag("span", count, class_="badge", data_count=count) if count else None
    current = "page" if is_this else None
    return tag("li", tag("a", view.words(page.menu), badge, href=view.link(page.path), aria_current=current))


def _account_link(view: View) -> Html | None:
    if not (view.session and view.session.operator):
        return None
    name = f"{view.session.operator.id}, {view.words(view.session.role)}"
    return tag("a", name, href=view.link(ACCOUNT_PATH), class_="account")


def _connection(view: View) -> Html:
    words = view.words
    return tag(
        "p",
        tag("span", words("connecting"), id="connection-text"),
        id="connection",
        data_state="connecting",
        data_live=words("live"),
        data_lost=words("Connection lost. Trying again …"),
        data_over=words("This session has ended"),
    )


def _settings(view: View, *, has_requests: bool) -> Html:
    words = view.words

    def choice(name: str, label: str, **attributes: str) -> Html:
        return tag(
            "label", tag("input", type="checkbox", id=name, **attributes), tag("span", words(label)), class_="option"
        )

    notice = words("Something waits for your answer.")
    refused = words("This browser does not allow notifications of this page.")
    themes = [tag("option", words(theme), value=theme, selected=theme == view.theme) for theme in THEMES]
    languages = [
        tag("option", name, value=code, lang=code, selected=code == view.language) for code, name in LANGUAGES.items()
    ]
    fields = [
        tag("label", words("Language"), " ", tag("select", *languages, name="language"), class_="field"),
        tag("label", words("Appearance"), " ", tag("select", *themes, name="theme"), class_="field"),
        tag("button", words("Save"), type="submit"),
    ]
    leave = tag("button", words("Sign out"), type="submit", class_="quiet")
    return tag(
        "details",
        tag(
            "summary",
            tag("span", words("Settings of this page"), class_="unseen"),
            tag("span", "⚙", aria_hidden="true"),
        ),
        tag(
            "div",
            choice("notify", "Notify me of a new request", data_notice=notice, data_refused=refused)
            if has_requests
            else None,
            choice("sound", "Play a sound for a new request") if has_requests else None,
            button_form(view, "/preferences", *fields, is_live=False),
            button_form(view, "/sign-out", leave, is_live=False),
        ),
        class_="settings",
    )


def _footer(view: View) -> Html:
    words = view.words
    ends = time.strftime("%H:%M %Z", time.localtime(view.ends)).strip()
    end = words(
        "This session ends at {time}, or {idle} minutes after its last page is closed.",
        time=ends,
        idle=round(view.idle / 60),
    )
    over = tag(
        "div",
        tag("h2", words("This session has ended"), tabindex="-1"),
        tag("p", words("Nothing that is shown here is current, and nothing can be answered.")),
        tag("p", tag("a", words("Go on"), href=view.link(view.path), class_="button")),
        id="session-over",
        role="alertdialog",
        aria_label=words("This session has ended"),
        hidden=True,
    )
    return joined(tag("footer", tag("p", end)), over)
