"""The address on this machine that the browser comes back to, with the code of a sign-in.

It listens on loopback addresses only, for the time of one sign-in. Every page that the owner has open may send requests
to it, so a request counts only if it has the state of this sign-in; all others are answered and ignored. Nothing of a
request is repeated in an answer.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qsl, urlsplit

from mcp.shared.auth import AuthorizationCodeResult

from a2c_smcp.mcp_host.failures import SignInFailed, in_brief
from a2c_smcp.mcp_host.sign_in.record import Learn
from a2c_smcp.protocol.visible import escaped

__all__ = ["CallbackListener", "read_redirect"]

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
        said = f"{error} ({fields['error_description']})" if fields.get("error_description") else error
        if error == "access_denied":
            raise SignInFailed(f"it was refused in the browser: {escaped(in_brief(said, 300))}")
        raise SignInFailed(f"the authorization server says {escaped(in_brief(said, 300))}")
    if not fields.get("code"):
        raise SignInFailed("the authorization server sent the browser back without a code")
    return AuthorizationCodeResult(code=fields["code"], state=fields["state"], iss=fields.get("iss"))


class CallbackListener:
    """Waits for the browser. `redirect_uri` is where it comes back to."""

    def __init__(self, redirect_uri: str, learn: Learn) -> None:
        self.redirect_uri = redirect_uri
        self._learn = learn
        self._state: str | None = None
        self._path = urlsplit(redirect_uri).path or "/"
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
            listener = cls(redirect_uri or "", learn)
            try:
                server = await asyncio.start_server(listener._serve, "127.0.0.1", port, limit=_HEAD_LIMIT)
            except OSError as error:
                problem = f"port {port} of this machine, where the browser comes back to, is not free: {error.strerror}"
                continue
            port = server.sockets[0].getsockname()[1]
            listener._move_to(redirect_uri or f"http://127.0.0.1:{port}{_PATH}")
            try:
                yield listener
            finally:
                server.close()
                if listener._result.done() and not listener._result.cancelled():
                    listener._result.exception()
            return
        raise SignInFailed(problem)

    def _move_to(self, redirect_uri: str) -> None:
        self.redirect_uri, self._path = redirect_uri, urlsplit(redirect_uri).path or "/"

    def expect(self, state: str) -> None:
        """Take the next redirect with this state."""
        self._state = state

    async def result(self) -> AuthorizationCodeResult:
        """Wait for the redirect. Raises `SignInFailed` if it brings an error."""
        return await asyncio.shield(self._result)

    def take(self, url: str) -> bool:
        """Take a redirect. Return whether it is of this sign-in."""
        if self._state is None or self._result.done():
            return False
        try:
            found = read_redirect(url, self._state, self._learn)
        except SignInFailed as failure:
            self._result.set_exception(failure)
            return True
        if found is not None:
            self._result.set_result(found)
        return found is not None

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
        if urlsplit(target).path != self._path:
            return "404 Not Found", _OTHER
        if not self.take(target):
            return "400 Bad Request", _OTHER
        return "200 OK", _REFUSED if self._result.exception() else _DONE
