"""Secrets that must not leave the Computer, and their removal from whatever does."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from a2c_smcp.computer.secrets.forms import Form, forms_of

__all__ = ["MASKED", "SHORTEST", "Mask"]

MASKED = "***"
"""What stands in place of a secret."""

SHORTEST = 6
"""Secrets of fewer characters are not searched for (WIRE §5): they would be found everywhere."""

_WORD = 4  # bytes
_INDEXED = 2 * _WORD - 1  # a text of so many bytes holds a whole aligned word, wherever it begins
_WHOLE_NUMBER = re.compile("-?[1-9][0-9]{0,99}")

T = TypeVar("T")


class Mask:
    """A registry of secrets. What has once been a secret remains one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._index = _Index(())
        self._adding = threading.Lock()
        self.add(secrets)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._secrets)} secrets>"

    def add(self, secrets: Iterable[str]) -> None:
        """Masks these from now on, but those that are too short."""
        with self._adding:
            new = {each for each in secrets if len(each) >= SHORTEST} - self._secrets
            if new:
                self._secrets |= new
                self._index = _Index(self._secrets)

    def text(self, text: str) -> str:
        """The same string where there is no secret in it."""
        return _cover(text, self._index.likely_in(text))

    def data(self, value: T) -> T:
        """A copy of a JSON-like value, keys included; the same object where there is no secret in it.

        MCP's binary content (images, sounds, blobs) is not searched.
        """
        index = self._index
        texts, numbers = _leaves(value)
        text = "\n".join(texts)
        forms = [form for form in index.likely_in(text) if form.text in text]
        if not forms and index.numbers.isdisjoint(numbers):
            return value
        masked: T = _mask(value, forms, index.numbers)
        return masked


class _Index:
    """Finds the few forms that may be in a text without trying each.

    A text is read as words of four bytes. A form of at least seven bytes that is somewhere in it covers one of those
    words, which begins at one of the first four bytes of the form. So a look at a quarter of the positions will do.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        secrets = tuple(secrets)
        forms = {form for secret in secrets for form in forms_of(secret)}
        self.numbers = frozenset(int(secret) for secret in secrets if _WHOLE_NUMBER.fullmatch(secret))
        self._by_word: dict[int, set[Form]] = {}
        self._others: set[Form] = set()
        for form in forms:
            raw = form.text.encode("utf-8", "surrogatepass")
            if len(raw) < _INDEXED:
                self._others.add(form)
                continue
            for start in range(_WORD):
                word = memoryview(raw[start : start + _WORD]).cast("I")[0]
                self._by_word.setdefault(word, set()).add(form)
        self._words = frozenset(self._by_word)

    def likely_in(self, text: str) -> set[Form]:
        if len(text) < SHORTEST:
            return set()
        raw = text.encode("utf-8", "surrogatepass")
        words = memoryview(raw)[: len(raw) // _WORD * _WORD].cast("I")
        return self._others.union(*(self._by_word[word] for word in self._words.intersection(words)))


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


def _spans(text: str, form: Form) -> Iterator[tuple[int, int]]:
    at = text.find(form.text)
    while at >= 0:
        end = at + len(form.text)
        yield max(at - form.before, 0), min(end + form.after, len(text))
        at = text.find(form.text, end)


def _leaves(value: Any) -> tuple[list[str], list[int]]:
    """Every text and whole number to be searched. This sees all that leaves the Computer, so it is quick."""
    texts: list[str] = []
    numbers: list[int] = []
    rest = [value]
    while rest:
        each = rest.pop()
        if isinstance(each, str):
            texts.append(each)
        elif isinstance(each, dict):
            binary = _binary_key(each)
            rest.extend(each)
            rest.extend(each.values() if binary is None else (each[key] for key in each if key != binary))
        elif isinstance(each, (list, tuple)):
            rest.extend(each)
        elif isinstance(each, int):
            numbers.append(each)
    return texts, numbers


def _mask(value: Any, forms: list[Form], numbers: frozenset[int]) -> Any:
    if isinstance(value, str):
        return _cover(value, forms)
    if isinstance(value, int) and not isinstance(value, bool):
        return MASKED if value in numbers else value
    if isinstance(value, list | tuple):
        items = [_mask(each, forms, numbers) for each in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return _mask_object(value, forms, numbers)
    return value


def _mask_object(value: dict[Any, Any], forms: list[Form], numbers: frozenset[int]) -> dict[Any, Any]:
    binary, masked = _binary_key(value), dict[Any, Any]()
    is_same = True
    for key, old in value.items():
        new = old if binary is not None and key == binary else _mask(old, forms, numbers)
        new_key = _mask(key, forms, numbers)
        is_same = is_same and new is old and new_key is key
        masked[new_key if new_key is key else _free(new_key, masked, value)] = new
    return value if is_same else masked


def _free(key: Any, *taken: dict[Any, Any]) -> Any:
    """A key that several secrets turn into the same text must not cost an entry."""
    number, free = 1, key
    while any(free in each for each in taken):
        number += 1
        free = f"{key} ({number})"
    return free


def _binary_key(value: dict[Any, Any]) -> str | None:
    """Which entry of an MCP content block is base64 of something binary."""
    if "blob" in value and "uri" in value:
        return "blob"
    if "mimeType" in value and value.get("type") in ("image", "audio"):
        return "data"
    return None
