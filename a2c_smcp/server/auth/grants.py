"""Grants of people to MCP clients: kept, turned into tokens, found by them, and revoked.

What is kept are texts by names, each with a time to live, in a file or in the store that nodes share (`Kept`). A text
is changed by compare-and-swap only. So a code, a link or a refresh token is used once, on whichever node: of several
that have read the same text, one replaces it. A node remembers a grant for some seconds, and forgets it when another
one says that it was revoked. If the store does not answer, no token is accepted that was not checked just now.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import ConfigError, NotFound, Unavailable
from a2c_smcp.files import Stamp, replace_file, stamp
from a2c_smcp.server.auth.api_keys import KeysFileError, change_lock
from a2c_smcp.server.auth.authentication import AuthenticationProvider, Principal, agent_name, credentials
from a2c_smcp.server.auth.authorization import (
    AccessGrant,
    Client,
    CodeRequest,
    GrantHolder,
    OAuthError,
    Tokens,
    check_verifier,
    digest,
    family_of,
    grant_of,
    is_access,
    renewed,
)

_CODE_LASTS, _DECIDED_LASTS = 60.0, 900.0
LINK_LASTS = 600.0
_CHECKED_EVERY = 10.0
_USE_NOTED_EVERY = 60.0
_LINK, _PASS = "a2c_link_", "a2c_seat_"
GRANT = "grant-"
"""The beginning of ids of grants, where keys are listed, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    """The sign-in of MCP clients, for `Settings`.

    `public_url` is the origin at which clients reach the Server, such as `https://hub.example.com`. Grants are kept in
    `file`; without one in the store that nodes share, else until the process ends. `private_clients` are hosts inside
    one's own network whose client metadata documents may be fetched. A Server that cannot reach the web does without
    documents (`reads_documents`): clients register then. `page_text` replaces texts of the page: the English one, and
    what is shown in its place.
    """

    public_url: str
    file: Path | None = None
    private_clients: frozenset[str] = frozenset()
    reads_documents: bool = True
    page_text: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        endpoint = Endpoint(url=self.public_url)
        if self.public_url != endpoint.origin:
            raise ConfigError(
                f"the public URL {self.public_url!r} is not an origin, which looks like {endpoint.origin}"
            )
        if not endpoint.may_sign:
            raise ConfigError("the public URL must begin with https, except on this machine")


class Kept(Protocol):
    """Texts by name. All methods raise `Unavailable`."""

    async def kept(self, name: str) -> str | None: ...

    async def swap(self, name: str, before: str | None, after: str | None, seconds: float) -> bool:
        """Replace a text for so many seconds. `False`, without effect, if it is not `before` any more."""

    async def kept_names(self, beginning: str) -> list[str]: ...


_Texts: TypeAlias = dict[str, tuple[str, float]]
"""Texts by name, and until when each is kept."""


