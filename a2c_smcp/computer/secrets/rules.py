"""The rules by which a literal in a configuration is judged to be a secret (WIRE §5): by its name and by its value.

*Declared* and *evident* secrets are masked in everything that leaves the Computer. A *suspected* one is masked in
`get_config` and in logs, and stays in results: a tool whose results lose words that are no secrets is broken. An
*ordinary* literal is masked in `get_config` if it is under `env` or `headers`, and nowhere else.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote, unquote_plus

from a2c_smcp.computer.configuration.definitions import Input, ids_in, is_secret
from a2c_smcp.computer.secrets.mask import MASKED, SHORTEST
from a2c_smcp.mcp_host.config.servers import (
    INPUT_CONTENTS,
    PARAMETER_CONTENTS,
    SERVER_CONTENTS,
    SIGN_IN_CONTENTS,
    FieldContent,
    MCPServerConfig,
    source,
)


class SecretKind(StrEnum):
    """The certainty that a literal is a secret."""

    declared = "declared"
    evident = "evident"
    suspected = "suspected"
    ordinary = "ordinary"

    @property
    def is_masked(self) -> bool:
        """True if it is masked everywhere."""
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
    """True if a text is long, has letters and several digits, and nothing that separates words."""
    return _RANDOM.fullmatch(text) is not None and not _is_path(text)


class Declared:
    """The owner's declarations about names: `"secrets": {"X": true, "WORKDIR": false}` on a server."""

    def __init__(self, declared: object = None) -> None:
        pairs = declared.items() if isinstance(declared, Mapping) else ()
        self._declared = {same_name(str(name)): is_secret for name, is_secret in pairs if isinstance(is_secret, bool)}

    def get(self, name: str) -> bool | None:
        """True if a name is declared a secret; `None` if nothing is declared."""
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
    """True for a boolean, a number below six digits, a URL without user information, or an existing path."""
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
    """True if a variable or header is never a secret, such as `PATH`."""
    return name.lower() in _PUBLIC or name.startswith("LC_")


def same_name(name: str) -> str:
    """A form that is the same for `--api-key`, `API_KEY` and `Api-Key`."""
    return name.lstrip("-").replace("-", "_").casefold()


def _has_word(name: str, known: frozenset[str], ends: tuple[str, ...] = ()) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT_A_SECRET or words[0] in _QUANTITY:
        return False
    return any(word in known or (ends and word.endswith(ends)) for word in words)


# Finds and masks secrets that are written into texts: the value of a flag, the password in a URL, a named field.

