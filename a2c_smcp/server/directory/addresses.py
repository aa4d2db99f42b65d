"""Where a Valkey or Redis is: what its URL says, and how to connect there."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from a2c_smcp.errors import ConfigError

__all__ = ["Address", "masked"]

_PLAIN, _SECURE, _LOCAL = ("redis", "valkey"), ("rediss", "valkeys"), ("unix",)
_PORT = 6379


def masked(url: str) -> str:
    """The URL without its user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


@dataclass(frozen=True, slots=True)
class Address:
    """A host and port, or the path of a Unix socket; the commands that begin a conversation; and TLS, if any."""

    host: str
    port: int
    path: str
    greeting: tuple[tuple[str, ...], ...]
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def read(cls, url: str) -> Address:
        """Raises `ConfigError` for what is no such URL."""
        parts = urlsplit(url)
        if parts.scheme not in (*_PLAIN, *_SECURE, *_LOCAL):
            raise ConfigError("the URL of a Valkey or Redis begins with redis://, rediss:// or unix://")
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        is_local = parts.scheme in _LOCAL
        database = options.get("db", "" if is_local else parts.path.strip("/"))
        try:
            port = parts.port or _PORT
            tls = _tls(options) if parts.scheme in _SECURE else None
        except (ValueError, OSError) as error:
            raise ConfigError(f"not the URL of a Valkey or Redis, {error}") from None
        if database and not database.isdecimal():
            raise ConfigError(f"not the URL of a Valkey or Redis, {database!r} is no number of a database")
        greeting = (*_login(parts.username, parts.password), *((("SELECT", database),) if int(database or 0) else ()))
        return cls(parts.hostname or "localhost", port, unquote(parts.path) if is_local else "", greeting, tls)

    async def dial(self, protocol: asyncio.Protocol) -> None:
        """Raises `OSError`."""
        loop = asyncio.get_running_loop()
        if self.path:
            await loop.create_unix_connection(lambda: protocol, self.path)
        else:
            await loop.create_connection(lambda: protocol, self.host, self.port, ssl=self.tls)


def _login(user: str | None, password: str | None) -> tuple[tuple[str, ...], ...]:
    if password is None:
        return ()
    return (("AUTH", *((unquote(user),) if user else ()), unquote(password)),)


def _tls(options: Mapping[str, str]) -> ssl.SSLContext:
    """redis-py's names: what people have in their URLs already."""
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"), capath=options.get("ssl_ca_path"))
    if options.get("ssl_check_hostname", "true").lower() in ("false", "no", "0"):
        context.check_hostname = False
    if options.get("ssl_cert_reqs") == "none":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate := options.get("ssl_certfile"):
        context.load_cert_chain(certificate, options.get("ssl_keyfile"))
    return context
