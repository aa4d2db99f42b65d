"""What a console is made of: pages with live regions, actions, and the frame that is around every page."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlencode

from a2c_smcp.console.html import Child, Html, joined, tag
from a2c_smcp.console.languages import LANGUAGES, THEMES, Words
from a2c_smcp.console.sessions import ConsoleSession
from a2c_smcp.console.web import Response, version_of

__all__ = ["Action", "Form", "Page", "Region", "View", "button_form", "document", "hidden", "menu", "notice_page"]

Form: TypeAlias = Mapping[str, list[str]]
"""The fields of a form that was sent, by name."""


@dataclass(frozen=True)
class View:
    """For whom a page is made: language, appearance, session, and the path and query of the page."""

    words: Words
    language: str
    theme: str
    prefix: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    session: ConsoleSession | None = None
    ends: float = 0.0
    idle: float = 0.0
    is_secure: bool = False

    def link(self, path: str, **query: str) -> str:
        """The address of a page or an action of this console."""
        return f"{self.prefix}{path}{'?' + urlencode(query) if query else ''}"


Region: TypeAlias = Callable[[View], Html | Awaitable[Html]]
"""Makes a part of a page, which is made again when something has changed."""


@dataclass(frozen=True)
class Page:
    """A page at a path. `title` and `menu` are English texts; a page without `menu` is in no menu.

    `regions` are its parts, in their order, by ids that a document may have. `topics` are what they show. `pause` is
    the least time between two updates, in seconds; with `refresh`, it is made again after so many seconds. `count` is a
    number beside its title in the menu, such as how many requests wait; it is 0 for none. A page that is not `is_live`
    is made once, and stays as it is.
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


Action: TypeAlias = Callable[[View, Form], Awaitable[Response | None]]
"""What a form does. Without a response the browser goes back to the page of the form. Raises `SMCPError`."""


def hidden(name: str, value: str) -> Html:
    return tag("input", type="hidden", name=name, value=value)


def button_form(view: View, action: str, *children: Child, is_live: bool = True, **attributes: str) -> Html:
    """A form that changes something: it carries the token of the session, and the page to go back to.

    `is_live`: it is sent without leaving the page, which shows by itself what has come of it.
    """
    token = view.session.token if view.session else ""
    back = view.link(view.path, **view.query)
    return tag(
        "form",
        hidden("token", token),
        hidden("back", back),
        *children,
        method="post",
        action=view.link(action),
        data_live=is_live,
        **attributes,
    )


def document(view: View, brand: str, pages: Mapping[str, Page], page: Page, regions: Mapping[str, Html]) -> Html:
    """A whole page with its menu, its settings and its regions."""
    words = view.words
    body = [tag("div", html, id=name, data_region=True) for name, html in regions.items()]
    main = tag("main", tag("h1", words(page.title)), *body, id="content", tabindex="-1")
    parts = [_header(view, brand, pages, page), main, _footer(view)]
    return _frame(view, words(page.title), brand, parts, is_live=page.is_live)


def notice_page(view: View, brand: str, title: str, *children: Child, goes_to: str = "") -> Html:
    """A page that says one thing, for those who have no session as well. The browser may go on to another page."""
    box = tag("main", tag("h1", view.words(title)), *children, id="content", class_="notice")
    return _frame(
        view, view.words(title), brand, [tag("header", tag("span", brand, class_="brand")), box], goes_to=goes_to
    )


def _frame(view: View, title: str, brand: str, body: list[Html], *, is_live: bool = False, goes_to: str = "") -> Html:
    words = view.words
    live = view.link("/live", page=view.path, **view.query) if is_live else None
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="refresh", content=f"0; url={goes_to}") if goes_to else None,
        tag("title", f"{title} – {brand}"),
        tag("link", rel="stylesheet", href=_asset(view, "console.css")),
        tag("link", rel="icon", href=_asset(view, "icon.svg")),
        tag("script", type="module", src=_asset(view, "console.js")),
    )
    skip = tag("a", words("Skip to the content"), href="#content", class_="skip")
    said = tag("p", id="announcements", class_="unseen", role="status", aria_live="polite")
    content = tag(
        "body",
        skip,
        *body,
        said,
        data_live_url=live,
        data_session_url=view.link("/session"),
    )
    return tag("html", head, content, lang=view.language, data_theme=view.theme)


def _asset(view: View, name: str) -> str:
    return view.link(f"/static/{name}", v=version_of(name))


def _header(view: View, brand: str, pages: Mapping[str, Page], page: Page) -> Html:
    return tag(
        "header",
        tag("a", brand, href=view.link("/"), class_="brand"),
        tag("div", menu(view, pages, page), id="menu", data_region=True),
        _connection(view) if page.is_live else None,
        _settings(view),
    )


def menu(view: View, pages: Mapping[str, Page], page: Page) -> Html:
    """The pages, with how many things wait on each. It is a region of every page."""
    items = [_menu_item(view, each, each.path == page.path) for each in pages.values() if each.menu]
    return tag("nav", tag("ul", *items), aria_label=view.words("Pages"))


def _menu_item(view: View, page: Page, is_this: bool) -> Html:
    count = page.count() if page.count else 0
    badge = tag("span", count, class_="badge", data_count=count) if count else None
    link = tag("a", view.words(page.menu), badge, href=view.link(page.path), aria_current="page" if is_this else None)
    return tag("li", link)


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


def _settings(view: View) -> Html:
    words = view.words
    themes = [tag("option", words(each), value=each, selected=each == view.theme) for each in THEMES]
    languages = [
        tag("option", name, value=each, lang=each, selected=each == view.language) for each, name in LANGUAGES.items()
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
        button_form(view, "/preferences", *fields, is_live=False),
        button_form(view, "/sign-out", leave, is_live=False),
        class_="settings",
    )


def _footer(view: View) -> Html:
    words = view.words
    ends = time.strftime("%H:%M %Z", time.localtime(view.ends)).strip()
    said = words(
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
    close = tag("button", words("Close"), type="button", id="failure-close", class_="quiet")
    failed = tag("div", tag("p", id="failure-text", role="alert"), close, id="failure", hidden=True)
    return joined(tag("footer", tag("p", said)), failed, over)