class KeptInFile:
    """`Kept` in a file that only its owner can read, and that processes of one machine may share; or in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._turn = asyncio.Lock()
        self._known: tuple[Stamp | None, _Texts] = (None, {})

    async def kept(self, name: str) -> str | None:
        text, until = self._read().get(name, (None, 0.0))
        return text if time.time() < until else None

    async def swap(self, name: str, before: str | None, after: str | None, seconds: float) -> bool:
        async with self._turn:
            return await asyncio.to_thread(self._swap, name, before, after, time.time() + seconds)

    async def kept_names(self, beginning: str) -> list[str]:
        now = time.time()
        return [name for name, (_, until) in self._read().items() if name.startswith(beginning) and now < until]

    def _swap(self, name: str, before: str | None, after: str | None, until: float) -> bool:
        if self._path is None:
            return self._replace(name, before, after, until)
        try:
            with change_lock(self._path):
                return self._replace(name, before, after, until)
        except (OSError, KeysFileError) as error:
            raise Unavailable(f"the file of grants cannot be written: {error}") from None

    def _replace(self, name: str, before: str | None, after: str | None, until: float) -> bool:
        texts, now = self._read(), time.time()
        found, known_until = texts.get(name, (None, 0.0))
        if (found if now < known_until else None) != before:
            return False
        changed = {known: entry for known, entry in texts.items() if now < entry[1] and known != name}
        changed |= {} if after is None else {name: (after, until)}
        if self._path:
            replace_file(self._path, json.dumps(changed).encode())
        self._known = (stamp(self._path) if self._path else None), changed
        return True

    def _read(self) -> _Texts:
        """Texts and the stamp of their file, which other threads replace together, or not at all.

        Raises `Unavailable` for a file that cannot be read: its grants would be lost with the next change.
        """
        known, texts = self._known
        if self._path is None or (found := stamp(self._path)) == known:
            return texts
        try:
            entries = json.loads(self._path.read_bytes()) if found else {}
            texts = {name: (text, until) for name, (text, until) in entries.items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise Unavailable(f"the file of grants cannot be read: {type(error).__name__}") from None
        self._known = found, texts
        return texts


class OneTimeLink(msgspec.Struct, frozen=True):
    """A one-time link: it opens an office, for a principal."""

    person: GrantHolder
    office: str


def is_link(text: str) -> bool:
    return text.startswith(_LINK)


class AccessGrants:
    """The grants of a Server. `end` makes all nodes refuse a grant that is no longer kept, and end its requests.

    `is_valid` says if the key that was shown for a grant still stands.
    """

    def __init__(self, settings: SignIn, kept: Kept, end: Callable[[str], Awaitable[None]]) -> None:
        self.settings, self.kept = settings, kept
        self._end = end
        self.is_valid: Callable[[AccessGrant], bool] = lambda grant: True
        self._live: dict[str, tuple[AccessGrant, float]] = {}
        self._secret = b""

    # Before there is a grant

    async def new_link(self, person: GrantHolder, office: str) -> str:
        """A link with a code that lets the page act for this principal in this office, once, within ten minutes."""
        code = f"{_LINK}{secrets.token_urlsafe(32)}"
        link = msgspec.json.encode(OneTimeLink(person, office)).decode()
        await self.kept.swap(f"link:{digest(code)}", None, link, LINK_LASTS)
        return f"{self.settings.public_url}/sign-in#{code}"

    async def link(self, code: str) -> OneTimeLink | None:
        text = await self.kept.kept(f"link:{digest(code)}")
        return msgspec.json.decode(text, type=OneTimeLink) if text else None

    async def decide(self, request: CodeRequest, link: str = "") -> bool:
        """Note that a request was decided, and use up the link. `False` if either was done before."""
        if not await self.kept.swap(f"decided:{request.digest}", None, "1", _DECIDED_LASTS):
            return False
        text = await self.kept.kept(f"link:{link}") if link else None
        return not link or bool(text and await self.kept.swap(f"link:{link}", text, None, 0))

    async def is_decided(self, request: CodeRequest) -> bool:
        return await self.kept.kept(f"decided:{request.digest}") is not None

    async def sealed(self, content: Mapping[str, Any]) -> str:
        """The content as a text that only a node of this Server can have made. It can be read, and expires."""
        lasting = {**content, "until": time.time() + LINK_LASTS, "nonce": secrets.token_urlsafe(16)}
        body = base64.urlsafe_b64encode(msgspec.json.encode(lasting)).decode()
        return f"{body}.{hmac.new(await self._seal(), body.encode(), 'sha256').hexdigest()}"

    async def unsealed(self, text: str) -> dict[str, Any] | None:
        """The content; `None` if it is not ours or has expired."""
        body, _, mark = text.rpartition(".")
        made = hmac.new(await self._seal(), body.encode("utf-8", "replace"), "sha256").hexdigest()
        if not hmac.compare_digest(made.encode(), mark.encode("utf-8", "replace")):
            return None
        content: dict[str, Any] = msgspec.json.decode(base64.urlsafe_b64decode(body))
        return content if time.time() < content["until"] else None

    async def _seal(self) -> bytes:
        if not self._secret:
            await self.kept.swap("secret", None, secrets.token_hex(32), 10 * 365 * 86400)
            self._secret = (await self.kept.kept("secret") or "").encode()
        return self._secret

    # Codes and tokens

    async def new_code(self, request: CodeRequest, client: Client, person: GrantHolder) -> str:
        code, now = secrets.token_urlsafe(32), time.time()
        grant = AccessGrant(
            secrets.token_hex(16), person, request.office, client.id, client.name, client.domain, now, now, now
        )
        text = msgspec.json.encode((request, grant)).decode()
        await self.kept.swap(f"code:{digest(code)}", None, text, _CODE_LASTS)
        return code

    async def exchange(self, form: Mapping[str, str], office: str | None) -> Tokens:
        """The tokens for a code, which is used up in any case. A second use ends the grant. Raises `OAuthError`."""
        name = f"code:{digest(form.get('code', ''))}"
        text = await self.kept.kept(name)
        if text is None:
            raise OAuthError("invalid_grant", "code: is unknown, or has expired")
        request, grant = msgspec.json.decode(text, type=tuple[CodeRequest | None, AccessGrant])
        used = f"[null,{_text(grant)}]"
        if request is None or not await self.kept.swap(name, text, used, LINK_LASTS):
            await self.kept.swap(name, used, None, 0)  # for the first use, if that has made no grant yet
            await self._drop(grant.id)
            raise OAuthError("invalid_grant", "code: was used before")
        if (form.get("client_id"), form.get("redirect_uri")) != (request.client, request.redirect):
            raise OAuthError("invalid_grant", "code: is for another client or redirect_uri")
        if office not in (None, request.office):
            raise OAuthError("invalid_target", "resource: the code is for another one")
        check_verifier(form.get("code_verifier", ""), request.challenge)
        if not self.is_valid(grant):
            raise OAuthError("invalid_grant", "the key that was shown for this code has ended")
        grant, tokens = renewed(grant, time.time())
        await self._keep(grant, None)
        if await self.kept.kept(name) != used:
            await self._drop(grant.id)
            raise OAuthError("invalid_grant", "code: was used a second time meanwhile")
        return tokens

    async def refreshed(self, form: Mapping[str, str], office: str | None) -> Tokens:
        """New tokens for a refresh token. One that was used before ends the grant. Raises `OAuthError`."""
        token = form.get("refresh_token", "")
        while True:
            text, grant = await self._found(grant_of(token))
            if grant is None:
                raise OAuthError("invalid_grant", "there is no such refresh token")
            family, is_current = family_of(grant, token)
            if not is_current:
                await self._drop(grant.id)
                raise OAuthError("invalid_grant", "the refresh token was used before: the grant has ended")
            if form.get("client_id") != grant.client:
                raise OAuthError("invalid_grant", "the refresh token is for another client")
            if office not in (None, grant.office):
                raise OAuthError("invalid_target", "resource: the refresh token is for another one")
            if not self.is_valid(grant):
                raise OAuthError("invalid_grant", "the key that was shown for this grant has ended")
            changed, tokens = renewed(grant, time.time(), family)
            if await self._keep(changed, text):
                return tokens

    async def _keep(self, grant: AccessGrant, before: str | None) -> bool:
        """`False`, without effect, if the grant is no longer what was read before."""
        is_kept = await self.kept.swap(f"grant:{grant.id}", before, _text(grant), grant.expires - time.time())
        if is_kept:
            self._live[grant.id] = grant, time.monotonic()
        return is_kept

    # Grants

    async def all(self) -> list[AccessGrant]:
        names = await self.kept.kept_names("grant:")
        found = [(await self._found(name.removeprefix("grant:")))[1] for name in names]
        return sorted((grant for grant in found if grant), key=lambda grant: (grant.person.id, grant.created))

    async def revoke(self, wanted: str) -> AccessGrant:
        """End a grant by the id that lists show. Raises `NotFound` or `Unavailable`."""
        _, grant = await self._found(wanted.removeprefix(GRANT))
        if grant is None:
            raise NotFound(f"there is no grant {wanted!r}")
        await self._drop(grant.id)
        return grant

    async def revoke_token(self, token: str, client: str) -> None:
        """End the grant of a token for its own client (RFC 7009). Other tokens are ignored."""
        _, grant = await self._found(grant_of(token))
        if grant is None or grant.client != client:
            return
        if not grant.expiry(token, time.time()):
            try:
                family_of(grant, token)
            except OAuthError:
                return
        await self._drop(grant.id)

    async def _drop(self, name: str) -> None:
        while (text := await self.kept.kept(f"grant:{name}")) is not None:
            if await self.kept.swap(f"grant:{name}", text, None, 0):
                break
        await self._end(f"{GRANT}{name}")

    async def _found(self, name: str | None) -> tuple[str | None, AccessGrant | None]:
        text = await self.kept.kept(f"grant:{name}") if name else None
        return text, msgspec.json.decode(text, type=AccessGrant) if text else None

    def forget(self, credential: str) -> None:
        self._live.pop(credential.removeprefix(GRANT), None)

    def live(self, credential: str) -> AccessGrant | None:
        """A grant of which this node knows, by the credential of its principal."""
        return self._live.get(credential.removeprefix(GRANT), (None, 0.0))[0]

    def of_seat(self, principal: str, office: str) -> AccessGrant | None:
        """A valid grant of which this node knows that is for the seat of a principal in an office."""
        now = time.time()
        grants = [grant for grant, _ in self._live.values() if (grant.person.id, grant.office) == (principal, office)]
        return next((grant for grant in grants if now < grant.expires and self.is_valid(grant)), None)

    async def by_access(self, token: str) -> tuple[AccessGrant, float] | None:
        """The grant of an access token, and when the token expires. Raises `Unavailable`."""
        if (name := grant_of(token)) is None:
            return None
        now = time.time()
        grant, checked = self._live.get(name, (None, 0.0))
        until = grant.expiry(token, now) if grant else None
        if grant is None or until is None or checked + _CHECKED_EVERY < time.monotonic():
            text, grant = await self._found(name)
            until = grant.expiry(token, now) if grant else None
            if grant is None or until is None:
                if grant is None:
                    self._live.pop(name, None)
                return None
            self._live[name] = grant, time.monotonic()
            if grant.used + _USE_NOTED_EVERY < now:
                with suppress(Unavailable):
                    await self._keep(msgspec.structs.replace(grant, used=now), text)
        return grant, until


def _text(grant: AccessGrant) -> str:
    return msgspec.json.encode(grant).decode()


class SignedIn(AuthenticationProvider):
    """Admits access tokens at the office that they are for, and leaves all other credentials to another provider.

    The bridge is a client of the Server, too: it connects with a *pass* in place of the token, for the principal and
    the office of the seat. A pass is known to this process alone, and ends with the last grant for its seat.
    """

    def __init__(self, provider: AuthenticationProvider, grants: AccessGrants) -> None:
        self._provider, self._grants = provider, grants
        self._passes: dict[tuple[str, str], str] = {}
        grants.is_valid = lambda grant: self._principal(grant, None) is not None

    async def authenticate(
        self, sio: Any, environ: dict[str, Any], auth: object, headers: Mapping[str, str]
    ) -> bool | Principal:
        for key in credentials(auth, headers):
            if is_access(key):
                return await self._of_token(key, str(environ.get("PATH_INFO", ""))) or False
            if key.startswith(_PASS) and (seated := self._of_seat(_seat_credential(key))):
                return seated
        return await self._provider.authenticate(sio, environ, auth, headers)

    def is_of_grant(self, principal: Principal) -> bool:
        return principal.credential.startswith(GRANT)

    def pass_for(self, principal: Principal, office: str) -> str:
        """The pass for the seat of a principal that a token has named."""
        self._passes = {seat: key for seat, key in self._passes.items() if self._grants.of_seat(*seat)}
        return self._passes.setdefault((principal.id, office), f"{_PASS}{secrets.token_urlsafe(32)}")

    def current(self, principal: Principal) -> Principal | None:
        if principal.credential.startswith(_PASS):
            return self._of_seat(principal.credential)
        if principal.credential.startswith(GRANT):
            grant = self._grants.live(principal.credential)
            return self._principal(grant, principal.expires) if grant else None
        return self._provider.current(principal)

    def valid(self, principal: Principal) -> bool:
        return self.current(principal) is not None

    def reload(self) -> None:
        self._provider.reload()

    def withhold(self, credential: str) -> None:
        self._grants.forget(credential)
        self._provider.withhold(credential)

    async def _of_token(self, token: str, path: str) -> Principal | None:
        found = await self._grants.by_access(token)
        if found is None or path.removesuffix("/") != f"/mcp/{found[0].office}":
            return None
        return self._principal(*found)

    def _of_seat(self, credential: str) -> Principal | None:
        shown = [seat for seat, key in self._passes.items() if hmac.compare_digest(_seat_credential(key), credential)]
        grant = self._grants.of_seat(*shown[0]) if shown else None
        principal = self._principal(grant, None) if grant else None
        return replace(principal, credential=credential) if principal else None

    def _principal(self, grant: AccessGrant, expires: float | None) -> Principal | None:
        """Who a grant stands for: nobody if the key that was shown for it has ended, or may not do this any more."""
        person = grant.person.principal
        if not grant.person.is_by_link:
            current = self._provider.current(person)
            if current is None or current.expired:
                return None
            person = current
        limits = [moment for moment in (expires, person.expires) if moment is not None]
        return Principal(
            person.id,
            offices=frozenset({escape(grant.office)}),
            roles=frozenset({"agent"}),
            names=frozenset({escape(agent_name(person))}),
            expires=min(limits, default=None),
            credential=f"{GRANT}{grant.id}",
        )


def _seat_credential(key: str) -> str:
    return f"{_PASS}{digest(key)[:16]}"
