"""Secrets that somebody wrote into a text: a flag's value, a URL's password, a field with a telling name."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import unquote, unquote_plus

from a2c_smcp.computer.secrets.mask import MASKED
from a2c_smcp.computer.secrets.names import is_public, is_secret_name

__all__ = ["Literals"]

_HOLE = r"\$\{input:[^}]*\}"
_HTTP_SCHEMES = ("basic", "bearer")
_SCHEMES = (*_HTTP_SCHEMES, "token")
_KEPT = re.compile(rf"({_HOLE}|(?i:\b(?:{'|'.join(_SCHEMES)}) +)(?={_HOLE}))")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_PAIR = re.compile(r"""(?P<head>["']?(?P<name>-{0,2}[A-Za-z_][\w.-]*) *(?P<sign>[=:]) *)(?P<value>.+)""", re.DOTALL)
_QUOTES = ('"', "'")
_TAKES_PAIR = ("-e", "--env", "-H", "--header")
_WORD = re.compile(rf"""(?>{_HOLE}|"[^"]*"|'[^']*'|\S)+""")
_URL = re.compile(
    rf"""(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)
    (?:(?P<user>(?>{_HOLE}|[^\s/?\#"'<>])*)@)?
    (?P<place>(?>{_HOLE}|[^\s?\#"'<>])*)
    (?:\?(?P<query>(?>{_HOLE}|[^\s\#"'<>])*))?""",
    re.VERBOSE,
)
_PARAMETER = re.compile(rf"(?P<head>(?:^|&)(?:[^=&]*=)?)(?P<value>(?>{_HOLE}|[^&])*)")
_DEEPEST = 4  # JSON in a variable, a URL in the JSON, a password in the URL


class Literals:
    """Masks literals, and collects what it masks. Placeholders are no literals: they stay."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._depth = 0

    def whole(self, value: Any, name: str) -> Any:
        """A value that is a secret as it stands; of `Bearer ${input:token}` nothing is."""
        if value is None or value == "":
            return value
        text = value if isinstance(value, str) else json.dumps(value)
        pieces = _KEPT.split(text)
        if not is_public(name):
            self._collect(pieces[::2])
        pieces[::2] = [MASKED if re.search(r"\w", literal) else literal for literal in pieces[::2]]
        return "".join(pieces) if len(pieces) > 1 else MASKED

    def field(self, value: Any, name: str) -> Any:
        """A value that may be a secret: its name tells, or the names and URLs inside it."""
        if isinstance(value, Mapping):
            return {key: self.field(each, str(key)) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.field(each, name) for each in value]
        if is_secret_name(name) and not isinstance(value, bool):
            return self.whole(value, name)
        return self.text(value) if isinstance(value, str) else value

    def arguments(self, args: list[Any] | tuple[Any, ...]) -> list[Any]:
        """The arguments of a program."""
        words = ["" if not isinstance(arg, str) else arg for arg in args]
        masked = [self._argument(word, before) or self.text(word) for before, word in pairwise(["", *words])]
        return [new if isinstance(arg, str) else arg for new, arg in zip(masked, args, strict=True)]

    def text(self, text: str) -> str:
        """JSON, a command line, or anything else that may have URLs in it."""
        if text.startswith(("{", "[")):
            try:
                return json.dumps(self.field(json.loads(text), ""), ensure_ascii=False)
            except (ValueError, RecursionError):
                pass
        before = ""

        def mask(word: re.Match[str]) -> str:
            nonlocal before
            masked = self._argument(word[0], before) or _URL.sub(self._url, word[0])
            before = word[0]
            return masked

        return _WORD.sub(mask, text)

    def _argument(self, text: str, before: str) -> str | None:
        """An argument without the secret that its name, or the flag before it, announces; `None` where none does."""
        is_value = _FLAG.fullmatch(before) and not _FLAG.fullmatch(text)
        if (is_value and is_secret_name(before)) or before.lower() in _HTTP_SCHEMES:
            return str(self.whole(text, before))
        pair = _PAIR.fullmatch(text)
        if pair and (is_secret_name(pair["name"]) or (is_value and before in _TAKES_PAIR)):
            if pair["sign"] == "=" and " " in pair["value"] and not pair["value"].startswith(_QUOTES):
                self.whole(pair["value"].split()[0], pair["name"])  # TOKEN=… program --flag
            return pair["head"] + str(self.whole(pair["value"], pair["name"]))
        return None

    def _url(self, url: re.Match[str]) -> str:
        self.found.update(_of_user(url["user"] or "") if not re.search(_HOLE, url["user"] or "") else ())
        user = f"{self.whole(url['user'], 'user info')}@" if url["user"] else ""
        query = f"?{_PARAMETER.sub(self._parameter, url['query'])}" if url["query"] else ""
        return f"{url['scheme']}{user}{url['place']}{query}"

    def _collect(self, literals: list[str]) -> None:
        """A literal is a secret as a whole, and may have others inside."""
        self._depth += 1
        for literal in literals:
            self.found.update(secret for secret in _credentials(literal) if secret)
            if self._depth < _DEEPEST:
                self.text(literal)
        self._depth -= 1

    def _parameter(self, parameter: re.Match[str]) -> str:
        return parameter["head"] + str(self.whole(parameter["value"], "query"))


def _credentials(literal: str) -> Iterator[str]:
    """A literal, and whatever somebody who has it could present without the rest of it."""
    bare = literal.strip().strip("\"';,")
    yield from (bare, unquote(bare), unquote_plus(bare))
    scheme, _, presented = bare.partition(" ")
    if scheme.lower() in _SCHEMES:
        yield presented.strip()
    if scheme.lower() == "basic":
        yield from _basic(presented.strip())
    if ";" in bare:
        yield from (cookie.partition("=")[2].strip() for cookie in bare.split(";"))


def _basic(presented: str) -> Iterator[str]:
    try:
        yield from _of_user(b64decode(presented, validate=True).decode())
    except (NotBase64, ValueError):
        return


def _of_user(info: str) -> Iterator[str]:
    """A name is no secret where there is a password."""
    name, colon, password = info.partition(":")
    secret = password if colon else name
    yield from (info, secret, unquote(secret))
