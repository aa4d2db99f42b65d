"""Which names announce a secret: of flags, of variables, of fields."""

from __future__ import annotations

import re

__all__ = ["is_public", "is_secret_name"]

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_SECRET = frozenset(
    (
        "apikey",
        "auth",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "creds",
        "dsn",
        "jwt",
        "key",
        "keys",
        "otp",
        "pass",
        "passphrase",
        "passwd",
        "password",
        "passwords",
        "pat",
        "pin",
        "pwd",
        "secret",
        "secrets",
        "sig",
        "signature",
        "token",
        "tokens",
    )
)
_SECRET_ENDS = ("apikey", "passphrase", "passwd", "password", "secret", "token")  # githubtoken, clientsecret
_NOT_THE_SECRET_ITSELF = frozenset(
    (
        "count",
        "dir",
        "directory",
        "endpoint",
        "expiry",
        "file",
        "id",
        "length",
        "limit",
        "method",
        "mode",
        "name",
        "path",
        "size",
        "timeout",
        "ttl",
        "type",
        "uri",
        "url",
    )
)
_QUANTITY = frozenset(("max", "min", "num"))  # --max-tokens

_PUBLIC = frozenset(
    (
        "accept",
        "accept-encoding",
        "accept-language",
        "content-type",
        "debug",
        "home",
        "lang",
        "language",
        "log_level",
        "logname",
        "node_env",
        "path",
        "pwd",
        "pythonioencoding",
        "pythonunbuffered",
        "pythonutf8",
        "shell",
        "term",
        "tmpdir",
        "tz",
        "user",
        "user-agent",
    )
)


def is_secret_name(name: str) -> bool:
    """`--api-key`, `GITHUB_TOKEN`, `clientSecret`, but neither `--token-file` nor `--max-tokens`."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _NOT_THE_SECRET_ITSELF or words[0] in _QUANTITY:
        return False
    return any(word in _SECRET or word.endswith(_SECRET_ENDS) for word in words)


def is_public(name: str) -> bool:
    """Variables and headers whose values mean nothing to a thief and turn up everywhere."""
    return name.lower() in _PUBLIC or name.startswith("LC_")
