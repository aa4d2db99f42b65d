"""The rules by which a literal in a configuration is judged to be a secret (WIRE §5): by its name and by its value.

*Declared* and *evident* secrets are masked in everything that leaves the Computer. A *suspected* one is masked in
`get_config` and in logs, and stays in results: a tool whose results lose words that are no secrets is broken. An
*ordinary* literal is masked in `get_config` if it is under `env` or `headers`, and nowhere else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "PEM",
    "RANDOM_SEGMENT",
    "TOKEN",
    "Declared",
    "SecretKind",
    "SecretName",
    "hints_at_secret",
    "is_public",
    "is_random",
    "is_secret_name",
    "judge",
    "same_name",
]


class SecretKind(StrEnum):
    """How sure it is that a literal is a secret."""

    declared = "declared"
    evident = "evident"
    suspected = "suspected"
    ordinary = "ordinary"

    @property
    def is_masked(self) -> bool:
        """Whether it is masked everywhere."""
        return self in (SecretKind.declared, SecretKind.evident)


@dataclass(frozen=True, order=True)
class SecretName:
    """A secret as the owner may be shown it: its name, never its value. One that `is_short` cannot be masked."""

    name: str
    kind: SecretKind
    is_short: bool = False


_TOKENS = (
    r"sk-(?=[\w-]*\d)[\w-]{16,}",  # model providers; sk-learn is none
    r"[rs]k_(?:live|test)_\w{16,}",
    r"whsec_[\w+/=]{16,}",
    r"gh[oprsu]_\w{16,}",
    r"github_pat_\w{20,}",
    r"glpat-[\w-]{16,}",
    r"xox[abeprs]-(?=[\w-]*\d)[\w-]{12,}",
    r"xapp-\d-[\w-]{12,}",
    r"(?:AKIA|ASIA)[A-Z0-9]{16}(?!\w)",
    r"AIza[\w-]{30,}",
    r"ya29\.[\w-]{20,}",
    r"dop_v1_\w{20,}",
    r"(?:hf|r8|gsk|npm|ntn)_[A-Za-z0-9]{30,}",
    r"(?:tvly|pplx)-(?=[\w-]*\d)[\w-]{16,}",
    r"pypi-AgE[\w-]{30,}",  # the names of many packages begin with pypi-
    r"dckr_pat_[\w-]{16,}",
    r"SG\.[\w-]{16,}\.[\w-]{16,}",
    r"(?:shpat|lin_api|figd)_[\w-]{16,}",
    r"AGE-SECRET-KEY-1[A-Z0-9]{30,}",
    r"eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",  # a JWT
)
TOKEN = re.compile(rf"(?<![\w-])(?:{'|'.join(_TOKENS)})")
"""A token that its issuer marks with a prefix, or a JWT."""
PEM = re.compile(r"-----BEGIN (?P<what>(?!CERTIFICATE|PUBLIC)[A-Z0-9 ]+)-----.*?-----END (?P=what)-----", re.DOTALL)
"""A block with a private key. Certificates and public keys are no secrets."""

_RANDOM = re.compile(r"(?=(?:[^0-9]*[0-9]){3})(?=.*[A-Za-z])[\w-]{32,}={0,2}")
RANDOM_SEGMENT = re.compile(r"(?<=/)[\w-]{32,}(?=/|$)")
"""A part of a URL's path that may be random."""
_SETTING = re.compile(r"true|false|yes|no|on|off|none|null|[+-]?\d{1,5}(?:\.\d+)?", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@]+(?:[/?#]\S*)?")  # without user information
_LONGEST_PATH = 4096


def is_random(text: str) -> bool:
    """Whether a text is long, has letters and several digits, and nothing that separates words."""
    return _RANDOM.fullmatch(text) is not None and not _is_path(text)


class Declared:
    """What the owner declares about names: `"secrets": {"X": true, "WORKDIR": false}` on a server."""

    def __init__(self, declared: object = None) -> None:
        pairs = declared.items() if isinstance(declared, Mapping) else ()
        self._declared = {same_name(str(name)): is_secret for name, is_secret in pairs if isinstance(is_secret, bool)}

    def get(self, name: str) -> bool | None:
        """Whether a name is a secret; `None` if nothing is declared."""
        return self._declared.get(same_name(name))


def judge(name: str, value: str, declared: Declared) -> SecretKind:
    """The kind of a literal as a whole. Tokens and passwords inside it are searched for by `Literals`."""
    is_secret = declared.get(name)
    if is_secret is not None:
        return SecretKind.declared if is_secret else SecretKind.ordinary
    if is_public(name) or _is_harmless(value.strip()):
        return SecretKind.ordinary
    if is_secret_name(name):
        return SecretKind.evident
    return SecretKind.suspected if hints_at_secret(name) or is_random(value.strip()) else SecretKind.ordinary


def _is_harmless(value: str) -> bool:
    """Whether it is a boolean, a number below six digits, a URL without user information, or an existing path."""
    return any(rule.fullmatch(value) for rule in (_SETTING, _URL)) or _is_path(value)


def _is_path(value: str) -> bool:
    try:
        return 0 < len(value) <= _LONGEST_PATH and os.path.lexists(os.path.expanduser(value))  # noqa: PTH111
    except ValueError:  # a null character
        return False


# Names, compared word by word

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
    """True for `--api-key`, `GITHUB_TOKEN`, `clientSecret`; false for `AUTHOR`, `--token-file`, `--max-tokens`."""
    return _has_word(name, _SECRET, _SECRET_ENDS)


def hints_at_secret(name: str) -> bool:
    """True for names of secrets, and for names such as `PIN`, whose value may be one."""
    return is_secret_name(name) or _has_word(name, _HINT)


def is_public(name: str) -> bool:
    """Whether a variable or header is never a secret, such as `PATH`."""
    return name.lower() in _PUBLIC or name.startswith("LC_")


def same_name(name: str) -> str:
    """A form that is the same for `--api-key`, `API_KEY` and `Api-Key`."""
    return name.lstrip("-").replace("-", "_").casefold()


def _has_word(name: str, known: frozenset[str], ends: tuple[str, ...] = ()) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT_A_SECRET or words[0] in _QUANTITY:
        return False
    return any(word in known or (ends and word.endswith(ends)) for word in words)
