"""Finds and masks secrets that are written into texts: the value of a flag, the password in a URL, a named field."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import unquote, unquote_plus

from a2c_smcp.computer.secrets.mask import MASKED, SHORTEST
from a2c_smcp.computer.secrets.rules import (
    PEM,
    RANDOM_SEGMENT,
    TOKEN,
    Declared,
    SecretKind,
    SecretName,
    hints_at_secret,
    is_random,
    judge,
)

__all__ = ["Literals"]

_HOLE = r"\$\{input:[^}]*\}"
_EACH_HOLE = re.compile(f"({_HOLE})")
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
    """Masks the secrets among literals, and collects them. Placeholders such as `${input:id}` are not literals.

    `found` are secrets, `suspected` may be secrets, `named` are the names of both, for the owner.
    """

    def __init__(self, declared: Declared | None = None) -> None:
        self.found: set[str] = set()
        self.suspected: set[str] = set()
        self.named: set[SecretName] = set()
        self._declared = declared or Declared()
        self._about = ""
        self._depth = 0

    def declaring(self, declared: object) -> Literals:
        """The same collection, for a server whose owner declares which names are secret."""
        inner = Literals(Declared(declared))
        inner.found, inner.suspected, inner.named = self.found, self.suspected, self.named
        return inner

    def pair(self, value: Any, name: str) -> Any:
        """Mask all literals of a variable or a header. Which of them are secrets is judged by its name."""
        self._about = name
        return self.whole(value, name)

    def whole(self, value: Any, name: str) -> Any:
        """Mask a value as a whole, except for placeholders: `Bearer ${input:token}` stays as it is."""
        if value is None or value == "":
            return value
        text = value if isinstance(value, str) else json.dumps(value)
        pieces = _KEPT.split(text)
        for literal in pieces[::2]:
            self._take(literal, name)
        pieces[::2] = [MASKED if re.search(r"\w", literal) else literal for literal in pieces[::2]]
        return "".join(pieces) if len(pieces) > 1 else MASKED

    def field(self, value: Any, name: str) -> Any:
        """Mask a value if its name is that of a secret; otherwise mask the secrets inside it."""
        if isinstance(value, Mapping):
            return {key: self.field(each, str(key)) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.field(each, name) for each in value]
        self._about = name or self._about
        if self._hides(name) and not isinstance(value, bool):
            return self.whole(value, name)
        return self.text(value) if isinstance(value, str) else value

    def arguments(self, args: list[Any] | tuple[Any, ...]) -> list[Any]:
        """Mask the secrets among the arguments of a program."""
        self._about = "args"
        words = ["" if not isinstance(arg, str) else arg for arg in args]
        masked = [self._argument(word, before) or self.text(word) for before, word in pairwise(["", *words])]
        return [new if isinstance(arg, str) else arg for new, arg in zip(masked, args, strict=True)]

    def text(self, text: str) -> str:
        """Mask the secrets in JSON, in a command line, or in any other text."""
        if text.startswith(("{", "[")):
            try:
                return json.dumps(self.field(json.loads(text), ""), ensure_ascii=False)
            except (ValueError, RecursionError):
                pass
        before = ""

        def mask(word: re.Match[str]) -> str:
            nonlocal before
            masked = self._argument(word[0], before) or self._word(word[0])
            before = word[0]
            return masked

        return _WORD.sub(mask, PEM.sub(lambda block: self.token(block[0]), text))

    def token(self, text: str) -> str:
        """Mask a text that looks like a secret, whatever its name is."""
        self._keep(text, self._about, SecretKind.evident)
        return MASKED

    def random(self, text: str) -> str:
        """Mask a text that is long and random, and so may be a secret."""
        if judge(self._about, text, self._declared) is SecretKind.ordinary:
            return text
        self._keep(text, self._about, SecretKind.suspected)
        return MASKED

    def _word(self, word: str) -> str:
        pieces = _EACH_HOLE.split(_URL.sub(self._url, word))
        pieces[::2] = [self._piece(literal) for literal in pieces[::2]]
        return "".join(pieces)

    def _piece(self, literal: str) -> str:
        masked = TOKEN.sub(lambda token: self.token(token[0]), literal)
        return self.random(masked) if is_random(masked) else masked

    def _hides(self, name: str) -> bool:
        declared = self._declared.get(name)
        return hints_at_secret(name) if declared is None else declared

    def _argument(self, text: str, before: str) -> str | None:
        """The argument without a secret that its name, or the flag before it, announces; `None` if there is none."""
        is_value = _FLAG.fullmatch(before) and not _FLAG.fullmatch(text)
        if (is_value and self._hides(before)) or before.lower() in _HTTP_SCHEMES:
            return str(self.whole(text, before))
        pair = _PAIR.fullmatch(text)
        if pair and (self._hides(pair["name"]) or (is_value and before in _TAKES_PAIR)):
            if pair["sign"] == "=" and " " in pair["value"] and not pair["value"].startswith(_QUOTES):
                self.whole(pair["value"].split()[0], pair["name"])  # TOKEN=… program --flag
            return pair["head"] + str(self.whole(pair["value"], pair["name"]))
        return None

    def _url(self, url: re.Match[str]) -> str:
        if url["user"] and not re.search(_HOLE, url["user"]):
            self.found.update(_of_user(url["user"]))
            self._name(self._about or "url", SecretKind.evident, url["user"].partition(":")[2] or url["user"])
        user = f"{self._hidden(url['user'])}@" if url["user"] else ""
        query = f"?{_PARAMETER.sub(self._parameter, url['query'])}" if url["query"] else ""
        place = RANDOM_SEGMENT.sub(lambda part: self.random(part[0]) if is_random(part[0]) else part[0], url["place"])
        return f"{url['scheme']}{user}{place}{query}"

    def _hidden(self, user: str) -> str:
        """The user information of a URL, masked except for placeholders."""
        pieces = _KEPT.split(user)
        pieces[::2] = [MASKED if re.search(r"\w", literal) else literal for literal in pieces[::2]]
        return "".join(pieces)

    def _parameter(self, parameter: re.Match[str]) -> str:
        return parameter["head"] + str(self.whole(parameter["value"], parameter["head"].strip("&=") or "query"))

    def _take(self, literal: str, name: str) -> None:
        """Collect a literal if it is a secret as a whole, and the secrets inside it."""
        if not re.search(r"\w", literal):
            return
        kind = SecretKind.evident if name.lower() in _HTTP_SCHEMES else judge(name, literal, self._declared)
        if kind is not SecretKind.ordinary:
            self._keep(literal, name, kind)
        if self._depth < _DEEPEST and self._declared.get(name) is not False:
            self._depth += 1
            self.text(literal)
            self._depth -= 1

    def _keep(self, literal: str, name: str, kind: SecretKind) -> None:
        credentials = {secret for secret in _credentials(literal) if secret}
        (self.found if kind.is_masked else self.suspected).update(credentials)
        scheme, _, presented = literal.strip().partition(" ")
        self._name(name, kind, presented if scheme.lower() in _SCHEMES and presented else literal.strip())

    def _name(self, name: str, kind: SecretKind, value: str) -> None:
        self.named.add(SecretName(name or "args", kind, is_short=kind.is_masked and len(value) < SHORTEST))


def _credentials(literal: str) -> Iterator[str]:
    """A literal, and the parts of it that are credentials by themselves: after `Bearer`, in a cookie."""
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
    """The secrets in the user information of a URL. The name is one only if there is no password."""
    name, colon, password = info.partition(":")
    secret = password if colon else name
    yield from (info, secret, unquote(secret))
