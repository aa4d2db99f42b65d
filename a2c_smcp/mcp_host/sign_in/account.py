"""The account at one MCP server: the token that its sessions use, and how a new one is got.

**Owners.** An account belongs to one server with one configuration. Its sessions take the token from it (`token`) and
tell it of refusals (`answer`). Only the account refreshes, signs in and signs out; all of them replace `_record`, after
the token is stored. Sessions never ask a person themselves: a server that starts without a usable token is
`auth_required`, and a call that is refused for good says so: a page is opened only when the owner asks for it.

**What may race, and how it ends.**
- Several requests are refused at the same time. They come one after the other into `_renewing`; the first gets a new
  token, and the others find that the refused token is no longer the current one.
- A refresh token is good for one use. `_renewing` orders refreshes in this process, `store.exclusive` in all processes;
  inside both the record is read again if another process has changed it.
- A sign-in takes minutes. It is a task of its own (`_signing_in`) and holds no lock: refreshes go on, and calls may be
  cancelled while they wait for it. There is one at a time: the next one replaces it.
- A token that is refused at once would make a loop. So a token that no request was accepted with (`_is_proven`) is not
  refreshed.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import shlex
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult

from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.config.sign_in import SignInSettings
from a2c_smcp.mcp_host.failures import AuthRequired, SignInFailed, SignInNeeded, TokenRefused, if_short
from a2c_smcp.mcp_host.sign_in.addresses import Addresses, ProviderUnreachable
from a2c_smcp.mcp_host.sign_in.flow import Challenge, Flow, RefreshRefused, revoke
from a2c_smcp.mcp_host.sign_in.registration import (
    Learn,
    PersonHandlers,
    SignInRecord,
    TokenStore,
    binding_of,
    provider_for,
    read_record,
    record_of,
)
from a2c_smcp.protocol.escaping import escaped

logger = logging.getLogger(__name__)

# A person's way to the authorization server and back: shows the page, waits for the browser or a pasted address.

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


class Account:
    """The account at one server. A person has `limit` seconds to sign in."""

    def __init__(
        self,
        server: str,
        url: str,
        settings: SignInSettings,
        store: TokenStore,
        learn: Learn,
        *,
        headers: dict[str, str] | None = None,
        limit: float = 300.0,
        posts: bool = True,
        on_ended: Callable[[bool], None] = lambda is_done: None,
    ) -> None:
        """Make the account without reading its token. `on_ended` is called after each sign-in: True if it worked."""
        self.server = server
        self.url = url
        self.settings = settings
        self._store, self._learn = store, learn
        self._headers, self._posts = headers or {}, posts
        self._limit, self._on_ended = limit, on_ended
        self._flow = Flow(url, settings.scopes, learn, settings.issuer)
        self._record: SignInRecord | None = None
        self._is_loaded = self._is_proven = self._is_spent = self._is_forgotten = False
        self._problem = ""
        self._renewing = asyncio.Lock()
        self._signing_in: asyncio.Task[None] | None = None
        self._challenge: Challenge | None = None

    @property
    def is_signed_in(self) -> bool:
        return self._record is not None

    async def token(self) -> str | None:
        """Return the token to send, refreshed before it expires; `None` if there is none."""
        if not self._is_loaded:
            await self.load()
        record = self._record
        if record is None or record.is_fresh:
            return record.tokens.access_token if record else None
        await self._refresh_early(record)
        record = self._record
        return record.tokens.access_token if record and record.is_valid else None

    def accepted(self, token: str | None) -> None:
        """Record that a request with this token was not refused."""
        if not self._is_proven and self._record and token == self._record.tokens.access_token:
            self._is_proven = True

    async def answer(self, challenge: Challenge, token: str | None) -> str | None:
        """Return another token than the refused one; `None` if there is none.

        Raises `ProviderUnreachable` if there may be one later.
        """
        self._challenge = challenge
        async with self._renewing:
            if other := self._other_than(token):
                return other
            if self._store.has_changed() and await self._load() and (other := self._other_than(token)):
                return other
            if self._record is not None and not self._is_proven:
                return None
            try:
                if self.settings.is_unattended:
                    await self._sign_in_unattended(challenge)
                elif self._record is not None and not challenge.lacks_scope:
                    await self._refresh(self._record)
            except ProviderUnreachable:
                raise
            except SignInFailed as failure:
                self._problem = failure.reason
                logger.warning("%s: %s", self.server, failure.message)
            return self._other_than(token)

    def refusal(self, challenge: Challenge, about: str) -> AuthRequired:
        """Return the failure of a server that refuses us for good."""
        if challenge.lacks_scope:
            scopes = f" for {' '.join(challenge.scopes)}" if challenge.scopes else ""
            return TokenRefused(f"the token is not good enough{scopes}: {self._remedy}")
        if self._record is not None:
            return TokenRefused(f"the token is not accepted any more: {self._remedy}")
        if challenge.status == httpx2.codes.UNAUTHORIZED:
            return (AuthRequired if self.settings.is_unattended else SignInNeeded)(self._remedy)
        return AuthRequired(about)

    @property
    def _remedy(self) -> str:
        if self.settings.is_unattended:
            return f"{self._problem or 'no token'}, see auth in its configuration"
        return f"sign in with: a2c-smcp login {shlex.quote(self.server)}"

    async def load(self) -> bool:
        """Read the record. Return True if there is another token than before."""
        async with self._renewing:
            return await self._load()

    async def reload_if_changed(self) -> bool:
        """Read the record if another process has changed it. Return True if there is another token than before."""
        return self._is_loaded and self._store.has_changed() and await self.load()

    async def sign_in(self, person: Person) -> None:
        """Sign in, as the owner asks for. Raises `SignInFailed`."""
        await self.close()
        self._begin(person)
        try:
            await self._signed_in()
        except asyncio.CancelledError:
            await self.close()
            raise

    async def sign_out(self) -> bool:
        """Forget the token, and revoke it where the provider can. Return True if it has been revoked."""
        await self.close()
        async with self._renewing:
            if not self._is_loaded or self._store.has_changed():
                await self._load()
            record, self._record = self._record, None
            await self._store.delete()
        return record is not None and await revoke(self._flow, provider_for(self.url, self.settings, record), record)

    async def close(self) -> None:
        """End the sign-in that is under way."""
        if self._signing_in is not None:
            await cancel_and_wait(self._signing_in)

    # Renewing without a person

    async def _load(self) -> bool:
        before = self._record
        record = read_record(await self._store.load(), binding_of(self.url, self.settings))
        self._is_loaded = True
        if record is not None:
            self._learn(record.secrets)
        if record == before:
            return False
        self._record, self._is_spent = record, False
        self._is_proven = True
        return True

    def _other_than(self, token: str | None) -> str | None:
        current = self._record.tokens.access_token if self._record else None
        return None if current == token else current

    async def _refresh_early(self, record: SignInRecord) -> None:
        async with self._renewing:
            if self._record is not record:
                return
            try:
                if self.settings.is_unattended:
                    await self._sign_in_unattended(Challenge(scopes=tuple((record.scope or "").split())))
                else:
                    await self._refresh(record)
            except ProviderUnreachable as failure:
                if not record.is_valid:
                    logger.warning("%s: its token cannot be refreshed: %s", self.server, failure.reason)
            except SignInFailed as failure:
                logger.warning("%s: its token cannot be refreshed: %s", self.server, failure.reason)

    async def _refresh(self, record: SignInRecord) -> None:
        """Use the refresh token, unless another process has just done so. Raises `SignInFailed`."""
        if record.tokens.refresh_token is None or self._is_spent:
            return
        async with self._store.exclusive():
            if self._store.has_changed() and await self._load():
                return
            provider = provider_for(self.url, self.settings, record, is_expired=True)
            try:
                await self._flow.refresh(provider)
            except RefreshRefused:
                self._is_spent = True
                raise
            renewed = record_of(provider, self.url, self.settings).model_copy(update={"scope": record.scope})
            await self._adopt(renewed)

    async def _sign_in_unattended(self, challenge: Challenge) -> None:
        scope = self._record.scope if self._record else None
        if challenge.lacks_scope and set(challenge.scopes or ()) <= set((scope or "").split()):
            return
        provider = provider_for(self.url, self.settings, self._record)
        await self._flow.answer(provider, challenge)
        await self._adopt(record_of(provider, self.url, self.settings))

    async def _adopt(self, record: SignInRecord) -> None:
        """Keep a new token and use it from now on."""
        self._learn(record.secrets)
        await self._store.save(record.model_dump_json(exclude_none=True))
        self._record, self._is_loaded = record, True
        self._is_proven = self._is_spent = False
        self._problem = ""

    # With a person

    def _begin(self, person: Person) -> None:
        task = asyncio.get_running_loop().create_task(self._sign_in(person), name=f"sign-in:{self.server}")
        self._signing_in = task

        def ended(task: asyncio.Task[None]) -> None:
            if self._signing_in is task:
                self._signing_in = None
            self._on_ended(not task.cancelled() and task.exception() is None)

        task.add_done_callback(ended)

    async def _signed_in(self) -> None:
        task = self._signing_in
        if task is None:
            return
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise SignInFailed("another sign-in has begun, or it was cancelled") from None
            raise

    async def _sign_in(self, person: Person) -> None:
        if not self._is_loaded:
            await self.load()
        challenge = self._challenge or await self._flow.probe(self._headers, posts=self._posts)
        try:
            async with asyncio.timeout(self._limit):
                if self.settings.is_unattended:
                    async with self._renewing:
                        await self._sign_in_unattended(challenge)
                else:
                    await self._ask(person, challenge)
        except TimeoutError:
            raise SignInFailed(f"nobody has signed in within {self._limit:g} s", cause="timeout") from None
        self._challenge, self._is_forgotten = None, False

    async def _ask(self, person: Person, challenge: Challenge) -> None:
        async with CallbackListener.opened(self._learn, self.settings.redirect_uri, self._ports()) as listener:
            visit = Visit(person, listener, self._flow.addresses, self._learn)
            handlers = PersonHandlers(visit.redirect, visit.callback, listener.redirect_uri)
            record = (
                self._record.model_copy(update={"client": None})
                if self._record and self._is_forgotten
                else self._record
            )
            provider = provider_for(self.url, self.settings, record, handlers=handlers)
            self._is_forgotten = True  # until it has worked: a provider that has forgotten our client may say nothing
            try:
                await self._flow.answer(provider, challenge)
            finally:
                await visit.end()
        async with self._renewing, self._store.exclusive():
            await self._adopt(record_of(provider, self.url, self.settings))

    def _ports(self) -> list[int]:
        """Return the ports for the way back: the one that the client was registered with comes first."""
        if self.settings.redirect_port is not None:
            return [self.settings.redirect_port]
        client = self._record.client if self._record else None
        known = [uri.port for uri in (client.redirect_uris or []) if uri.port] if client else []
        return [*known, 0]


# Puts the token of an account on the requests of a session, and tries again with a new one after a refusal.
#
# The SDK's own provider holds a lock until the response of a request has begun, so one slow call would hold up all
# others of its server. Here a request with a usable token waits for nothing.

_MOST_ATTEMPTS = 3  # a token that has expired, one that lacks a scope, and one that is good


class SessionAuth(httpx2.Auth):
    """For the HTTP client of one session."""

    def __init__(self, account: Account) -> None:
        self._account = account

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        account = self._account
        token = await account.token()
        for _ in range(_MOST_ATTEMPTS):
            if token is not None:
                request.headers["Authorization"] = f"Bearer {token}"
            response = yield request
            challenge = Challenge.of(request, response)
            if challenge is None:
                account.accepted(token)
                return
            if request.method == "DELETE":  # the session ends: nothing is worth waiting for
                return
            await response.aread()
            try:
                token = await account.answer(challenge, token)
            except ProviderUnreachable as failure:  # the session is lost, and opened again later
                raise httpx2.ConnectError(failure.reason) from None
            if token is None:
                return
