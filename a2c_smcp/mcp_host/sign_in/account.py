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
import shlex
from collections.abc import AsyncGenerator, Callable

import httpx2

from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.config.sign_in import SignInSettings
from a2c_smcp.mcp_host.failures import AuthRequired, SignInFailed, SignInNeeded, TokenRefused
from a2c_smcp.mcp_host.sign_in.addresses import ProviderUnreachable
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
from a2c_smcp.mcp_host.sign_in.visit import CallbackListener, Person, Visit

logger = logging.getLogger(__name__)


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
