"""Which names announce a secret: of flags, of variables, of headers, of fields. Names are compared word by word."""

from __future__ import annotations

import re

__all__ = ["hints_at_secret", "is_public", "is_secret_name", "same_name"]

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET = _words(
    "token tokens key keys secret secrets password passwords auth credential credentials cookie cookies "
    # other spellings of these
    "apikey authorization bearer creds jwt pass passphrase passwd pwd"
)
_SECRET_ENDS = ("apikey", "passphrase", "passwd", "password", "secret", "token")  # githubtoken, clientsecret
_HINT = _words("dsn otp pat pin sig signature")
_ABOUT_A_SECRET = _words(
    "path file dir url host port id name "
    "count directory endpoint expiry folder length limit method mode size timeout ttl type uri"
)
_QUANTITY = _words("max min num")  # --max-tokens
_PUBLIC = _words(
    "accept accept-encoding accept-language content-type debug home lang language log_level logname node_env path pwd "
    "pythonioencoding pythonunbuffered pythonutf8 shell term tmpdir tz user user-agent"
)


def is_secret_name(name: str) -> bool:
    """`--api-key`, `GITHUB_TOKEN`, `clientSecret`, but neither `AUTHOR`, nor `--token-file`, nor `--max-tokens`."""
    return _says(name, _SECRET, _SECRET_ENDS)


def hints_at_secret(name: str) -> bool:
    """Names of secrets, and names such as `PIN` that may be one."""
    return is_secret_name(name) or _says(name, _HINT)


def is_public(name: str) -> bool:
    """Variables and headers whose values mean nothing to a thief and turn up everywhere."""
    return name.lower() in _PUBLIC or name.startswith("LC_")


def same_name(name: str) -> str:
    """What is equal for `--api-key`, `API_KEY` and `Api-Key`."""
    return name.lstrip("-").replace("-", "_").casefold()


def _says(name: str, known: frozenset[str], ends: tuple[str, ...] = ()) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT_A_SECRET or words[0] in _QUANTITY:
        return False
    return any(word in known or (ends and word.endswith(ends)) for word in words)
