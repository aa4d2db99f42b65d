"""The input of checks (`Situation`, with a probe of a Server) and their result (`Finding`)."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import aiohttp

from a2c_smcp.cli.options import exposed
from a2c_smcp.cli.setup_files import DEFAULT_HOST, DEFAULT_PORT, UpInfo
from a2c_smcp.computer.configuration.files import Configuration
from a2c_smcp.connection import Connection
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import SMCPError

Severity: TypeAlias = Literal["ok", "warning", "problem"]
"""With a problem, it would not work."""


@dataclass(frozen=True)
class Finding:
    """One sentence on what was found, and one on what to do about it."""

    level: Severity
    what: str
    remedy: str = ""


def ok(what: str) -> Finding:
    return Finding("ok", what)


def warning(what: str, remedy: str) -> Finding:
    return Finding("warning", what, remedy)


def problem(what: str, remedy: str) -> Finding:
    return Finding("problem", what, remedy)


@dataclass(frozen=True, kw_only=True)
class Situation:
    """`files` are used, `aside` are not; `faults`: errors in the files; `up`: where an `a2c-smcp up` runs."""

    files: tuple[Path, ...] = ()
    aside: tuple[Path, ...] = ()
    faults: tuple[str, ...] = ()
    configuration: Configuration = field(default_factory=Configuration)
    no_input: bool = False
    policy: Path | None = None
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    up: UpInfo | None = None
    probe: ServerProbe | None = None


Check: TypeAlias = Callable[[Situation], Iterable[Finding] | Awaitable[Iterable[Finding]]]


_PATIENCE = 10.0
_HTTP = {"ws": "http", "wss": "https"}


@dataclass(frozen=True)
class Certificate:
    """When it expires, in epoch seconds; or why it is not accepted, with OpenSSL's error number."""

    expires: float = 0.0
    fault: str = ""
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class ServerProbe:
    """`health`: status of /healthz; `ahead`: seconds that our clock is ahead of the Server's.

    `None` means unknown; a `refusal` of `None` means that the Server accepted the connection.
    """

    place: str
    has_key: bool
    health: int | None = None
    ahead: float | None = None
    certificate: Certificate | None = None
    refusal: SMCPError | None = None
    exposure: tuple[str, str] | None = None


async def probe_server(endpoint: Endpoint, *, api_key: str | None) -> ServerProbe:
    """Ask for health, certificate and clock, and connect once, without joining an office."""
    certificate, (health, ahead), refusal = await asyncio.gather(
        _certificate(endpoint), _health(endpoint), _knock(endpoint)
    )
    return ServerProbe(
        place=endpoint.shown_url,
        has_key=bool(api_key),
        health=health,
        ahead=ahead,
        certificate=certificate,
        refusal=refusal,
        exposure=exposed(endpoint.url, api_key),
    )


async def _knock(endpoint: Endpoint) -> SMCPError | None:
    try:
        async with Connection(endpoint, lambda event, data: None):
            return None
    except SMCPError as error:
        return error


async def _health(endpoint: Endpoint) -> tuple[int | None, float | None]:
    """The status of /healthz, and how far our clock is ahead."""
    parts = urlsplit(endpoint.url)
    address = parts._replace(scheme=_HTTP.get(parts.scheme, parts.scheme), path="/healthz", query="").geturl()
    try:
        async with (
            aiohttp.ClientSession(trust_env=not endpoint.is_local, timeout=aiohttp.ClientTimeout(_PATIENCE)) as http,
            http.get(address, ssl=endpoint.ssl or True, proxy=endpoint.proxy) as answer,
        ):
            return answer.status, _ahead(answer.headers.get("Date", ""))
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None, None


def _ahead(date: str) -> float | None:
    try:
        return time.time() - parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return None


async def _certificate(endpoint: Endpoint) -> Certificate | None:
    """The certificate of the Server, if it uses TLS and is not behind a proxy of ours."""
    parts = urlsplit(endpoint.url)
    if parts.scheme not in ("https", "wss") or endpoint.proxy:
        return None
    context = endpoint.ssl or ssl.create_default_context()
    with suppress(OSError, TimeoutError):
        try:
            async with asyncio.timeout(_PATIENCE):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port or 443, ssl=context)
        except ssl.SSLCertVerificationError as error:
            return Certificate(fault=error.verify_message, number=error.verify_code)
        expires = ssl.cert_time_to_seconds(writer.get_extra_info("peercert")["notAfter"])
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return Certificate(float(expires))
    return None
