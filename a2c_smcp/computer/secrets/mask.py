"""Masks known secrets in everything that leaves the Computer.

A secret of twelve characters or more that is not an ordinary word is searched for everywhere. A shorter one, or an
ordinary word, would be found in texts that have nothing to do with it: it is searched for as a whole word only, and
only in texts of a server that was given it. A suspected secret is searched for in logs only.

Masking one message takes two passes. The first joins all its texts and asks the index (`Index`) which forms may be
in them; most messages have none, and are returned as they are. Only if some are found does the second pass walk through
the message, along its structure, and mask them.
"""

from __future__ import annotations

import json
import re
import threading
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, quote_plus

from a2c_smcp.errors import BadRequest
from a2c_smcp.loops import in_thread
from a2c_smcp.mcp_host.config.servers import (
    INPUT_CONTENTS,
    PARAMETER_CONTENTS,
    SERVER_CONTENTS,
    SIGN_IN_CONTENTS,
    TOOL_META_CONTENTS,
    FieldContent,
)
from a2c_smcp.mcp_host.limits import is_within
from a2c_smcp.protocol.operations import OPERATIONS
from a2c_smcp.protocol.results import from_base64
from a2c_smcp.protocol.structure import (
    ANSWER,
    ANYTHING,
    ARGUMENTS,
    BLOCK,
    NAME,
    NAMES,
    RESOURCE,
    SCHEMA,
    Structure,
    all_of,
)

# Which words of a computer's answers are never masked: the structures of `protocol/`, and those of its own data.

_LONGEST = 32
_NAME_WORD = "(?:[A-Z]?[a-z]{2,16}(?:[A-Z][a-z]{2,16})*|[A-Z]{2,16})"
_WORDS = re.compile(rf"{_NAME_WORD}(?:[ _./+:-]{_NAME_WORD})*")


def is_word(text: str) -> bool:
    """True for a text like `production`, `us-east`, `inputSchema` or `text/plain`. Credentials do not."""
    return len(text) <= _LONGEST and _WORDS.fullmatch(text) is not None


TOOL = Structure(
    {
        **all_of(NAME, "name bundle_id mcp_server"),
        "description": ANYTHING,
        **all_of(SCHEMA, "params_schema return_schema"),
        "meta": Structure(
            all_of(NAME, "a2c_tool_meta MCP_TOOL_ANNOTATION MCP_TOOL_TITLE MCP_TOOL_ICONS MCP_TOOL_EXECUTION")
            | all_of(NAME, "a2c_tags_of_server a2c_changed")
        ),
    }
)

SKILL = Structure(
    {
        **all_of(NAME, "name source path uri version allowed_tools tags"),
        **all_of(ANYTHING, "description license compatibility skill_metadata"),
    }
)


def _joined(*parts: Mapping[str, Structure]) -> dict[str, Structure]:
    """All fields. Raises `ValueError` if a field has two structures: one of them would not count."""
    fields: dict[str, Structure] = {}
    for part in parts:
        for name, structure in part.items():
            if fields.setdefault(name, structure) is not structure:
                raise ValueError(f"two rows of OPERATIONS have the field {name!r}, with different structures")
    return fields


READ = Structure(
    _joined(
        ANSWER.fields,
        all_of(NAME, "next_cursor ttlMs cacheScope"),
        *(operation.result for operation in OPERATIONS),
    )
)
"""Answers to agents that read from MCP servers: the fields of all rows, of which none has two meanings."""

_SIGN_IN: dict[str, Structure] = {}
_STRUCTURES: Mapping[FieldContent, Structure] = {
    FieldContent.NAME: NAME,
    FieldContent.NAMES: NAMES,
    FieldContent.SETTING: NAME,
    FieldContent.PROSE: ANYTHING,
    FieldContent.PATH: ANYTHING,
    FieldContent.COMMAND: ANYTHING,
    FieldContent.URL: ANYTHING,
    FieldContent.ARGUMENTS: ANYTHING,
    FieldContent.OPTIONS: ARGUMENTS,
    FieldContent.PAIRS: ARGUMENTS,
    FieldContent.SECRET: ANYTHING,
    FieldContent.DEFAULT: ANYTHING,
    FieldContent.SIGN_IN: Structure(_SIGN_IN),
}