_HOLE = r"\$\{input:[^}]*\}"
_EACH_HOLE = re.compile(f"({_HOLE})")
_HTTP_SCHEMES = ("basic", "bearer")
_SCHEMES = (*_HTTP_SCHEMES, "token")
_KEPT = re.compile(rf"({_HOLE}|(?i:\b(?:{'|'.join(_SCHEMES)}) +)(?={_HOLE}))")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_PAIR = re.compile(r"""(?P<head>["']?(?P<name>-{0,2}[A-Za-z_][\w.-]*) *(?P<sign>[=:]) *)(?P<value>.+)""", re.DOTALL)
_QUOTES = ('"', "'")
_TAKES_PAIR = ("-e", "--env", "-H", "--header")
_WORD_LITERAL = re.compile(rf"""(?>{_HOLE}|"[^"]*"|'[^']*'|\S)+""")
_URL_LITERAL = re.compile(
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
            return [self.field(item, name) for item in value]
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

        return _WORD_LITERAL.sub(mask, PEM.sub(lambda block: self.token(block[0]), text))

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
        pieces = _EACH_HOLE.split(_URL_LITERAL.sub(self._url, word))
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


# Secrets that are written into a configuration: which they are, and the configuration without them (WIRE §5).
#
# Where to look in a field follows from its mark on the model (`FieldContent`); fields that the models do not know are
# judged by their names.

C = TypeVar("C", bound=Mapping[str, Any])
_Rule: TypeAlias = Callable[[Any, Literals], Any]

_DECLARED = "secrets"
"""The field in which the owner declares which names of a server are secret, and which are not. Agents do not see it."""


def mask_config(config: C) -> C:
    """A copy of `{"servers": …, "inputs": …}`, the answer to `client:get_config`, that an agent may see.

    Placeholders stay. Masked are: all literals in `env` and `headers`; user information and query values in every URL;
    in `args`, commands of inputs and unknown fields, the value after a name like `--api-key` and whatever looks like a
    secret by itself; the default of a password.
    """
    masked: C = _config(config, Literals())
    return masked


def secrets_of(config: Mapping[str, Any]) -> Literals:
    """The secrets that are written into a configuration, for a `Mask`, and their names, for the owner."""
    literals = Literals()
    _config(config, literals)
    return literals


def secrets_in(text: str) -> set[str]:
    """The secrets in any text, such as the URL of a proxy."""
    literals = Literals()
    literals.text(text)
    return literals.found


def _fields(rules: Mapping[str, _Rule]) -> _Rule:
    """Apply its rule to each field; a field without a rule is judged by its name."""

    def apply(owner: Any, literals: Literals) -> Any:
        if not isinstance(owner, Mapping):
            return owner
        return {
            name: rules[name](value, literals) if name in rules else literals.field(value, name)
            for name, value in owner.items()
        }

    return apply


def _each(rule: _Rule) -> _Rule:
    def apply(values: Any, literals: Literals) -> Any:
        if isinstance(values, Mapping):
            return {name: rule(value, literals) for name, value in values.items()}
        return [rule(value, literals) for value in values] if isinstance(values, list | tuple) else values

    return apply


def _as_it_is(value: Any, _: Literals) -> Any:
    return value


def _pairs(pairs: Any, literals: Literals) -> Any:
    if not isinstance(pairs, Mapping):
        return pairs
    return {name: literals.pair(value, name) for name, value in pairs.items()}


def _server(server: Any, literals: Literals) -> Any:
    if not isinstance(server, Mapping):
        return server
    fields = {name: value for name, value in server.items() if name != _DECLARED}
    return _SERVER(fields, literals.declaring(server.get(_DECLARED)))


def _input(definition: Any, literals: Literals) -> Any:
    is_password = isinstance(definition, Mapping) and definition.get("password")
    return (_PASSWORD if is_password else _INPUT)(definition, literals)


def _secret_named(name: str) -> _Rule:
    return lambda value, literals: literals.declaring({name: True}).whole(value, name)


_Rules: TypeAlias = Mapping[FieldContent, _Rule | None]
_RULES: _Rules = {
    FieldContent.NAME: _as_it_is,
    FieldContent.NAMES: _as_it_is,
    FieldContent.SETTING: None,
    FieldContent.PROSE: _as_it_is,
    FieldContent.PATH: None,
    FieldContent.COMMAND: None,
    FieldContent.URL: None,
    FieldContent.ARGUMENTS: lambda args, literals: literals.arguments(args) if isinstance(args, list | tuple) else args,
    FieldContent.OPTIONS: None,
    FieldContent.PAIRS: _pairs,
    FieldContent.SECRET: _secret_named("secret"),
    FieldContent.DEFAULT: _as_it_is,
    FieldContent.SIGN_IN: lambda value, literals: _SIGN_IN(value, literals),
}
"""Without a rule, a field is judged by its name, and its text is searched."""


def _by_content(contents: Mapping[str, FieldContent], rules: _Rules = _RULES) -> dict[str, _Rule]:
    return {name: rule for name, content in contents.items() if (rule := rules[content])}


_SIGN_IN: _Rule = _fields(
    _by_content(SIGN_IN_CONTENTS)
    | {name: _secret_named(name) for name, content in SIGN_IN_CONTENTS.items() if content is FieldContent.SECRET}
)
_PARAMETERS = _fields(_by_content(PARAMETER_CONTENTS))
_SERVER = _fields({**_by_content(SERVER_CONTENTS), "server_parameters": _PARAMETERS})
_INPUT = _fields(_by_content(INPUT_CONTENTS))
_PASSWORD = _fields(_by_content(INPUT_CONTENTS, {**_RULES, FieldContent.DEFAULT: _secret_named("default")}))
_config = _fields({"servers": _each(_server), "inputs": _each(_input)})


def names_of_secrets(config: MCPServerConfig, inputs: Mapping[str, Input]) -> list[SecretName]:
    """The names of variables, headers, flags and inputs of a server that are treated as secret, or may be."""
    data = source(config)
    given = {
        SecretName(f"input {id_}", SecretKind.declared)
        for id_ in ids_in(data)
        if id_ in inputs and is_secret(inputs[id_])
    }
    return sorted(secrets_of({"servers": {config.name: data}}).named | given)


def secrets_line(server: str, names: list[SecretName]) -> str:
    """One line on a server: `github: GITHUB_TOKEN, input token; suspected: BLOB`. Empty if it has no secrets."""
    masked = ", ".join(dict.fromkeys(name.name for name in names if name.kind.is_masked))
    suspected = ", ".join(dict.fromkeys(name.name for name in names if name.kind is SecretKind.suspected))
    parts = [part for part in (masked, suspected and f"suspected: {suspected}") if part]
    return f"{server}: {'; '.join(parts)}" if parts else ""
