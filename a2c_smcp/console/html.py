"""HTML that is safe by construction: everything that is not `Html` is escaped, and only `tag` makes `Html`.

Text may come from any peer. Its markup is escaped, and so are characters that cannot be seen or that turn the writing
direction (`protocol/visible.py`). Scripts and styles can only be files of ours: `tag` refuses elements and attributes
that would hold code, and addresses that a browser would run.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias
from urllib.parse import urlsplit

from a2c_smcp.protocol.visible import escaped

__all__ = ["SHOWN", "Attribute", "Child", "Html", "joined", "tag", "text"]


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"
"""What may be in an element. `None` is nothing."""
Attribute: TypeAlias = str | int | bool | None
"""`True` is an attribute without a value; with `False` and `None` there is no attribute."""

_EMPTY = frozenset({"br", "hr", "img", "input", "link", "meta"})
_CODE = frozenset({"script", "style", "iframe", "object", "embed", "base"})
_ADDRESSES = frozenset({"href", "src", "action", "formaction"})
SHOWN = "\n\t"
"""Characters that are kept although they are controls."""


def text(value: object) -> Html:
    """Text as HTML: nothing of it is markup, and nothing of it is invisible."""
    return value if isinstance(value, Html) else Html(escape(escaped(str(value), keep=SHOWN)))


def joined(*children: Child) -> Html:
    """Children one after the other."""
    return Html("".join(_flat(children)))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element. `class_` is the attribute `class`, and `aria_label` is `aria-label`.

    Raises `ValueError` for what could run code: that is a mistake in a page.
    """
    if name in _CODE and not (name == "script" and set(attributes) == {"src", "type"} and not children):
        raise ValueError(f"<{name}> is not made here")
    start = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Html(start if name in _EMPTY else f"{start}{joined(*children)}</{name}>")


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, str | int):
            yield text(child)
        elif child is not None:
            yield from _flat(child)


def _attribute(key: str, value: Attribute) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if name.startswith("on") or name in ("style", "srcdoc"):
        raise ValueError(f"the attribute {name} holds code")
    if name in _ADDRESSES and not _is_address(str(value)):
        raise ValueError(f"{name} is no address of a page")
    return f" {name}" if value is True else f' {name}="{text(value)}"'


def _is_address(value: str) -> bool:
    """Whether it is a path here, or a web page. A browser reads over blanks and controls, so there may be none."""
    if escaped(value) != value or any(char.isspace() for char in value):
        return False
    if value.startswith(("/", "#", "?")):
        return not value.startswith(("//", "/\\"))
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
