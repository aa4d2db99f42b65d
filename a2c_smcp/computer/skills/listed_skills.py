"""Which resources of an MCP server are skills, and where their files belong (PROTOCOL-0.4 §5)."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from a2c_smcp.computer.skills.skill import NotASkill
from a2c_smcp.protocol.names import MAX_WINDOW_URI
from a2c_smcp.protocol.skills import SKILL_SCHEME

__all__ = ["ListedSkill", "check_staged_path", "root_of", "skills_in"]

_KINDS = ("resources", "mounted", "archive")
_LONGEST_PART = 255
_DEEPEST = 16
_MOST_SLASHES = 32


@dataclass(frozen=True)
class ListedSkill:
    """A root, and the resources below it: their URIs, by their paths relative to the root."""

    uri: str
    kind: str
    version: str | None = None
    files: dict[str, str] = field(default_factory=dict)


def skills_in(resources: Iterable[object]) -> dict[str, ListedSkill]:
    """The skills in a list of resources, by the URIs of their roots. Of two resources with one URI the first counts."""
    listed = _skill_resources(resources)
    kinds = {uri: kind for uri, meta in listed.items() if (kind := meta.get("source")) in _KINDS and _has_path(uri)}
    roots = [uri for uri in kinds if root_of(uri, kinds, itself=False) is None]
    skills = {uri: ListedSkill(uri, kinds[uri], _version(listed[uri])) for uri in roots}
    for uri in listed:
        root = root_of(uri, skills, itself=False)
        if root is not None and uri not in kinds:  # a root inside of another is only a folder
            skills[root].files[uri.removeprefix(f"{root}/")] = uri
    return skills


def root_of(uri: str, roots: Container[str], *, itself: bool = True) -> str | None:
    """The root that a URI is, or lies below."""
    if itself and uri in roots:
        return uri
    return next((each for each in _parents(uri) if each in roots), None)


def check_staged_path(path: str) -> None:
    """Raise `NotASkill` for a path of a file that is not plainly inside of a skill's folder."""
    parts = path.split("/")
    is_plain = all(part not in ("", ".", "..") and part.isprintable() for part in parts)
    if not is_plain or "\\" in path or ":" in path or len(parts) > _DEEPEST:
        raise NotASkill(f"the path {path[:_LONGEST_PART]!r} of a file is refused")
    try:
        lengths = [len(os.fsencode(part)) for part in parts]
    except UnicodeEncodeError:
        raise NotASkill(f"the path {path[:_LONGEST_PART]!r} of a file is refused") from None
    if max(lengths) > _LONGEST_PART:
        raise NotASkill(f"the path {path[:_LONGEST_PART]!r}… of a file is too long")


def _skill_resources(resources: Iterable[object]) -> dict[str, dict[str, Any]]:
    """The metadata of each resource of this scheme, by its URI."""
    found: dict[str, dict[str, Any]] = {}
    for each in resources:
        uri = each.get("uri") if isinstance(each, dict) else None
        if isinstance(uri, str) and uri.startswith(SKILL_SCHEME) and _is_usable(uri):
            meta = each["_meta"] if isinstance(each, dict) and isinstance(each.get("_meta"), dict) else {}
            found.setdefault(uri, meta)
    return found


def _is_usable(uri: str) -> bool:
    return len(uri) <= MAX_WINDOW_URI and uri.count("/") <= _MOST_SLASHES


def _has_path(uri: str) -> bool:
    return bool(uri.removeprefix(SKILL_SCHEME).partition("/")[2])


def _parents(uri: str) -> Iterator[str]:
    """The URIs of the folders that a URI lies in, the outermost first."""
    at = len(SKILL_SCHEME)
    while (at := uri.find("/", at)) >= 0:
        yield uri[:at]
        at += 1


def _version(meta: dict[str, Any]) -> str | None:
    version = meta.get("version")
    return str(version) if isinstance(version, str | int | float) and not isinstance(version, bool) else None
