"""The account at one MCP server: the token that its sessions use, and how a new one is got.

**Owners.** An account belongs to one server with one configuration. Its sessions take the token from it (`token`) and
tell it of refusals (`answer`). Only the account refreshes, signs in and signs out; all of them replace `_record`, after
the token is stored. Sessions never ask a person themselves: a server that starts without a usable token is
`auth_required`. During a session, a call that is refused waits for the person, if there is one, within its deadline.

**What may race, and how it ends.**
- Several requests are refused at the same time. They come one after the other into `_renewing`; the first gets a new
  token, and each other finds that the refused token is no longer the current one.
- A refresh token is good for one use. `_renewing` orders refreshes in this process, `store.exclusive` in all processes;
  inside both the record is read again if another process has changed it.
- A sign-in takes minutes. It is a task of its own (`_signing_in`) and holds no lock: refreshes go on, and calls may be
  cancelled while they wait for it. There is one at a time; one that the owner asks for replaces an automatic one.
- A token that is refused at once would make a loop. So a token that no request was accepted with (`_is_proven`) is not
  refreshed, and `AskingLimits` bounds the sign-ins that nobody has asked for.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Callable

import httpx2

from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.config.sign_in import SignInSettings
from a2c_smcp.mcp_host.failures import AuthRequired, SignInFailed, TokenRefused
from a2c_smcp.mcp_host.sign_in.callback import CallbackListener
from a2c_smcp.mcp_host.sign_in.challenge import Challenge
from a2c_smcp.mcp_host.sign_in.flow import Flow, ProviderUnreachable, RefreshRefused
from a2c_smcp.mcp_host.sign_in.limits import AskingLimits
from a2c_smcp.mcp_host.sign_in.providers import PersonHandlers, provider_for, record_of
from a2c_smcp.mcp_host.sign_in.record import Learn, SignInRecord, TokenStore, binding_of, read_record
from a2c_smcp.mcp_host.sign_in.revocation import revoke
from a2c_smcp.mcp_host.sign_in.visit import Person, Visit

__all__ = ["Account"]

logger = logging.getLogger(__name__)


class Account:
    """`person` is who is asked without a request of the owner, `limit` how many seconds a sign-in may take."""

    def __init__(
        self,
        server: str,
        url: str,
        settings: SignInSettings,
        store: TokenStore,
        learn: Learn,
        *,
        headers: dict[str, str] | None = None,
        person: Person | None = None,
        limit: float = 300.0,
        posts: bool = True,
        on_ended: Callable[[bool], None] = lambda is_done: None,
    ) -> None:
        """`on_ended` is told of each sign-in of a person whether it has worked."""
        self.server = server
        self.url = url
        self.settings = settings
        self._store, self._learn = store, learn
        self._headers, self._posts = headers or {}, posts
        self._person, self._limit, self._on_ended = person, limit, on_ended
        self._record: SignInRecord | None = None
        self.is_in_use = False
        """Whether its server is ready, so that a request may wait for a person."""
        self._is_loaded = self._is_proven = self._is_spent = self._is_signed_out = False
        self._is_forgotten = False
        self._problem = ""
        self._renewing = asyncio.Lock()
        self._signing_in: asyncio.Task[None] | None = None
        self._challenge: Challenge | None = None
        self._limits = AskingLimits()

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
        """A request with this token was not refused."""
        if not self._is_proven and self._record and token == self._record.tokens.access_token:
            self._is_proven = self._limits.has_worked = True

    async def answer(self, challenge: Challenge, token: str | None) -> str | None:
        """Return another token than the refused one; `None` if there is none.

        Raises `ProviderUnreachable` if there may be one later.
        """
        self._challenge = challenge
        renewed = await self._renewed(challenge, token)
        if renewed or not self.is_in_use or not self.may_ask(challenge):
            return renewed
        try:
            await self.sign_in_once(challenge)
        except SignInFailed as failure:
            logger.warning("%s: %s", self.server, failure.message)
            return None
        return self._other_than(token)

    def refusal(self, challenge: Challenge, about: str) -> AuthRequired:
        """Return the failure of a server that refuses us for good."""
        if challenge.lacks_scope:
            scopes = f" for {' '.join(challenge.scopes)}" if challenge.scopes else ""
            return TokenRefused(f"the token is not good enough{scopes}: {self._remedy}")
        if self._record is not None:
            return TokenRefused(f"the token is not accepted any more: {self._remedy}")
        if challenge.status == httpx2.codes.UNAUTHORIZED:
            return AuthRequired(self._remedy)
        return AuthRequired(about)

    @property
    def _remedy(self) -> str:
        if self.settings.is_unattended:
            return f"{self._problem or 'no token'}, see auth in its configuration"
        return f"sign in with: a2c-smcp login {shlex.quote(self.server)}"

    async def load(self) -> bool:
        """Read the record. Return whether there is another token than before."""
        async with self._renewing:
            return await self._load()

    async def reload_if_changed(self) -> bool:
        """Read the record if another process has changed it. Return whether there is another token than before."""
        return self._is_loaded and self._store.has_changed() and await self.load()

    def may_ask(self, challenge: Challenge | None = None) -> bool:
        """Whether a person may be asked without a request of the owner."""
        if self._person is None or self.settings.is_unattended or self._is_signed_out:
            return False
        if self._signing_in is not None:
            return True
        return self._limits.allow(challenge or self._challenge, self._record)

    async def sign_in_once(self, challenge: Challenge | None = None) -> None:
        """Ask the person, or wait for the sign-in that is under way. Raises `SignInFailed`."""
        if self._signing_in is None:
            assert self._person is not None
            self._limits.count(challenge or self._challenge)
            self._begin(self._person, challenge)
        await self._signed_in()

    async def sign_in(self, person: Person) -> None:
        """Sign in, as the owner asks for. Raises `SignInFailed`."""
        if self._signing_in is not None:
            await cancel_and_wait(self._signing_in)
        self._begin(person, None)
        try:
            await self._signed_in()
        except asyncio.CancelledError:
            if self._signing_in is not None:
                await cancel_and_wait(self._signing_in)
            raise

    async def sign_out(self) -> bool:
        """Forget the token, and revoke it where the provider can. Return whether it has been revoked."""
        if self._signing_in is not None:
            await cancel_and_wait(self._signing_in)
        async with self._renewing:
            if not self._is_loaded or self._store.has_changed():
                await self._load()
            record, self._record = self._record, None
            self._is_signed_out = True
            await self._store.delete()
        return record is not None and await revoke(self._flow, provider_for(self.url, self.settings, record), record)

    async def close(self) -> None:
        if self._signing_in is not None:
            await cancel_and_wait(self._signing_in)

    @property
    def _flow(self) -> Flow:
        """The secret of a client goes to its issuer only: the configured one, or that of the first sign-in."""
        settings, known = self.settings, self._record.provider if self._record else None
        has_secret = settings.client_secret is not None or settings.private_key is not None
        issuer = settings.issuer or (str(known.issuer) if known and has_secret else None)
        return Flow(self.url, settings.scopes, self._learn, issuer)

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
        self._is_proven = self._limits.has_worked = True
        self._is_signed_out = record is None  # by another process: as here, the owner is not asked to sign in again
        return True

    def _other_than(self, token: str | None) -> str | None:
        current = self._record.tokens.access_token if self._record else None
        return None if current == token else current

    async def _renewed(self, challenge: Challenge, token: str | None) -> str | None:
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
        if challenge.lacks_scope and set(challenge.scopes or ()) <= set((self._scope or "").split()):
            return
        provider = provider_for(self.url, self.settings, self._record)
        await self._flow.answer(provider, challenge)
        await self._adopt(record_of(provider, self.url, self.settings))

    @property
    def _scope(self) -> str | None:
        return self._record.scope if self._record else None

    async def _adopt(self, record: SignInRecord) -> None:
        """Keep a new token and use it from now on."""
        self._learn(record.secrets)
        await self._store.save(record.model_dump_json(exclude_none=True))
        self._record, self._is_loaded = record, True
        self._is_proven = self._is_spent = self._is_signed_out = False
        self._problem = ""

    # With a person

    def _begin(self, person: Person, challenge: Challenge | None) -> None:
        task = asyncio.get_running_loop().create_task(self._sign_in(person, challenge), name=f"sign-in:{self.server}")
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

    async def _sign_in(self, person: Person, challenge: Challenge | None) -> None:
        if not self._is_loaded:
            await self.load()
        challenge = challenge or self._challenge or await self._flow.probe(self._headers, posts=self._posts)
        try:
            async with asyncio.timeout(self._limit):
                if self.settings.is_unattended:
                    async with self._renewing:
                        await self._sign_in_unattended(challenge)
                else:
                    await self._ask(person, challenge)
        except TimeoutError:
            raise SignInFailed(f"nobody has signed in within {self._limit:g} s") from None
        self._challenge, self._is_forgotten = None, False
        self._limits.signed_in()

    async def _ask(self, person: Person, challenge: Challenge) -> None:
        async with CallbackListener.opened(self._learn, self.settings.redirect_uri, self._ports()) as listener:
            visit = Visit(person, listener, self.url, self._learn)
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
