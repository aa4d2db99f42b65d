"""A person's sign-in to an MCP server, on the terminal: the page is opened or shown, its redirect may be pasted back.

The browser comes back to this machine by itself. Where it runs on another machine, or there is none, it ends at an
address that it cannot open; that address has the code, and is pasted here. It is not echoed, and checked before it is
used: a wrong one is said to be wrong at once, and asked for again.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from a2c_smcp.cli import browser
from a2c_smcp.cli.conversation import Conversations, Read
from a2c_smcp.cli.options import option
from a2c_smcp.cli.terminal import Terminal, printable
from a2c_smcp.mcp_host.failures import SignInFailed
from a2c_smcp.protocol.visible import web_host

__all__ = ["NoBrowser", "SignInGuide", "read_redirect"]

NoBrowser = Annotated[bool, option(None, "--no-browser", "Never open a browser: print the page to sign in on instead.")]


class SignInGuide:
    """Takes a person to the page to sign in on, and back. `talks` is for asking; without it, nothing can be pasted.

    `open_url` and `paste_redirect` are what `Computer.sign_in` takes.
    """

    def __init__(self, terminal: Terminal, talks: Conversations | None, *, no_browser: bool = False) -> None:
        self._terminal, self._talks = terminal, talks
        self.has_browser = not no_browser and browser.can_open()
        self._is_open = False

    async def open_page(self, url: str) -> bool:
        """Open a page in the browser, if there is one."""
        return self.has_browser and await browser.open_page(url)

    async def open_url(self, url: str) -> bool:
        """Open the page to sign in on, and say so."""
        self._is_open = False
        if self.has_browser:
            self._terminal.show(f"Opening this page of {web_host(url)} in your browser, to sign in there:\n{url}")
            self._is_open = await self.open_page(url)
        return self._is_open

    @property
    def paste_if_possible(self) -> Callable[[str], Awaitable[str]] | None:
        """`paste_redirect`, unless a page is open and nothing can be asked here: then only the browser comes back."""
        return self.paste_redirect if self._terminal.can_ask or not self.has_browser else None

    async def paste_redirect(self, url: str) -> str:
        """Show the page to sign in on, unless it is open already, and ask for the address that it ends at.

        Raises `SignInFailed` if there is no answer.
        """
        assert self._talks
        is_open = self._is_open

        async def paste(read: Read) -> str:
            if self.has_browser and not is_open:
                self._tell("No browser could be opened: open that page in a browser on any machine, and sign in there.")
            elif not is_open:
                self._tell(f"Open this page of {web_host(url)} in a browser on any machine, and sign in:")
                sys.stderr.write(f"{printable(url)}\n")
            self._tell(_if_not_back(url) if is_open else _at_the_end(url))
            while True:
                try:
                    return read_redirect(url, await read("Address: ", True))
                except ValueError as problem:
                    self._tell(f"{problem}.")

        try:
            return await self._talks.converse(paste)
        except EOFError:
            raise SignInFailed("it was given up here") from None

    def _tell(self, text: str) -> None:
        """Write in a conversation: wrapped between words on a terminal."""
        if self._terminal.console:
            self._terminal.console.print(text, markup=False)
        else:
            sys.stderr.write(f"{text}\n")


def _at_the_end(page: str) -> str:
    return (
        f"At the end the browser goes to an address that begins with {_redirect_uri(page)}, and may not be able to open"
        " it. Copy that address, and paste it here. Ctrl-C gives up."
    )


def _if_not_back(page: str) -> str:
    return (
        "This goes on by itself when you have signed in. If the browser says that it cannot open an address that"
        f" begins with {_redirect_uri(page)}, copy that address, and paste it here. Ctrl-C gives up."
    )


def read_redirect(page: str, pasted: str) -> str:
    """The pasted address, if it ends the sign-in on this page. Raises `ValueError` with words for the person."""
    text, start = pasted.strip().strip("<>\"'"), _redirect_uri(page)
    if not text:
        raise ValueError(f"paste the address of the page that the browser ends at: it begins with {start}")
    if text.split("?")[0] == page.split("?")[0]:
        raise ValueError(f"that is the page to sign in on; needed is the address it sends you to, {start}…")
    try:
        fields = parse_qs(urlsplit(text).query)
    except ValueError:
        fields = {}
    if not {"code", "error"} & fields.keys():
        raise ValueError(f"there is no code in that; needed is the whole address, from {start} to its end")
    if fields.get("state") != parse_qs(urlsplit(page).query).get("state"):
        raise ValueError("that address belongs to another sign-in; sign in on the page above, then paste")
    return text


def _redirect_uri(page: str) -> str:
    return printable(parse_qs(urlsplit(page).query).get("redirect_uri", ["http://127.0.0.1"])[0])
