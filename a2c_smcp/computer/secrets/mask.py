"""Secrets that must not leave the Computer, and their removal from whatever does.

A secret of twelve characters or more that is no plain word is searched for everywhere. A shorter one, or a plain word,
would be found in texts that have nothing to do with it: it is searched for as a whole word only, and only in what comes
from a server that was given it. A suspected secret is searched for in logs alone.
"""

from __future__ import annotations

import re
import threading
from base64 import b64decode
from binascii import Error as NotBase64
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from a2c_smcp.computer.secrets.forms import Form, Index, lines_of, whole_forms_of
from a2c_smcp.computer.secrets.messages import ANSWER, ANYTHING, BLOCK, NAME, RESOURCE, Structure, is_word

__all__ = ["MASKED", "NO_SERVER", "SHORTEST", "Mask"]

MASKED = "***"
"""What stands in place of a secret."""

SHORTEST = 6
"""Secrets of fewer characters are not searched for (WIRE §5): they would be found everywhere."""

NO_SERVER = ""
"""Stands for the server that was given a secret where none was."""

_LONG = 12
"""Secrets of so many characters are searched for everywhere, unless they are plain words."""
_PART_OF_WORD = re.compile(r"[\w-]")
_MAY_BE_BINARY = frozenset(("data", "blob", "resource"))
_USER_INFO = re.compile(r"://([^\s/?#]*)@")

T = TypeVar("T")


