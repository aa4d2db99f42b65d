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
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any
from urllib.parse import parse_qsl

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.utils import issuers_match
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER

from a2c_smcp.mcp_host.certificates import certificates
from a2c_smcp.mcp_host.failures import SignInFailed, in_brief
from a2c_smcp.mcp_host.sign_in.addresses import check_address, check_metadata
from a2c_smcp.mcp_host.sign_in.challenge import Challenge
from a2c_smcp.mcp_host.sign_in.record import Learn
from a2c_smcp.protocol.visible import escaped

__all__ = ["Flow", "ProviderUnreachable", "RefreshRefused"]

_TIMEOUT = 20.0  # seconds for one request
_BODY_LIMIT = 256 * 1024  # bytes
_SHOWN = 300
_NO_PROVIDER = "the server names no authorization server: it may want a key, in the headers of its configuration"
_SECRETS = (
    *("access_token", "refresh_token", "id_token", "token", "code", "code_verifier", "state"),
    *("client_secret", "client_assertion", "registration_access_token"),
)
_REFRESH = "refresh_token"
_PROBE = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
_PROBE_HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
_in_flow = ContextVar("in_flow", default=False)


class ProviderUnreachable(SignInFailed):
    """The authorization server does not answer, or is out of order. It may be tried again."""


class RefreshRefused(SignInFailed):
    """The refresh token is not accepted any more."""


class Flow:
    """The flows of one server. `url` is the MCP server's, `issuer` the one authorization server that may be used."""

    def __init__(self, url: str, scopes: list[str], learn: Learn, issuer: str | None) -> None:
        self._url, self._scopes, self._learn, self._issuer = url, scopes, learn, issuer

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
            raise SignInFailed(f"the server cannot be reached: {_said(error) or type(error).__name__}") from None
        return Challenge.of(request, response) or Challenge()

    async def post(self, url: str, data: dict[str, str], headers: dict[str, str]) -> httpx2.Response:
        """Send a form to the authorization server."""
        async with self._client() as client:
            return await self._sent(client, httpx2.Request("POST", url, data=data, headers=headers))

    async def _drive(self, provider: OAuthClientProvider, challenge: Challenge | None) -> None:
        version = {MCP_PROTOCOL_VERSION_HEADER: challenge.revision} if challenge and challenge.revision else {}
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
            raise SignInFailed(_NO_PROVIDER if is_guess else _said(error)) from None
        finally:
            await generator.aclose()
            _in_flow.set(False)

    def _client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(verify=certificates(), timeout=_TIMEOUT, follow_redirects=False)

    async def _sent(self, client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
        check_address(str(request.url), "an address of its authorization server", self._url)
        self._learn(_secrets_in(request))
        response = await self._send(client, request)
        self._learn(_secrets_of(response.content))
        if request.method == "GET" and response.is_success:
            check_metadata(response.content, self._url)
            response = self._with_issuer(response)
        elif _grant(request) == _REFRESH and (response.is_server_error or response.status_code in (408, 429)):
            raise ProviderUnreachable(f"its authorization server answers HTTP {response.status_code}")
        return response

    async def _send(self, client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and read its body within limits of time and size."""
        request.headers["Accept-Encoding"] = "identity"
        place = request.url.host
        try:
            async with asyncio.timeout(_TIMEOUT):
                response = await client.send(request, stream=True)
                try:
                    body = b"".join([part async for part in _bounded(response)])
                finally:
                    await response.aclose()
        except TimeoutError:
            raise ProviderUnreachable(f"{place} did not answer within {_TIMEOUT:g} s") from None
        except httpx2.HTTPError as error:
            raise ProviderUnreachable(f"{place} cannot be reached: {_said(error) or type(error).__name__}") from None
        except _Unreadable as error:
            raise SignInFailed(f"the answer of {place} {error}") from None
        read = httpx2.Response(response.status_code, headers=response.headers, content=body, request=request)
        read.next_request = response.next_request
        return read

    def _with_issuer(self, response: httpx2.Response) -> httpx2.Response:
        """Leave only the issuer of our client among the authorization servers that a server names."""
        wanted, document = self._issuer, _object(response.content)
        named = document.get("authorization_servers")
        if wanted is None or not isinstance(named, list):
            return response
        document["authorization_servers"] = [each for each in named if issuers_match(str(each), wanted)]
        if not document["authorization_servers"]:
            raise SignInFailed(f"the server names another authorization server than that of this client, {wanted}")
        return httpx2.Response(response.status_code, json=document, request=response.request)

    def _check_issuer(self, provider: OAuthClientProvider, request: httpx2.Request) -> None:
        """Send nothing of a client to another authorization server than the one that it belongs to."""
        wanted, found = self._issuer, provider.context.oauth_metadata
        if wanted is None or request.method == "GET":
            return
        if found is None or not issuers_match(str(found.issuer), wanted):
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


def _said(error: Exception) -> str:
    return escaped(in_brief(str(error).strip(), _SHOWN))


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _form(request: httpx2.Request) -> dict[str, str]:
    try:
        return dict(parse_qsl(request.content.decode()))
    except (httpx2.RequestNotRead, UnicodeDecodeError):
        return {}


def _grant(request: httpx2.Request) -> str | None:
    return _form(request).get("grant_type")


def _secrets_in(request: httpx2.Request) -> Iterator[str]:
    form = _form(request)
    yield from (form[name] for name in _SECRETS if form.get(name))
    if credential := request.headers.get("authorization", "").partition(" ")[2]:
        yield credential


def _secrets_of(body: bytes) -> Iterator[str]:
    document = _object(body)
    yield from (value for name in _SECRETS if isinstance(value := document.get(name), str))


class _NoTracebacks(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not _in_flow.get()


logging.getLogger(OAuthClientProvider.__module__).addFilter(_NoTracebacks())