def _by_content(contents: Mapping[str, FieldContent]) -> dict[str, Structure]:
    return {name: _STRUCTURES[content] for name, content in contents.items()}


_SIGN_IN |= _by_content(SIGN_IN_CONTENTS)
_TOOL_META = Structure(_by_content(TOOL_META_CONTENTS))
SERVER = Structure(
    {
        **_by_content(SERVER_CONTENTS),
        "tool_meta": Structure(named=True, others=_TOOL_META),
        "default_tool_meta": _TOOL_META,
        "server_parameters": Structure(_by_content(PARAMETER_CONTENTS)),
    }
)
_INPUT_DEFINITION = Structure(
    {**_by_content(INPUT_CONTENTS), "options": Structure(all_of(NAME, "label value"), is_name=True)}
)
CONFIG = Structure({"servers": Structure(named=True, others=SERVER), "inputs": _INPUT_DEFINITION})

# The forms in which a secret may occur: as it is, line by line, in base64, in a URL, in JSON, in Python.
#
# And an index that finds the forms in a text without searching for each of them.

SHORTEST_LINE = 16
"""In a secret of several lines, each line of so many characters is a secret by itself (WIRE §5)."""

_URL_SAFE = str.maketrans("+/", "-_")
_SAFE = ("", "/", "!'()*", ";,/?:@&=+$#!'()*")  # all, a path, JavaScript's encodeURIComponent and encodeURI
_ESCAPE = re.compile("%[0-9A-F]{2}")
_LINE_BREAK = re.compile(r"\r\n|[\r\n]|(?:\\r)?\\n")  # also as JSON and shells write it
_FENCE = re.compile(r"-----(?:BEGIN|END) [A-Z0-9 ]+-----")


class Form(NamedTuple):
    """A text that gives a secret away.

    `before` and `after`: the number of base64 characters before and after it that also encode part of the secret. One
    that `is_whole` counts only if it is not a part of a longer word.
    """

    text: str
    before: int = 0
    after: int = 0
    is_whole: bool = False


def forms_of(secret: str) -> set[Form]:
    """Every form of a secret that is searched for.

    Base64 is found inside longer base64, wherever the secret begins in it, unless a line break is inside.
    Percent-encodings are those of common encoders, with digits in either case; mixtures are not found.
    """
    raw = secret.encode("utf-8", "surrogatepass")
    return {Form(text) for text in _written(secret, raw)} | set(_in_base64(raw))


def whole_forms_of(secret: str) -> set[Form]:
    """The forms of a secret that is too short, or too ordinary, to be searched for inside words."""
    raw = secret.encode("utf-8", "surrogatepass")
    encoded = b64encode(raw).decode().rstrip("=")
    return {Form(text, is_whole=True) for text in {*_written(secret, raw), encoded, encoded.translate(_URL_SAFE)}}


def lines_of(secret: str) -> set[str]:
    """The lines of a secret such as a key, without indentation and line ends. BEGIN and END lines are no secrets."""
    lines = [line.strip() for line in _LINE_BREAK.split(secret)]
    if len(lines) == 1:
        return set()
    return {line for line in lines if len(line) >= SHORTEST_LINE and not _FENCE.fullmatch(line)}


def _written(secret: str, raw: bytes) -> set[str]:
    return {secret, *_escaped(secret), *_percent_encoded(raw)}


def _escaped(secret: str) -> Iterator[str]:
    for ascii_only in (True, False):
        text = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield text
        yield text.replace("/", "\\/")
    yield repr(secret)[1:-1]


def _percent_encoded(raw: bytes) -> Iterator[str]:
    for text in (quote_plus(raw), *(quote(raw, safe) for safe in _SAFE)):
        yield text
        yield _ESCAPE.sub(lambda escape: escape[0].lower(), text)


