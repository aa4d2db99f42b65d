"""A person's way to the authorization server and back: shows the page, waits for the browser or a pasted address."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Protocol
from urllib.parse import parse_qs, parse_qsl, urlsplit

from mcp.client.auth import AuthorizationCodeResult

from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.failures import SignInFailed, if_short
from a2c_smcp.mcp_host.sign_in.addresses import Addresses
from a2c_smcp.mcp_host.sign_in.registration import Learn
from a2c_smcp.protocol.escaping import escaped

logger = logging.getLogger(__name__)

# The address on this machine that the browser comes back to, with the code of a sign-in.
#
# It listens on loopback addresses only, for the time of one sign-in. Every page that the owner has open may send
# requests to it, so a request counts only if it has the state of this sign-in; all others are answered and ignored.
# Nothing of a request is repeated in an answer.

_PATH = "/callback"
_HEAD_LIMIT = 16 * 1024  # bytes of a request
_HEAD_TIME = 10.0  # seconds for a request
_MOST_AT_ONCE = 16  # requests
_REQUEST_LINE = re.compile(rb"GET (/[!-~]*) HTTP/1\.[01]\r?\n")
_PAGE = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>a2c-smcp</title>"
    "<body style='font-family:sans-serif;margin:4em'><h1>{title}</h1><p>{text}</p></body></html>\n"
)
_DONE = _PAGE.format(title="Back on this computer", text="You can close this window. The program says how it ended.")
_REFUSED = _PAGE.format(title="Not signed in", text="You can close this window. The program says why.")
_OTHER = _PAGE.format(title="Not expected here", text="This is not the end of a sign-in that is under way.")
_HEADERS = (
    "Content-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\nConnection: close\r\n"
)


def read_redirect(url: str, state: str, learn: Learn) -> AuthorizationCodeResult | None:
    """Return the code in a redirect; `None` if it is of another sign-in. Raises `SignInFailed` with the error in it."""
    fields = dict(parse_qsl(urlsplit(url).query))
    learn(value for name in ("code", "state") if (value := fields.get(name)))
    if not secrets.compare_digest(fields.get("state", "").encode(), state.encode()):
        return None
    if error := fields.get("error"):
        reason = f"{error} ({fields['error_description']})" if fields.get("error_description") else error
        if error == "access_denied":
            raise SignInFailed(f"it was refused in the browser: {escaped(if_short(reason))}", cause="refused")
        raise SignInFailed(f"the authorization server says {escaped(if_short(reason))}")
    if not fields.get("code"):
        raise SignInFailed("the authorization server sent the browser back without a code")
    return AuthorizationCodeResult(code=fields["code"], state=fields["state"], iss=fields.get("iss"))


class CallbackListener:
    """Waits for the browser. `redirect_uri` is where it comes back to."""

    redirect_uri: str

    def __init__(self, learn: Learn) -> None:
        self._learn = learn
        self._state: str | None = None
        self._open = 0
        self._result: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, learn: Learn, redirect_uri: str | None, ports: list[int]
    ) -> AsyncGenerator[CallbackListener, None]:
        """Listen at the configured address, or at the first of the ports that is free; 0 is any free port."""
        if redirect_uri is not None:
            ports = [urlsplit(redirect_uri).port or 0]
        for port in ports:
            listener = cls(learn)
            try:
                server = await asyncio.start_server(listener._serve, "127.0.0.1", port, limit=_HEAD_LIMIT)
            except OSError as error:
                problem = f"port {port} of this machine, where the browser comes back to, is not free: {error.strerror}"
                continue
            port = server.sockets[0].getsockname()[1]
            listener.redirect_uri = redirect_uri or f"http://127.0.0.1:{port}{_PATH}"
            try:
                yield listener
            finally:
                server.close()
                if listener._result.done() and not listener._result.cancelled():
                    listener._result.exception()
            return
        raise SignInFailed(problem, cause="port")

    def expect(self, state: str) -> None:
        """Take the next redirect with this state."""
        self._state = state

    async def result(self) -> AuthorizationCodeResult:
        """Wait for the redirect. Raises `SignInFailed` if it brings an error."""
        return await asyncio.shield(self._result)

    def take(self, url: str) -> bool:
        """Take a redirect. Return False if it is of another sign-in."""
        if self._state is None or self._result.done():
            return False
        try:
            result = read_redirect(url, self._state, self._learn)
        except SignInFailed as failure:
            self._result.set_exception(failure)
            return True
        if result is not None:
            self._result.set_result(result)
        return result is not None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _MOST_AT_ONCE:
                async with asyncio.timeout(_HEAD_TIME):
                    status, page = self._answer(await reader.readuntil(b"\r\n\r\n"))
                    body = page.encode()
                    head = f"HTTP/1.1 {status}\r\n{_HEADERS}Content-Length: {len(body)}\r\n\r\n"
                    writer.write(head.encode() + body)
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open -= 1
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _answer(self, head: bytes) -> tuple[str, str]:
        line = _REQUEST_LINE.match(head)
        target = line[1].decode() if line else ""
        if urlsplit(target).path != (urlsplit(self.redirect_uri).path or "/"):
            return "404 Not Found", _OTHER
        if not self.take(target):
            return "400 Bad Request", _OTHER
        return "200 OK", _REFUSED if self._result.exception() else _DONE


class Person(Protocol):
    """Shows a page to the person who signs in."""

    async def visit(self, url: str) -> str | None:
        """Show the page. Return the address that the person was sent back to, if they were asked for it.

        `None`: the browser comes back by itself. Raises `SignInFailed` if the page cannot be shown.
        """
        ...


class Visit:
    """`redirect` and `callback` are the handlers of the SDK's provider; `end` is called in any case."""

    def __init__(self, person: Person, listener: CallbackListener, addresses: Addresses, learn: Learn) -> None:
        self._person, self._listener = person, listener
        self._addresses, self._learn = addresses, learn
        self._visiting: asyncio.Task[str | None] | None = None

    async def redirect(self, url: str) -> None:
        endpoint, mark, query = url.rpartition("?")  # the SDK adds its query to an endpoint that may have one already
        page = f"{endpoint}&{query}" if "?" in endpoint else f"{endpoint}{mark}{query}"
        await self._addresses.check_page(page, "the page to sign in on")
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
