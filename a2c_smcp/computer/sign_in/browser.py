"""How the owner is taken to the page to sign in on, and back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from a2c_smcp.computer.asking import ask
from a2c_smcp.mcp_host.failures import SignInFailed

__all__ = ["Browser", "OpenURL", "PasteRedirect"]

OpenURL: TypeAlias = Callable[[str], object]
"""Opens a page in the owner's browser. It may be async. `False`, or an error, means that it was not opened."""
PasteRedirect: TypeAlias = Callable[[str], Awaitable[str] | str]
"""Shows the owner the address of a page, and returns the address that the page sent the browser back to."""


@dataclass(frozen=True)
class Browser:
    """The owner's browser: one that opens by itself, one that the owner copies addresses to and from, or both."""

    open_url: OpenURL | None = None
    paste_redirect: PasteRedirect | None = None

    async def visit(self, url: str) -> str | None:
        is_open = self.open_url is not None and await _opened(self.open_url, url)
        if self.paste_redirect is not None:
            return str(await ask(self.paste_redirect, url))
        if not is_open:
            raise SignInFailed("no browser could be opened on this machine")
        return None


async def _opened(open_url: OpenURL, url: str) -> bool:
    try:
        return await ask(open_url, url) is not False
    except Exception:  # the owner's own code; there may still be another way
        return False
