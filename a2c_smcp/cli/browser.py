"""Open a web page in the user's browser: a program is started with the URL as one argument, never through a shell.

`$BROWSER` is a list of programs, each with or without `%s` for the URL; they are tried in order. Without it, the opener
of the platform is used, if there is a screen to show a page on: a page that opens on the machine at the other end of an
ssh connection helps nobody.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from threading import Thread

from a2c_smcp.loops import in_thread

__all__ = ["can_open", "open_page", "openers"]

_STARTS_WITHIN = 3.0
"""Seconds. A program that has not failed by then shows the page; many go on for as long as the page is open."""
_ON_A_SCREEN = (("xdg-open",), ("gio", "open"), ("wslview",), ("sensible-browser",), ("x-www-browser",))


def can_open(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether there is a program that may show a page here."""
    return any(True for _ in openers("http://localhost", environ))


async def open_page(url: str, *, starts_within: float = _STARTS_WITHIN) -> bool:
    """Show a page; return whether a program for it could be started. Only http and https are opened."""
    return await in_thread(_open, url, starts_within)


def _open(url: str, starts_within: float) -> bool:
    if not url.lower().startswith(("http://", "https://")):
        return False
    return any(_starts(command, starts_within) for command in openers(url, os.environ))


def openers(url: str, environ: Mapping[str, str]) -> Iterator[list[str]]:
    """The commands to try, of which the programs exist."""
    wanted = [command for each in environ.get("BROWSER", "").split(os.pathsep) if (command := _words(each, url))]
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