def _in_base64(raw: bytes) -> Iterator[Form]:
    """For each of the three alignments in base64: the characters that do not depend on the bytes around the secret."""
    for offset in range(3):
        start, end = 8 * offset, 8 * (offset + len(raw))  # in bits, of which a character holds six
        text = b64encode(bytes(offset) + raw).decode()[-(-start // 6) : end // 6]
        for form in (text, text.translate(_URL_SAFE)):
            yield Form(form, before=int(start % 6 > 0), after=int(end % 6 > 0))


_WORD = 4  # bytes
_AT_ONCE = 16_384  # words that are looked up at a time: between them, a thread lets others run
_INDEXED = 2 * _WORD - 1  # a text of so many bytes holds a whole aligned word, wherever it begins
_WHOLE_NUMBER = re.compile("-?[1-9][0-9]{0,99}")


class Index:
    """Finds the few forms that may be in a text.

    A text is read as words of four bytes, at every fourth byte only. A form of at least seven bytes that is somewhere
    in the text covers a whole one of these words, which begins at one of the first four bytes of the form. These four
    possible words of each form are the index. Shorter forms are always candidates.
    """

    def __init__(self, secrets: Iterable[str], forms: Callable[[str], set[Form]] = forms_of) -> None:
        secrets = tuple(secrets)
        self.numbers = frozenset(int(secret) for secret in secrets if _WHOLE_NUMBER.fullmatch(secret))
        self._by_word: dict[int, set[Form]] = {}
        self._others: set[Form] = set()
        for form in {form for secret in secrets for form in forms(secret)}:
            raw = form.text.encode("utf-8", "surrogatepass")
            if len(raw) < _INDEXED:
                self._others.add(form)
                continue
            for start in range(_WORD):
                word = memoryview(raw[start : start + _WORD]).cast("I")[0]
                self._by_word.setdefault(word, set()).add(form)
        self._words = frozenset(self._by_word)

    def likely_in(self, text: str) -> set[Form]:
        raw = text.encode("utf-8", "surrogatepass")
        words = memoryview(raw)[: len(raw) // _WORD * _WORD].cast("I")
        found = frozenset[int]()
        for start in range(0, len(words), _AT_ONCE):
            found |= self._words.intersection(words[start : start + _AT_ONCE])
        return self._others.union(*(self._by_word[word] for word in found))


MASKED = "***"
"""The replacement of a secret."""

SHORTEST = 6
"""Secrets of fewer characters are not masked (WIRE §5): they would be found everywhere."""

NO_SERVER = ""
"""In place of a server: a secret that no server was given."""

_LONG = 12
"""Secrets of so many characters are searched for everywhere, unless they are ordinary words."""
_LARGE = 1024 * 1024  # bytes
_PART_OF_WORD = re.compile(r"[\w-]")
_MAY_BE_BINARY = frozenset(("data", "blob", "resource", "content"))
_USER_INFO = re.compile(r"://([^\s/?#]*)@")

T = TypeVar("T")


class Mask:
    """The known secrets. Secrets are added and never removed. It may be used from several threads."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._everywhere: set[str] = set()
        self._as_words: dict[str | None, set[str]] = {}
        self._suspected: set[str] = set()
        self._index, self._log_index = Index(()), Index(())
        self._word_indexes: dict[str | None, Index] = {}
        self._searches: dict[str | None, tuple[int, list[Index], frozenset[int]]] = {}
        self._adding = threading.Lock()
        self.version = 0
        """Changes whenever a secret is added."""
        self.add(secrets)

    def __repr__(self) -> str:
        count = len(self._everywhere) + sum(map(len, self._as_words.values()))
        return f"<{type(self).__name__} of {count} secrets>"

    def add(self, secrets: Iterable[str], server: str | None = None) -> None:
        """Mask these from now on, except those that are too short. `None` as server: any may have been given them."""
        with self._adding:
            new = {value for secret in secrets for value in (secret, *lines_of(secret)) if len(value) >= SHORTEST}
            as_words = {value for value in new if len(value) < _LONG or is_word(value)}
            self._add_everywhere(new - as_words - self._everywhere)
            self._add_words(as_words - self._as_words.get(server, set()), server)

    def suspect(self, secrets: Iterable[str]) -> None:
        """Mask these in logs from now on."""
        with self._adding:
            new = {secret for secret in secrets if len(secret) >= SHORTEST} - self._suspected
            if new:
                self._log_index = Index(self._suspected | new)
                self._suspected |= new

    def text(self, text: str, server: str | None = None) -> str:
        """The text with secrets masked; the same string if there are none."""
        return _cover(text, self._likely_in(text, self._indexes(server)))

    def logged(self, text: str) -> str:
        """Like `text`, for a log: masks the secrets of all servers, and suspected ones."""
        return _cover(text, self._likely_in(text, [self._index, self._log_index, *self._word_indexes.values()]))

    def name(self, name: str, server: str | None = None) -> str:
        """Like `text`, for a name that others have to send back: a secret that is an ordinary word is not masked."""
        forms = self._likely_in(name, self._indexes(server))
        return _cover_name(name, forms, [form for form in forms if not is_word(form.text)])

    def uri(self, uri: str, server: str | None = None) -> str:
        """Like `name`, but the scheme is never masked, so that the result is still a URI."""
        scheme, mark, _ = uri.partition("://")
        masked = self.name(uri, server)
        if not mark or masked.startswith(f"{scheme}://"):
            return masked
        return f"{scheme}://{self.name(uri[len(scheme) + len(mark) :], server)}"

    def data(self, value: T, structure: Structure = ANYTHING, server: str | None = None) -> T:
        """A copy of a JSON-like value with secrets masked, in keys too; the same object if there are none.

        Keys and words that the protocol defines in its `structure` are not masked. Images, sounds and blobs in the
        content of an answer are not searched, if they are base64.
        """
        indexes, numbers = self._search(server)
        texts, found = _leaves(value, structure)
        text = "\n".join(texts)
        forms = [form for index in indexes for form in index.likely_in(text) if form.text in text]
        if not forms and numbers.isdisjoint(found):
            return value
        names = [form for form in forms if not is_word(form.text)]
        masked: T = _mask(value, structure, _FoundForms(forms, names, numbers))
        return masked

    async def answer(self, raw: dict[str, Any], structure: Structure, server: str | None) -> dict[str, Any]:
        """As `data`. A large answer is masked in a thread, which does not hold the event loop."""
        if is_within(raw, _LARGE):
            return self.data(raw, structure, server)
        return await in_thread(self.data, raw, structure, server)

    def _add_everywhere(self, new: set[str]) -> None:
        if new:
            self._index = Index(self._everywhere | new)
            self._everywhere |= new
            self.version += 1

    def _add_words(self, new: set[str], server: str | None) -> None:
        if new:
            known = self._as_words.get(server, set()) | new
            self._word_indexes = {**self._word_indexes, server: Index(known, whole_forms_of)}
            self._as_words[server] = known
            self.version += 1

    def _indexes(self, server: str | None) -> list[Index]:
        return self._search(server)[0]

    def _search(self, server: str | None) -> tuple[list[Index], frozenset[int]]:
        """The indexes and numbers to search in texts of a server. Cached until a secret is added."""
        known = self._searches.get(server)
        if known is None or known[0] != self.version:
            version, words = self.version, self._word_indexes  # in this order: another thread may be in `add`
            indexes = [self._index, *(words[owner] for owner in {None, server} if owner in words)]
            numbers = frozenset[int]().union(*(index.numbers for index in indexes))
            known = self._searches[server] = version, indexes, numbers
        return known[1], known[2]

    def _likely_in(self, text: str, indexes: Iterable[Index]) -> list[Form]:
        if len(text) < SHORTEST:
            return []
        return [form for index in indexes for form in index.likely_in(text)]


class _FoundForms(NamedTuple):
    """The forms that are somewhere in a value. `names` are those that are masked in names as well."""

    forms: Sequence[Form]
    names: Sequence[Form]
    numbers: frozenset[int]


def _cover(text: str, forms: Iterable[Form]) -> str:
    """Mask all forms, also where they overlap."""
    spans = sorted(span for form in forms for span in _spans(text, form))
    if not spans:
        return text
    pieces, done = [], 0
    start, end = spans[0]
    for next_start, next_end in spans[1:]:
        if next_start <= end:
            end = max(end, next_end)
            continue
        pieces += [text[done:start], MASKED]
        done, start, end = end, next_start, next_end
    return "".join([*pieces, text[done:start], MASKED, text[end:]])


def _cover_name(text: str, forms: Sequence[Form], names: Sequence[Form]) -> str:
    """Mask a name. Ordinary words are not masked in names, because agents send names back.

    A password in a URL is always masked.
    """
    covered = _cover(text, names)
    user = _USER_INFO.search(covered)
    if user is None or len(forms) == len(names):
        return covered
    start, end = user.span(1)
    return covered[:start] + _cover(covered[start:end], forms) + covered[end:]


def _spans(text: str, form: Form) -> Iterator[tuple[int, int]]:
    at = text.find(form.text)
    while at >= 0:
        end = at + len(form.text)
        if not form.is_whole or _is_whole(text, at, end):
            yield max(at - form.before, 0), min(end + form.after, len(text))
        at = text.find(form.text, end)


def _is_whole(text: str, start: int, end: int) -> bool:
    return not (_PART_OF_WORD.match(text[start - 1 : start]) or _PART_OF_WORD.match(text[end : end + 1]))


def _leaves(value: Any, structure: Structure) -> tuple[list[str], list[float]]:
    """All texts and numbers to be searched. Every message passes through here, so it has to be quick."""
    texts: list[str] = []
    numbers: list[float] = []
    rest = _searched(value) if (structure is ANSWER or structure is READ) and isinstance(value, dict) else [value]
    while rest:
        each = rest.pop()
        if isinstance(each, str):
            texts.append(each)
        elif isinstance(each, dict):
            rest.extend(each)
            rest.extend(each.values())
        elif isinstance(each, (list, tuple)):
            rest.extend(each)
        elif isinstance(each, (int, float)):  # 918273645.0 is the same number
            numbers.append(each)
    return texts, numbers


def _searched(answer: dict[Any, Any]) -> list[Any]:
    """The parts of an answer, without binary data in its content."""
    parts: list[Any] = [*answer]
    for key, value in answer.items():
        if key in _CONTENTS and isinstance(value, list | tuple):
            parts.extend(_without_binary(block, _CONTENTS[key]) for block in value)
        else:
            parts.append(value)
    return parts


_MESSAGE = READ.fields["messages"]
_CONTENTS = {"content": BLOCK, "contents": RESOURCE, "messages": _MESSAGE}


def _without_binary(value: Any, structure: Structure) -> Any:
    if not isinstance(value, dict) or value.keys().isdisjoint(_MAY_BE_BINARY):
        return value
    if structure is _MESSAGE:
        return {**value, "content": _without_binary(value.get("content"), BLOCK)}
    binary = _binary_key(value, structure)
    rest = {key: each for key, each in value.items() if binary is None or key != binary}
    if structure is BLOCK and "resource" in rest:
        rest["resource"] = _without_binary(rest["resource"], RESOURCE)
    return rest


def _mask(value: Any, structure: Structure, found: _FoundForms) -> Any:
    if isinstance(value, str):
        return _cover_name(value, found.forms, found.names) if structure.is_name else _cover(value, found.forms)
    if isinstance(value, dict):
        return _mask_object(value, structure, found)
    if isinstance(value, list | tuple):
        return _mask_items(value, structure, found)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return MASKED if is_number and value in found.numbers and not structure.is_name else value


def _mask_items(value: list[Any] | tuple[Any, ...], structure: Structure, found: _FoundForms) -> Any:
    items = [_mask(item, structure, found) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return items if isinstance(value, list) else tuple(items)


def _mask_object(value: dict[Any, Any], structure: Structure, found: _FoundForms) -> dict[Any, Any]:
    binary, masked, copies = _binary_key(value, structure), dict[Any, Any](), Counter[Any]()
    is_same = True
    for key, old in value.items():
        known = structure.fields.get(key)
        new = old if binary is not None and key == binary else _mask(old, known or structure.others or ANYTHING, found)
        new_key = key if known else _mask(key, NAME if structure.named else ANYTHING, found)
        is_same = is_same and new is old and new_key is key
        masked[new_key if new_key is key else _free(new_key, copies, masked, value)] = new
    return value if is_same else masked


def _free(key: Any, copies: Counter[Any], *taken: dict[Any, Any]) -> Any:
    """A free key: several masked keys may read the same, and none of their entries must get lost.

    `copies` counts how often each was given out, so the numbers that are taken are not tried again.
    """
    copies[key] += 1
    free = key if copies[key] == 1 else f"{key} ({copies[key]})"
    while any(free in text for text in taken):
        copies[key] += 1
        free = f"{key} ({copies[key]})"
    return free


def _binary_key(value: dict[Any, Any], structure: Structure) -> str | None:
    """The key of a content block whose value is binary data in base64."""
    if structure is RESOURCE:
        key = "blob"
    elif structure is BLOCK and value.get("type") in ("image", "audio"):
        key = "data"
    else:
        return None
    return key if _is_base64(value.get(key)) else None


def _is_base64(text: object) -> bool:
    try:
        return isinstance(text, str) and bool(from_base64(text))
    except BadRequest:
        return False
