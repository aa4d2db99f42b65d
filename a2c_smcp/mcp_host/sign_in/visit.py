"""A person's way to the authorization server and back: shows the page, waits for the browser or a pasted address."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from mcp.shared.auth import AuthorizationCodeResult

from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.failures import SignInFailed
from a2c_smcp.mcp_host.sign_in.addresses import check_page
from a2c_smcp.mcp_host.sign_in.callback import CallbackListener
from a2c_smcp.mcp_host.sign_in.record import Learn

__all__ = ["Person", "Visit"]

logger = logging.getLogger(__name__)


class Person(Protocol):
    """Shows a page to the person who signs in."""

    async def visit(self, url: str) -> str | None:
        """Show the page. Return the address that the person was sent back to, if they were asked for it.

        `None`: the browser comes back by itself. Raises `SignInFailed` if the page cannot be shown.
        """
        ...


class Visit:
    """`redirect` and `callback` are the handlers of the SDK's provider; `end` is called in any case."""

    def __init__(self, person: Person, listener: CallbackListener, server: str, learn: Learn) -> None:
        self._person, self._listener = person, listener
        self._server, self._learn = server, learn
        self._visiting: asyncio.Task[str | None] | None = None

    async def redirect(self, url: str) -> None:
        page = _with_one_query(url)
        check_page(page, "the page to sign in on", self._server)
        state = parse_qs(urlsplit(page).query)["state"][-1]
        self._learn([state])
        self._listener.expect(state)
        self._visiting = asyncio.get_running_loop().create_task(self._visit(page))

    async def callback(self) -> AuthorizationCodeResult:
        back = asyncio.get_running_loop().create_task(self._listener.result())
        try:
            while not back.done():
                waited = [back, self._visiting] if self._visiting else [back]
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if not back.done() and self._visiting:
                    self._take(self._visiting.result())
                    self._visiting = None
            return back.result()
        finally:
            back.cancel()

    async def end(self) -> None:
        if self._visiting is not None:
            await cancel_and_wait(self._visiting)

    def _take(self, pasted: str | None) -> None:
        if pasted is not None and not self._listener.take(pasted.strip()):
            raise SignInFailed(
                f"what was pasted is not the address that this sign-in ends at: it begins with "
                f"{self._listener.redirect_uri}?code="
            )

    async def _visit(self, page: str) -> str | None:
        try:
            return await self._person.visit(page)
        except SignInFailed:
            raise
        except Exception:  # the owner's own code
            logger.exception("the page to sign in on could not be shown")
            raise SignInFailed("the page to sign in on could not be shown") from None


def _with_one_query(url: str) -> str:
    """The SDK adds its query to an endpoint that may have one already."""
    endpoint, mark, query = url.rpartition("?")
    return f"{endpoint}&{query}" if "?" in endpoint else f"{endpoint}{mark}{query}"
