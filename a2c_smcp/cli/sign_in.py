"""A person's sign-in to an MCP server, on the terminal: the page is opened or shown, its redirect may be pasted back.

The browser comes back to this machine by itself. Where it runs on another machine, or there is none, it ends at an
address that it cannot open; that address has the code, and is pasted here. It is not echoed, and checked before it is
used: a wrong one is said to be wrong at once, and asked for again.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from threading import Thread
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from a2c_smcp.cli.options import option
from a2c_smcp.cli.terminal import Conversations, Read, Terminal, printable
from a2c_smcp.loops import in_thread
from a2c_smcp.mcp_host.failures import SignInFailed
from a2c_smcp.protocol.escaping import web_host

NoBrowser = Annotated[bool, option(None, "--no-browser", "Never open a browser: print the page to sign in on instead.")]


class SignInGuide:
    """Takes a person to the page to sign in on, and back. `talks` is for asking; without it, nothing can be pasted.

    `open_url` and `paste_redirect` are what `Computer.sign_in` takes.
    """

    def __init__(self, terminal: Terminal, talks: Conversations | None, *, no_browser: bool = False) -> None:
        self._terminal, self._talks = terminal, talks
        self.has_browser = not no_browser and can_open()
        self._is_open = False

    async def open_page(self, url: str) -> bool:
        """Open a page in the browser, if there is one."""
        return self.has_browser and await open_page(url)

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
            raise SignInFailed("it was given up here", cause="given up") from None

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


# Opening a page: a program is started with the URL as one argument, never through a shell.
#
# `$BROWSER` is a list of programs, each with or without `%s` for the URL; they are tried in order. Without it, the
# opener of the platform is used, if there is a screen here: over ssh, a page would open on the wrong machine.

_STARTS_WITHIN = 3.0
"""Seconds. A program that has not failed by then shows the page; many go on for as long as the page is open."""
_ON_A_SCREEN = (("xdg-open",), ("gio", "open"), ("wslview",), ("sensible-browser",), ("x-www-browser",))


def can_open(environ: Mapping[str, str] = os.environ) -> bool:
    """True if there is a program that may show a page here."""
    return any(True for _ in openers("http://localhost", environ))


async def open_page(url: str, *, starts_within: float = _STARTS_WITHIN) -> bool:
    """Show a page; return whether a program for it could be started. Only http and https are opened."""
    if not url.lower().startswith(("http://", "https://")):
        return False
    commands = list(openers(url, os.environ))
    return await in_thread(lambda: any(_starts(command, starts_within) for command in commands))


def openers(url: str, environ: Mapping[str, str]) -> Iterator[list[str]]:
    """The commands to try, of which the programs exist."""
    entries = environ.get("BROWSER", "").split(os.pathsep)
    wanted = [command for entry in entries if (command := _words(entry, url))]
    for command in wanted or [[*words, url] for words in _of_platform(environ)]:
        if program := shutil.which(command[0], path=environ.get("PATH")):
            yield [program, *command[1:]]


def _words(entry: str, url: str) -> list[str]:
    """An entry of `$BROWSER` as a command. The URL is put in after the split: nothing in it can become a word."""
    try:
        words = shlex.split(entry)
    except ValueError:
        return []
    if words and not any("%s" in word for word in words):
        words.append("%s")
    return [word.replace("%s", url) for word in words]


def _of_platform(environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"):
        return ()
    if sys.platform == "darwin":
        return (("open",),)
    if sys.platform == "win32":
        return (("rundll32", "url.dll,FileProtocolHandler"),)
    has_screen = any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"))
    return _ON_A_SCREEN if has_screen else ()


def _starts(command: list[str], starts_within: float) -> bool:
    """Start a program that outlives us and writes nowhere; return whether it has not failed within a moment."""
    nowhere = subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)  # noqa: S603
    except OSError:
        return False
    try:
        return process.wait(starts_within) == 0
    except subprocess.TimeoutExpired:
        Thread(target=process.wait, daemon=True).start()  # so that it does not stay as a zombie
        return True