class Mask:
    """A registry of secrets. What has once been a secret remains one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._everywhere: set[str] = set()
        self._as_words: dict[str | None, set[str]] = {}
        self._suspected: set[str] = set()
        self._index, self._log_index = Index(()), Index(())
        self._word_indexes: dict[str | None, Index] = {}
        self._searches: dict[str | None, tuple[int, list[Index], frozenset[int]]] = {}
        self._adding = threading.Lock()
        self.version = 0
        """Another one, whenever something is masked that was not before."""
        self.add(secrets)

    def __repr__(self) -> str:
        count = len(self._everywhere) + sum(map(len, self._as_words.values()))
        return f"<{type(self).__name__} of {count} secrets>"

    def add(self, secrets: Iterable[str], server: str | None = None) -> None:
        """Masks these from now on, but those that are too short. Without a `server`, any may have been given them."""
        with self._adding:
            new = {each for secret in secrets for each in (secret, *lines_of(secret)) if len(each) >= SHORTEST}
            as_words = {each for each in new if len(each) < _LONG or is_word(each)}
            self._add_everywhere(new - as_words - self._everywhere)
            self._add_words(as_words - self._as_words.get(server, set()), server)

    def suspect(self, secrets: Iterable[str]) -> None:
        """Hides these in logs."""
        with self._adding:
            new = {each for each in secrets if len(each) >= SHORTEST} - self._suspected
            if new:
                self._log_index = Index(self._suspected | new)
                self._suspected |= new

    def text(self, text: str, server: str | None = None) -> str:
        """The same string where there is no secret in it."""
        return _cover(text, self._likely_in(text, self._indexes(server)))

    def logged(self, text: str) -> str:
        """Like `text`, for a log: whatever any server was given, and what is only suspected."""
        return _cover(text, self._likely_in(text, [self._index, self._log_index, *self._word_indexes.values()]))

    def name(self, name: str, server: str | None = None) -> str:
        """Like `text`, for what others have to say back: a secret that is an ordinary word stays in it."""
        forms = self._likely_in(name, self._indexes(server))
        return _cover_name(name, forms, [form for form in forms if not is_word(form.text)])

    def uri(self, uri: str, server: str | None = None) -> str:
        """A name whose scheme stays, so that it can still be read as a URI."""
        scheme, mark, _ = uri.partition("://")
        masked = self.name(uri, server)
        if not mark or masked.startswith(f"{scheme}://"):
            return masked
        return f"{scheme}://{self.name(uri[len(scheme) + len(mark) :], server)}"

    def data(self, value: T, place: Structure = ANYTHING, server: str | None = None) -> T:
        """A copy of a JSON-like value, keys included; the same object where there is no secret in it.

        What the protocol defines at its `place` stays. Images, sounds and blobs in the content of an answer are not
        searched, as long as they are base64.
        """
        indexes, numbers = self._search(server)
        texts, integers = _leaves(value, place)
        text = "\n".join(texts)
        forms = [form for index in indexes for form in index.likely_in(text) if form.text in text]
        if not forms and numbers.isdisjoint(integers):
            return value
        names = [form for form in forms if not is_word(form.text)]
        masked: T = _mask(value, place, _Found(forms, names, numbers))
        return masked

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
        """What is searched for in something of a server: kept until there are more secrets."""
        known = self._searches.get(server)
        if known is None or known[0] != self.version:
            version, words = self.version, self._word_indexes  # in this order, for `add` in a thread
            indexes = [self._index, *(words[each] for each in {None, server} if each in words)]
            numbers = frozenset[int]().union(*(index.numbers for index in indexes))
            known = self._searches[server] = version, indexes, numbers
        return known[1], known[2]

    def _likely_in(self, text: str, indexes: Iterable[Index]) -> list[Form]:
        if len(text) < SHORTEST:
            return []
        return [form for index in indexes for form in index.likely_in(text)]


class _Found(NamedTuple):
    """What is somewhere in a value; `names` are the forms that are masked in names as well."""

    forms: Sequence[Form]
    names: Sequence[Form]
    numbers: frozenset[int]


def _cover(text: str, forms: Iterable[Form]) -> str:
    """All that belongs to any form is covered, where they overlap too."""
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
    """Only the words that others have to say back stay: nobody has to say a password in a URL."""
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


def _leaves(value: Any, place: Structure) -> tuple[list[str], list[int]]:
    """Every text and whole number to be searched. This sees all that leaves the Computer, so it is quick."""
    texts: list[str] = []
    numbers: list[int] = []
    rest = _searched(value) if place is ANSWER and isinstance(value, dict) else [value]
    while rest:
        each = rest.pop()
        if isinstance(each, str):
            texts.append(each)
        elif isinstance(each, dict):
            rest.extend(each)
            rest.extend(each.values())
        elif isinstance(each, (list, tuple)):
            rest.extend(each)
        elif isinstance(each, int):
            numbers.append(each)
    return texts, numbers


def _searched(answer: dict[Any, Any]) -> list[Any]:
    """The parts of an answer, without what is binary in its content."""
    parts: list[Any] = [*answer]
    for key, value in answer.items():
        if key == "content" and isinstance(value, list | tuple):
            parts.extend(_without_binary(block, BLOCK) for block in value)
        else:
            parts.append(value)
    return parts


def _without_binary(value: Any, place: Structure) -> Any:
    if not isinstance(value, dict) or value.keys().isdisjoint(_MAY_BE_BINARY):
        return value
    binary = _binary_key(value, place)
    rest = {key: each for key, each in value.items() if binary is None or key != binary}
    if place is BLOCK and "resource" in rest:
        rest["resource"] = _without_binary(rest["resource"], RESOURCE)
    return rest


def _mask(value: Any, place: Structure, found: _Found) -> Any:
    if isinstance(value, str):
        return _cover_name(value, found.forms, found.names) if place.is_name else _cover(value, found.forms)
    if isinstance(value, dict):
        return _mask_object(value, place, found)
    if isinstance(value, list | tuple):
        items = [_mask(each, place, found) for each in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, int) and value in found.numbers and not isinstance(value, bool) and not place.is_name:
        return MASKED
    return value


def _mask_object(value: dict[Any, Any], place: Structure, found: _Found) -> dict[Any, Any]:
    binary, masked, copies = _binary_key(value, place), dict[Any, Any](), Counter[Any]()
    is_same = True
    for key, old in value.items():
        known = place.fields.get(key)
        new = old if binary is not None and key == binary else _mask(old, known or place.others or ANYTHING, found)
        new_key = key if known else _mask(key, NAME if place.named else ANYTHING, found)
        is_same = is_same and new is old and new_key is key
        masked[new_key if new_key is key else _free(new_key, copies, masked, value)] = new
    return value if is_same else masked


def _free(key: Any, copies: Counter[Any], *taken: dict[Any, Any]) -> Any:
    """A key that several secrets turn into the same text must not cost an entry, nor the search for a free one time."""
    copies[key] += 1
    free = key if copies[key] == 1 else f"{key} ({copies[key]})"
    while any(free in each for each in taken):
        copies[key] += 1
        free = f"{key} ({copies[key]})"
    return free


def _binary_key(value: dict[Any, Any], place: Structure) -> str | None:
    """Which entry of a content block is base64 of something binary."""
    if place is RESOURCE:
        key = "blob"
    elif place is BLOCK and value.get("type") in ("image", "audio"):
        key = "data"
    else:
        return None
    return key if _is_base64(value.get(key)) else None


def _is_base64(text: object) -> bool:
    try:
        return isinstance(text, str) and bool(b64decode(text, validate=True))
    except (NotBase64, ValueError):
        return False
