"""The rules of signing in, without I/O: clients, redirects, requests for a code, PKCE, and tokens of a grant.

A *grant* is what a person has allowed: one client acts for one principal in one office (WIRE §11). It has one refresh
token, which is replaced at each use, and the access tokens of its last two refreshes. Of tokens, only digests are kept.
All tokens begin with the id of their grant. Refresh tokens also have a part that never changes: who shows a right one
with an old end has a token that was used before, so somebody has stolen it, or had it stolen.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote, urlencode

import msgspec

from a2c_smcp.errors import SMCPError
from a2c_smcp.protocol.escaping import web_host
from a2c_smcp.protocol.names import fault_in
from a2c_smcp.server.auth.authentication import Principal

SCOPE = "mcp"
"""The only scope: what an agent may do in the office of the token."""

ACCESS_LASTS = 3600.0
GRANT_LASTS = 90 * 86400.0
"""Seconds without a refresh after which a grant ends."""

_ACCESS, _REFRESH, _ID = "a2c_at_", "a2c_rt_", 32
_MOST_REDIRECTS = 16
_LONGEST = 2000
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")
_SAFE = re.compile(r"[!-~]+")
_UNSAFE = frozenset("\"'<>\\^`{|}#")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_LOOPBACK = re.compile(r"http://(127\.0\.0\.1|\[::1\]|localhost)(?::[0-9]{1,5})?(?=[/?]|$)")
_RUN_BY_BROWSERS = frozenset({"about", "blob", "data", "file", "filesystem", "ftp", "javascript", "vbscript"})


class OAuthError(SMCPError):
    """A refusal with a code of OAuth, such as `invalid_grant`."""

    code = 400
    title = "Sign-in refused"

    def __init__(self, error: str, about: str = "") -> None:
        super().__init__(about or error)
        self.error = error


class Client(msgspec.Struct, frozen=True):
    """An MCP client. `domain` is where its metadata document is; empty for one that has registered itself.

    Its name is what it says of itself.
    """

    id: str
    name: str
    redirects: tuple[str, ...]
    domain: str = ""


class GrantHolder(msgspec.Struct, frozen=True):
    """A principal as a grant keeps it: by the key that was shown (`credential`), or named by a one-time link."""

    id: str
    offices: frozenset[str] | None = None
    roles: frozenset[str] | None = None
    names: frozenset[str] | None = None
    expires: float | None = None
    credential: str = ""
    is_by_link: bool = False

    @classmethod
    def of(cls, principal: Principal) -> GrantHolder:
        return cls(*(getattr(principal, name) for name in cls.__struct_fields__[:-1]))

    @property
    def principal(self) -> Principal:
        return Principal(self.id, self.offices, self.roles, self.names, self.expires, self.credential)


class CodeRequest(msgspec.Struct, frozen=True):
    """A request of a client to a person: for a code for one office, sent to one of its redirects."""

    client: str
    redirect: str
    challenge: str
    office: str
    state: str | None = None

    @property
    def digest(self) -> str:
        return digest(msgspec.json.encode(self).decode())


class AccessGrant(msgspec.Struct, frozen=True):
    """Times are in epoch seconds. `accesses` are digests of access tokens, and when they expire."""

    id: str
    person: GrantHolder
    office: str
    client: str
    name: str
    domain: str
    created: float
    used: float
    expires: float
    family: str = ""
    refresh: str = ""
    accesses: tuple[tuple[str, float], ...] = ()

    def expiry(self, token: str, now: float) -> float | None:
        """When this access token expires; `None` if it is not valid."""
        shown = digest(token)
        found = [until for known, until in self.accesses if hmac.compare_digest(known, shown) and now < until]
        return found[0] if found and now < self.expires else None


class Tokens(NamedTuple):
    """The tokens that a client is given."""

    access: str
    refresh: str


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def renewed(grant: AccessGrant, now: float, family: str = "") -> tuple[AccessGrant, Tokens]:
    """The grant with a new refresh token, and one more access token. `family` is that of its earlier refresh token."""
    family = family or secrets.token_hex(16)
    new = secrets.token_urlsafe
    tokens = Tokens(f"{_ACCESS}{grant.id}{new(32)}", f"{_REFRESH}{grant.id}{family}{new(32)}")
    kept = ((digest(tokens.access), now + ACCESS_LASTS), *grant.accesses[:1])
    changed = {"family": digest(family), "refresh": digest(tokens.refresh), "accesses": kept}
    return msgspec.structs.replace(grant, **changed, used=now, expires=now + GRANT_LASTS), tokens


def grant_of(token: str) -> str | None:
    """The id of the grant that a token names; `None` for what is no token of a grant."""
    for kind in (_ACCESS, _REFRESH):
        if token.startswith(kind) and re.fullmatch(r"[0-9a-f]{32}", name := token[len(kind) : len(kind) + _ID]):
            return name
    return None


def is_access(token: str) -> bool:
    """True for the whole shape of an access token: an API key may begin with the same letters by chance."""
    return token.startswith(_ACCESS) and grant_of(token) is not None


def family_of(grant: AccessGrant, token: str) -> tuple[str, bool]:
    """The constant part of a refresh token of this grant, and true if it is the current token.

    Raises `OAuthError` for what never was one of its tokens.
    """
    family = token[len(_REFRESH) + _ID :][:_ID]
    if not token.startswith(_REFRESH) or not hmac.compare_digest(digest(family), grant.family):
        raise OAuthError("invalid_grant", "there is no such refresh token")
    return family, hmac.compare_digest(digest(token), grant.refresh)


# Clients and their redirects


def client_of(metadata: object, name: str, domain: str = "") -> Client:
    """The client that a registration or a metadata document describes. Raises `OAuthError`."""
    if not isinstance(metadata, dict):
        raise OAuthError("invalid_client_metadata", "the metadata of a client is a JSON object")
    redirects = metadata.get("redirect_uris")
    if not isinstance(redirects, list) or not 0 < len(redirects) <= _MOST_REDIRECTS:
        raise OAuthError("invalid_redirect_uri", f"redirect_uris: from 1 to {_MOST_REDIRECTS} are needed")
    if fault := next(filter(None, map(_redirect_fault, redirects)), None):
        raise OAuthError("invalid_redirect_uri", f"redirect_uris: {fault}")
    for field, needed in (("grant_types", "authorization_code"), ("response_types", "code")):
        shown = metadata.get(field)
        if shown and not (isinstance(shown, list) and needed in shown):
            raise OAuthError("invalid_client_metadata", f"{field}: a list with {needed} is needed")
    shown = metadata.get("client_name")
    return Client(name, shown[:100] if isinstance(shown, str) else "", tuple(redirects), domain)


def _redirect_fault(uri: object) -> str | None:
    if not isinstance(uri, str) or len(uri) > _LONGEST or not _SAFE.fullmatch(uri) or _UNSAFE & {*uri}:
        return "each is a URL in ASCII without a fragment"
    scheme, colon, _ = uri.partition(":")
    if not (colon and _SCHEME.fullmatch(scheme)) or scheme in _RUN_BY_BROWSERS:
        return f"{scheme[:40]} is no scheme that a client may return to"
    if scheme == "http" and not _LOOPBACK.match(uri):
        return "http is for this machine alone, use https"
    return None if scheme not in ("http", "https") or web_host(uri, _LONGEST) else "each is a whole URL"


def may_return_to(client: Client, redirect: str) -> bool:
    """True for a redirect of the client, exactly; one on the loopback interface may have any port (RFC 8252 §7.3)."""
    return any(redirect == known or _is_at_other_port(redirect, known) for known in client.redirects)


def is_loopback_redirect(uri: str) -> bool:
    return bool(_LOOPBACK.match(uri))


def _is_at_other_port(redirect: str, known: str) -> bool:
    shown, registered = _LOOPBACK.match(redirect), _LOOPBACK.match(known)
    if not (shown and registered and shown[1] == registered[1] and _redirect_fault(redirect) is None):
        return False
    return redirect[shown.end() :] == known[registered.end() :]


# Requests for a code


def request_of(query: Mapping[str, str], client: Client, public_url: str) -> CodeRequest:
    """The request in a query. Its redirect must have been checked. Raises `OAuthError`."""
    if query.get("response_type") != "code":
        raise OAuthError("unsupported_response_type", "response_type: only code is known")
    if query.get("response_mode", "query") != "query":
        raise OAuthError("invalid_request", "response_mode: only query is known")
    challenge = query.get("code_challenge", "")
    if query.get("code_challenge_method") != "S256" or not _CHALLENGE.fullmatch(challenge):
        raise OAuthError("invalid_request", "code_challenge: PKCE with S256 is needed")
    if len(query.get("state", "")) > _LONGEST:
        raise OAuthError("invalid_request", "state: is too long")
    office = office_of(query.get("resource", ""), public_url)
    return CodeRequest(client.id, query["redirect_uri"], challenge, office, query.get("state"))


def resource_of(office: str, public_url: str) -> str:
    return f"{public_url}/mcp/{quote(office, safe='')}"


def office_of(resource: str, public_url: str) -> str:
    """The office that a resource indicator names. Raises `OAuthError`."""
    prefix = f"{public_url}/mcp/"
    is_ours = resource[: len(prefix)].lower() == prefix.lower() and not {"?", "#"} & {*resource}
    name = unquote(resource[len(prefix) :].removesuffix("/")) if is_ours else ""
    if not name or fault_in(name):
        raise OAuthError("invalid_target", f"resource: must be the URL of an office, {prefix}OFFICE")
    return name


def answer_to(redirect: str, state: str | None, issuer: str, **facts: str) -> str:
    """Where the browser is sent with the answer to a request: the code or an error, with the state and the issuer."""
    kept = {} if state is None else {"state": state}
    return f"{redirect}{'&' if '?' in redirect else '?'}{urlencode({**facts, **kept, 'iss': issuer})}"


def check_verifier(verifier: str, challenge: str) -> None:
    """Raises `OAuthError` unless this is the secret behind the challenge (PKCE, S256)."""
    made = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode("utf-8", "replace")).digest()).decode().rstrip("=")
    if not _VERIFIER.fullmatch(verifier) or not hmac.compare_digest(made, challenge):
        raise OAuthError("invalid_grant", "code_verifier: does not belong to this code")
