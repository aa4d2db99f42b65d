"""Drives one flow of an SDK provider: sends its requests with limits of our own, and checks what comes back.

A provider is an `httpx2.Auth`: its public generator `async_auth_flow` yields requests and is sent their responses. The
request that it is asked to authenticate is never sent here. Its first answer is the refusal that made the flow
necessary; when the provider yields it once more, or after a refresh for the first time, the flow is over and the token
is in the provider's context.

Each address is checked before anything is sent to it, each secret is given to the mask before the SDK sees it, bodies
are bounded, and a flow that fails raises `SignInFailed` with words for the owner. The SDK logs such failures with
tracebacks and with states and codes in them: inside a flow of ours these records are dropped.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp_types import INTERNAL_ERROR

from a2c_smcp.errors import kind_of
from a2c_smcp.mcp_host.failures import AuthRequired, SignInCause, SignInFailed, TokenRefused, if_short
from a2c_smcp.mcp_host.sign_in.addresses import Addresses, ProviderUnreachable, certificates
from a2c_smcp.mcp_host.sign_in.registration import Learn, SignInRecord
from a2c_smcp.protocol.escaping import escaped, one_line

logger = logging.getLogger(__name__)

# What an authorization server says of itself.

_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint")
_CAUSES: dict[type[OAuthFlowError], SignInCause] = {OAuthRegistrationError: "registration"}


def is_same_issuer(one: str, other: str) -> bool:
    """True if two issuers are equal as text. A host may end with a slash (RFC 8414 section 3.3)."""
    shorter, longer = sorted((one, other), key=len)
    parts = urlsplit(shorter)
    return one == other or (longer == f"{shorter}/" and shorter == f"{parts.scheme}://{parts.netloc}")


async def check_metadata(document: dict[str, Any], addresses: Addresses, issuer: str | None) -> None:
    """Raise `SignInFailed` if a discovery document names an address that may not be used.

    The SDK would skip such a document without a word, and guess addresses on the MCP server. An honest page with a
    token endpoint of a thief would give the thief its code: both are on the site of their issuer, unless that is the
    `issuer` which the owner has named.
    """
    named = str(document.get("issuer", ""))
    if named:
        addresses.check(named, "the issuer of its authorization server")
    for name in _ENDPOINTS:
        if document.get(name) is None:
            continue
        endpoint, what = str(document[name]), f"the {name} of its authorization server"
        if name == "authorization_endpoint":
            await addresses.check_page(endpoint, what, named)
        else:
            addresses.check(endpoint, what)
        host, site = urlsplit(endpoint).hostname, urlsplit(named).hostname
        if named and host != site and not (issuer and is_same_issuer(named, issuer)):
            hint = f'name it, if you trust it, in its configuration: "auth": {{"issuer": {one_line(named)}}}'
            raise SignInFailed(f"{what} is on another site, {host}, than {site}; {hint}", cause="issuer")
    methods = document.get("code_challenge_methods_supported")
    if isinstance(methods, list) and "S256" not in methods:
        raise SignInFailed("its authorization server does not support PKCE with S256, which protects the sign-in")


# Why a server refused a request: its status, and what its `WWW-Authenticate` header asks for.

_MISSING_SCOPE = "insufficient_scope"
_REVISION = "MCP-Protocol-Version"
_FIELD = re.compile(r'(?<!\w)(\w+)=(?:"([^"]+)"|([^\s,]+))')  # in the header: tried once for each word, not each letter


class Challenge(NamedTuple):
    """`revision` is the MCP revision of the refused request."""

    status: int = httpx2.codes.UNAUTHORIZED
    scopes: tuple[str, ...] | None = None
    metadata_url: str | None = None
    lacks_scope: bool = False
    revision: str | None = None

    @classmethod
    def of(cls, request: httpx2.Request, response: httpx2.Response) -> Self | None:
        """Return the challenge in a response; `None` if the response is no refusal."""
        if response.status_code not in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
            return None
        header = response.headers.get("WWW-Authenticate", "")
        fields = {name: quoted or plain for name, quoted, plain in reversed(_FIELD.findall(header))}  # the first counts
        scope = fields.get("scope")
        return cls(
            status=response.status_code,
            scopes=None if scope is None else tuple(scope.split()),
            metadata_url=fields.get("resource_metadata"),
            lacks_scope=response.status_code == httpx2.codes.FORBIDDEN and fields.get("error") == _MISSING_SCOPE,
            revision=request.headers.get(_REVISION),
        )

    def response(self, scopes: Iterable[str]) -> httpx2.Response:
        """Return the refusal as the SDK expects it, with the scopes of the configuration added."""
        asked = list(dict.fromkeys((*scopes, *(self.scopes or ()))))
        fields = {
            "error": _MISSING_SCOPE if self.lacks_scope else None,
            "scope": " ".join(asked) if asked or self.scopes is not None else None,
            "resource_metadata": self.metadata_url,
        }
        header = ", ".join(f'{name}="{value}"' for name, value in fields.items() if value)
        return httpx2.Response(self.status, headers={"WWW-Authenticate": f"Bearer {header}".strip()})


# The answer to a single request that a server refuses for want of a right, while the session goes on.
#
# The SDK does not say why a request failed with an HTTP status. So the response gets a JSON-RPC error as its body, with
# the reason behind a mark that no server can know; the SDK's error then becomes `TokenRefused`.

_MARK = f"[{secrets.token_hex(8)}] "


async def refused_answer(request: httpx2.Request, response: httpx2.Response, failure: AuthRequired) -> httpx2.Response:
    """Return the response with the reason as its body. Without a request to answer it stays as it is."""
    try:
        request_id = json.loads(request.content).get("id")
    except (httpx2.RequestNotRead, ValueError, AttributeError):
        return response
    if not isinstance(request_id, str | int):
        return response
    await response.aclose()
    error = {"code": INTERNAL_ERROR, "message": _MARK + failure.reason}
    answer = {"jsonrpc": "2.0", "id": request_id, "error": error}
    return httpx2.Response(response.status_code, json=answer, request=request)


def reason_in(response: httpx2.Response) -> str | None:
    """Return the marked reason in the body of a response that was read."""
    try:
        message = response.json()["error"]["message"]
    except (httpx2.ResponseNotRead, ValueError, LookupError, TypeError):
        return None
    return message if isinstance(message, str) and message.startswith(_MARK) else None


def token_refused(text: str) -> TokenRefused | None:
    """Return the failure that one of our own error answers stands for; `None` for any other text."""
    _, mark, reason = text.partition(_MARK)
    return TokenRefused(reason) if mark else None


_TIMEOUT, _CONNECT_TIMEOUT = 20.0, 6.0  # seconds for one request
_NAME = "a2c_name"
_ERRORS = {
    *("invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type"),
    *("invalid_scope", "invalid_target", "invalid_redirect_uri", "invalid_client_metadata", "access_denied"),
    *("invalid_software_statement", "unapproved_software_statement", "server_error", "temporarily_unavailable"),
}
_BODY_LIMIT = 256 * 1024  # bytes
_NO_PROVIDER = "the server names no authorization server: it may want a key, in the headers of its configuration"
_SECRETS = (
    *("access_token", "refresh_token", "id_token", "token", "code", "code_verifier", "state"),
    *("client_secret", "client_assertion", "registration_access_token"),
)
_REFRESH = "refresh_token"
_PROBE = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
_PROBE_HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
_in_flow = ContextVar("in_flow", default=False)


class RefreshRefused(SignInFailed):
    """The refresh token is not accepted any more."""


class Flow:
    """The flows of one server. `url` is the MCP server's, `issuer` the one authorization server that may be used."""

    def __init__(self, url: str, scopes: list[str], learn: Learn, issuer: str | None) -> None:
        self._url, self._scopes, self._learn, self._issuer = url, scopes, learn, issuer
        self.addresses = Addresses(url, issuer)

    async def answer(self, provider: OAuthClientProvider, challenge: Challenge) -> None:
        """Get a new token, as a challenge demands: from a person, or for the client itself. Raises `SignInFailed`."""
        await self._drive(provider, challenge)

    async def refresh(self, provider: OAuthClientProvider) -> None:
        """Refresh the token. Raises `RefreshRefused`, or `ProviderUnreachable` if it may be tried again."""
        await self._drive(provider, None)
        if provider.context.current_tokens is None:
            raise RefreshRefused("the authorization server refuses to refresh the token")

    async def probe(self, headers: dict[str, str], *, posts: bool) -> Challenge:
        """Ask the MCP server how it wants to be signed in to. If it says nothing, addresses are looked up by rule."""
        usual = _PROBE_HEADERS if posts else {"Accept": "text/event-stream"}
        request = httpx2.Request(
            "POST" if posts else "GET", self._url, headers={**usual, **headers}, content=_PROBE if posts else None
        )
        try:
            async with asyncio.timeout(_TIMEOUT), self._client() as client:
                response = await client.send(request, stream=True)
                await response.aclose()
        except (TimeoutError, httpx2.HTTPError) as error:
            raise SignInFailed(f"the server cannot be reached: {_said(error) or kind_of(type(error))}") from None
        return Challenge.of(request, response) or Challenge()

    async def post(self, url: str, data: dict[str, str], headers: dict[str, str]) -> httpx2.Response:
        """Send a form to the authorization server."""
        async with self._client() as client:
            return await self._sent(client, httpx2.Request("POST", url, data=data, headers=headers))

    async def _drive(self, provider: OAuthClientProvider, challenge: Challenge | None) -> None:
        version = {_REVISION: challenge.revision} if challenge and challenge.revision else {}
        request = httpx2.Request("POST", self._url, headers=version)
        refusal = challenge.response(self._scopes) if challenge else None
        _in_flow.set(True)
        generator = provider.async_auth_flow(request)
        try:
            async with self._client() as client:
                outgoing = await anext(generator)
                while True:
                    if outgoing is request:
                        if refusal is None:
                            return
                        response, refusal = refusal, None
                        response.request = request
                    else:
                        self._check_issuer(provider, outgoing)
                        response = await self._sent(client, outgoing)
                    outgoing = await generator.asend(response)
        except StopAsyncIteration:
            return
        except OAuthFlowError as error:
            found = provider.context.oauth_metadata or provider.context.protected_resource_metadata
            is_guess = not found and isinstance(error, OAuthRegistrationError | OAuthTokenError)
            raise SignInFailed(_NO_PROVIDER) if is_guess else _failure_of(error) from None
        finally:
            await generator.aclose()
            _in_flow.set(False)

    def _client(self) -> httpx2.AsyncClient:
        """Return a client that keeps no connection: one to an address was made for a single name."""
        return httpx2.AsyncClient(
            verify=certificates(),
            timeout=httpx2.Timeout(_TIMEOUT, connect=_CONNECT_TIMEOUT),
            limits=httpx2.Limits(max_keepalive_connections=0),
            event_hooks={"response": [_with_name]},
        )

    async def _sent(self, client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
        self._learn(_secrets_in(request))
        response = await self._send(client, request)
        document = _object(response.content)
        self._learn(value for name in _SECRETS if isinstance(value := document.get(name), str))
        if request.method == "GET" and response.is_success:
            await check_metadata(document, self.addresses, self._issuer)
            response = await self._with_issuer(response)
        elif _form(request).get("grant_type") == _REFRESH and (
            response.is_server_error or response.status_code in (408, 429)
        ):
            raise ProviderUnreachable(f"its authorization server answers HTTP {response.status_code}")
        return response

    async def _send(self, client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and read its body within limits of time and size."""
        request.headers["Accept-Encoding"] = "identity"
        place = request.url.host
        try:
            async with asyncio.timeout(_TIMEOUT):
                response = await self._connected(client, request)
                try:
                    body = b"".join([part async for part in _bounded(response)])
                finally:
                    await response.aclose()
        except TimeoutError:
            raise ProviderUnreachable(f"{place} did not answer within {_TIMEOUT:g} s") from None
        except httpx2.HTTPError as error:
            raise ProviderUnreachable(f"{place} cannot be reached: {_said(error) or kind_of(type(error))}") from None
        except _Unreadable as error:
            raise SignInFailed(f"the answer of {place} {error}") from None
        content = body if response.is_success else _error_in(body)
        read = httpx2.Response(response.status_code, headers=response.headers, content=content, request=request)
        read.next_request = response.next_request
        return read

    async def _connected(self, client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
        """Send a request to an address that was checked, under the name that it was made for."""
        name = request.url
        addresses = await self.addresses.resolve(str(name), "an address of its authorization server")
        request.extensions |= {"sni_hostname": name.raw_host.decode(), _NAME: name}
        for address in addresses[:-1]:
            request.url = name.copy_with(host=address)
            with suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
                return await client.send(request, stream=True)
        if addresses:
            request.url = name.copy_with(host=addresses[-1])
        return await client.send(request, stream=True)

    async def _with_issuer(self, response: httpx2.Response) -> httpx2.Response:
        """Leave only the issuer of our client among the authorization servers that a server names."""
        wanted, document = self._issuer, _object(response.content)
        named = document.get("authorization_servers")
        if not isinstance(named, list) or not named:
            return response
        if wanted is None:
            await self.addresses.resolve(str(named[0]), "its authorization server", str(named[0]))
            return response
        document["authorization_servers"] = [issuer for issuer in named if is_same_issuer(str(issuer), wanted)]
        if not document["authorization_servers"]:
            raise SignInFailed(f"the server names another authorization server than that of this client, {wanted}")
        return httpx2.Response(response.status_code, json=document, request=response.request)

    def _check_issuer(self, provider: OAuthClientProvider, request: httpx2.Request) -> None:
        """Send nothing of a client to another authorization server than the one that it belongs to."""
        wanted, found = self._issuer, provider.context.oauth_metadata
        if wanted is None or request.method == "GET":
            return
        if not is_same_issuer(str(found.issuer) if found else _origin(self._url), wanted):
            raise SignInFailed(f"the server's sign-in is not that of this client, {wanted}")


class _Unreadable(Exception):
    pass


async def _bounded(response: httpx2.Response) -> Any:
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise _Unreadable("is compressed, which was not asked for")
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > _BODY_LIMIT:
            raise _Unreadable(f"has more than {_BODY_LIMIT} bytes")
        yield part


async def _with_name(response: httpx2.Response) -> None:
    """Give the request its own address back, to which a redirect may be relative."""
    response.request.url = response.request.extensions.get(_NAME, response.request.url)


def _error_in(body: bytes) -> bytes:
    """Return what may be shown of a refusal: an error code of OAuth. The body may be that of any server."""
    error = _object(body).get("error")
    return json.dumps({"error": error}).encode() if isinstance(error, str) and error in _ERRORS else b""


def _origin(url: str) -> str:
    """Return the issuer of an MCP server that describes no authorization server, and so is its own."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _failure_of(error: OAuthFlowError) -> SignInFailed:
    """The first line says what is wrong, the others quote the body."""
    error = type(error)(str(error).strip().partition("\n")[0])
    is_issuer = "issuer" in str(error)  # the SDK has no class for it
    return SignInFailed(_said(error), cause="issuer" if is_issuer else _CAUSES.get(type(error), ""))


def _said(error: Exception) -> str:
    return escaped(if_short(str(error).strip()))


def _object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; empty if there is none."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _form(request: httpx2.Request) -> dict[str, str]:
    try:
        return dict(parse_qsl(request.content.decode()))
    except (httpx2.RequestNotRead, UnicodeDecodeError):
        return {}


def _secrets_in(request: httpx2.Request) -> Iterator[str]:
    form = _form(request)
    yield from (form[name] for name in _SECRETS if form.get(name))
    if credential := request.headers.get("authorization", "").partition(" ")[2]:
        yield credential


class _NoTracebacks(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not _in_flow.get()


logging.getLogger(OAuthClientProvider.__module__).addFilter(_NoTracebacks())

# Gives tokens back to the authorization server (RFC 7009).


async def revoke(flow: Flow, provider: OAuthClientProvider, record: SignInRecord) -> bool:
    """Revoke all tokens; return False if that failed. The refresh token comes first: it lives longer."""
    endpoint = record.provider.revocation_endpoint if record.provider else None
    if endpoint is None:
        return False
    context = provider.context
    client = context.client_info = await context.storage.get_client_info()
    tokens = {"refresh_token": record.tokens.refresh_token, "access_token": record.tokens.access_token}
    try:
        for kind, token in tokens.items():
            if token:
                data = {"token": token, "token_type_hint": kind, **({"client_id": client.client_id} if client else {})}
                data, headers = context.prepare_token_auth(data, {})
                response = await flow.post(str(endpoint), data, headers)
                if not response.is_success:
                    raise SignInFailed(f"HTTP {response.status_code}")
    except (SignInFailed, OAuthTokenError) as error:
        reason = error.reason if isinstance(error, SignInFailed) else str(error)
        logger.warning("a token could not be revoked: %s", reason)
        return False
    return True
