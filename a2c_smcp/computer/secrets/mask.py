"""Secrets that must not leave the Computer, and their removal from whatever does."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from a2c_smcp.computer.secrets.forms import Form
from a2c_smcp.computer.secrets.index import Index
from a2c_smcp.computer.secrets.places import ANYTHING, NAME, Place, is_word

__all__ = ["MASKED", "SHORTEST", "Mask"]

MASKED = "***"
"""What stands in place of a secret."""

SHORTEST = 6
"""Secrets of fewer characters are not searched for (WIRE §5): they would be found everywhere."""

T = TypeVar("T")


class Mask:
    """A registry of secrets. What has once been a secret remains one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._index = Index(())
        self._adding = threading.Lock()
        self.add(secrets)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._secrets)} secrets>"

    def add(self, secrets: Iterable[str]) -> None:
        """Masks these from now on, but those that are too short."""
        with self._adding:
            new = {each for each in secrets if len(each) >= SHORTEST} - self._secrets
            if new:
                self._index = Index(self._secrets | new)
                self._secrets |= new  # from now on there is another version

    @property
    def version(self) -> int:
        """Another one, whenever something is masked that was not before."""
        return len(self._secrets)

    def text(self, text: str) -> str:
        """The same string where there is no secret in it."""
        return _cover(text, self._likely_in(text))

    def name(self, name: str) -> str:
        """Like `text`, for what others have to say back: a secret that is an ordinary word stays in it."""
        return _cover(name, [form for form in self._likely_in(name) if not is_word(form.text)])

    def uri(self, uri: str) -> str:
        """A name whose scheme stays, so that it can still be read as a URI."""
        scheme, mark, rest = uri.partition("://")
        return scheme + mark + self.name(rest) if mark else self.name(uri)

    def data(self, value: T, place: Place = ANYTHING) -> T:
        """A copy of a JSON-like value, keys included; the same object where there is no secret in it.

        What the protocol defines at its `place` stays. MCP's binary content (images, sounds, blobs) is not searched.
        """
        index = self._index
        texts, numbers = _leaves(value)
        text = "\n".join(texts)
        forms = [form for form in index.likely_in(text) if form.text in text]
        if not forms and index.numbers.isdisjoint(numbers):
            return value
        names = [form for form in forms if not is_word(form.text)]
        masked: T = _mask(value, place, _Found(forms, names, index.numbers))
        return masked

    def _likely_in(self, text: str) -> Iterable[Form]:
        return self._index.likely_in(text) if len(text) >= SHORTEST else ()


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


def _mask(value: Any, place: Place, found: _Found) -> Any:
    if isinstance(value, str):
        return _cover(value, found.names if place.is_name else found.forms)
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


def _mask_object(value: dict[Any, Any], place: Place, found: _Found) -> dict[Any, Any]:
    binary, masked = _binary_key(value), dict[Any, Any]()
    is_same = True
    for key, old in value.items():
        known = place.fields.get(key)
        new = old if binary is not None and key == binary else _mask(old, known or place.others or ANYTHING, found)
        new_key = key if known else _mask(key, NAME if place.named else ANYTHING, found)
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
