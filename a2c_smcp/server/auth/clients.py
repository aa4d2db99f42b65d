"""Clients that want to sign in: by the address of their metadata document, or registered by themselves.

A document is fetched from public addresses only. The connection goes to an address that was checked, and redirects are
not followed. Its host is the *domain* that a client proves. A registration proves nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import secrets
import socket
import ssl
import time
from collections.abc import Mapping
from functools import cache
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from a2c_smcp.protocol.escaping import web_host
from a2c_smcp.server.auth.authorization import Client, OAuthError, client_of
from a2c_smcp.server.auth.grants import AccessGrants
from a2c_smcp.web import is_public

_LARGEST, _LONGEST = 64 * 1024, 2000
_PATIENCE = aiohttp.ClientTimeout(total=5.0)
_SHORTEST_KEPT, _LONGEST_KEPT = 60.0, 86400.0
_MOST_KEPT, _MOST_FETCHING = 256, 8
_MOST_REGISTERED = 1000
_UNUSED_LASTS, _USED_LASTS = 86400.0, 100 * 86400.0
_MAX_AGE = re.compile(r"max-age=([0-9]{1,9})")
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


class Clients:
    """The clients of a Server, by their ids."""

    def __init__(self, grants: AccessGrants) -> None:
        self._kept = grants.kept
        self._private = grants.settings.private_clients
        self._reads_documents = grants.settings.reads_documents
        self._documents: dict[str, tuple[Client, float]] = {}
        self._fetching = asyncio.Semaphore(_MOST_FETCHING)

    async def find(self, name: str) -> Client:
        """Raises `OAuthError`."""
        if self._reads_documents and name.startswith("https://"):
            return await self._documented(name)
        text = await self._kept.kept(f"client:{name}") if len(name) < 100 else None
        if text is None:
            raise OAuthError("invalid_client", "client_id: is unknown here, register first")
        return msgspec.json.decode(text, type=Client)

    async def register(self, metadata: object) -> Client:
        """A new client, which is forgotten after a day unless a person allows it something. Raises `OAuthError`."""
        client = client_of(metadata, f"client-{secrets.token_urlsafe(16)}")
        if len(await self._kept.kept_names("client:")) >= _MOST_REGISTERED:
            raise OAuthError("temporarily_unavailable", "too many clients are registered here")
        await self._kept.swap(f"client:{client.id}", None, _text(client), _UNUSED_LASTS)
        return client

    async def keep(self, name: str) -> None:
        """Keep a registered client for longer: it is in use."""
        if (text := await self._kept.kept(f"client:{name}")) is not None:
            await self._kept.swap(f"client:{name}", text, text, _USED_LASTS)

    async def _documented(self, url: str) -> Client:
        client, until = self._documents.get(url, (None, 0.0))
        if client is None or until < time.monotonic():
            if self._fetching.locked():
                raise OAuthError("temporarily_unavailable", "too many documents of clients are being fetched")
            async with self._fetching:
                client, lasts = await self._fetch(url)
            self._documents.pop(url, None)
            while len(self._documents) >= _MOST_KEPT:
                del self._documents[next(iter(self._documents))]
            self._documents[url] = client, time.monotonic() + lasts
        return client

    async def _fetch(self, url: str) -> tuple[Client, float]:
        """The client of a document, and for how many seconds it may be kept. Raises `OAuthError`."""
        host = _host_of(url)
        resolver = _CheckedResolver(self._private)
        try:
            resolver.check(host, [host] if _is_address(host) else [])
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(
                        resolver=resolver, limit=1, use_dns_cache=False, ssl=_certificates()
                    ),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    timeout=_PATIENCE,
                ) as session,
                session.get(url, allow_redirects=False, headers={"accept": "application/json"}) as response,
            ):
                body = b""
                async for part in response.content.iter_any():
                    body += part
                    if len(body) > _LARGEST:
                        raise OAuthError("invalid_client", "client_id: its metadata document is too large")
                status, cached = response.status, response.headers.get("cache-control", "")
        except _FAILURES:
            raise OAuthError("invalid_client", "client_id: its metadata document cannot be fetched") from None
        if status != 200:
            raise OAuthError("invalid_client", f"client_id: its metadata document is answered with status {status}")
        try:
            metadata = msgspec.json.decode(body)
        except msgspec.DecodeError:
            raise OAuthError("invalid_client", "client_id: its metadata document is not JSON") from None
        if not isinstance(metadata, Mapping) or metadata.get("client_id") != url or "client_secret" in metadata:
            raise OAuthError("invalid_client", "client_id: its metadata document is about another client")
        age = _MAX_AGE.search(cached)
        lasts = 0.0 if "no-store" in cached else float(age[1]) if age else 0.0
        return client_of(metadata, url, host), min(max(lasts, _SHORTEST_KEPT), _LONGEST_KEPT)


def _host_of(url: str) -> str:
    """The host of an address that may be that of a document. Raises `OAuthError`."""
    parts = urlsplit(url) if web_host(url, _LONGEST) and url.isascii() and not {"@", "#", " ", "\\"} & {*url} else None
    if parts is None or parts.port == 0:
        raise OAuthError("invalid_client", "client_id: is no address of a metadata document")
    if parts.path in ("", "/") or {".", ".."} & {*parts.path.split("/")}:
        raise OAuthError("invalid_client", "client_id: needs a path without dots")
    return str(parts.hostname)


@cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class _CheckedResolver(AbstractResolver):
    """Looks names up, and gives the connection addresses that were checked. Addresses in a URL never come here."""

    def __init__(self, private: frozenset[str]) -> None:
        self._private = private

    def check(self, host: str, addresses: list[str]) -> None:
        """Raises `OSError` unless all are public, or the operator has listed the host."""
        if host not in self._private and not all(map(is_public, addresses)):
            raise OSError("that is an address of a private network")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        self.check(host, [str(address[0]) for *_, address in found])
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=kind,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, *_, address in found
        ]

    async def close(self) -> None:
        """Nothing is open."""


def _text(client: Client) -> str:
    return msgspec.json.encode(client).decode()
