"""Skills of the published 0.4 generation: their names, the paths of their files, and the MIME types of these."""

from __future__ import annotations

import re
from posixpath import basename, normpath, splitext
from typing import Literal, TypeAlias

SKILL_FILE = "SKILL.md"
"""The file that makes a folder a skill."""
PRIVATE_FILE = ".skillenv"
"""The file of a skill that never leaves the computer."""
SKILL_SCHEME = "skill://"
SKILLS_EXTENSION = "io.modelcontextprotocol/skills"
"""MCP's extension by which servers list skills with the digests of their files."""

PathFault: TypeAlias = Literal["traversal", "forbidden"]
"""Why a path is refused, as `details.reason` of 4017 says it."""

_LONGEST_PART = 64
_PART = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_BUNDLE_ID = re.compile(r"[A-Za-z0-9_-]+")  # of any length in the name of a skill


def is_skill_part(text: str) -> bool:
    """True if a text may be the name of a skill of the user, or a part of the names of others."""
    return len(text) <= _LONGEST_PART and _PART.fullmatch(text) is not None


def is_skill_name(name: str) -> bool:
    """True if a name is `<skill>`, `<plugin>:<skill>` or `mcp:<bundle id>:<skill>`."""
    match name.split(":", 3):
        case [skill]:
            return is_skill_part(skill)
        case [plugin, skill]:
            return is_skill_part(plugin) and is_skill_part(skill)
        case ["mcp", bundle_id, skill]:
            is_bundle_id = _BUNDLE_ID.fullmatch(bundle_id) is not None and "__" not in bundle_id
            return is_bundle_id and is_skill_part(skill)
    return False


def fault_in_rel_path(rel_path: str) -> PathFault | None:
    """Why a path inside a skill is refused, whatever is there; `None` if it may be looked for."""
    parts = rel_path.split("/")
    if "\\" in rel_path or rel_path.startswith("/") or ".." in parts or any(":" in part for part in parts):
        return "traversal"
    return "forbidden" if is_private_file(rel_path) else None


def is_private_file(path: str) -> bool:
    """True if the last part of a path is the name of the secret file, in upper or lower case."""
    return basename(normpath(path)).casefold() == PRIVATE_FILE


_TEXT_TYPES = frozenset(f"application/{subtype}" for subtype in ("json", "xml", "yaml", "x-yaml", "toml", "javascript"))
BINARY_TYPE = "application/octet-stream"
"""Of files whose extension says nothing."""
_MIME_TYPES = {
    "md": "text/markdown",
    "markdown": "text/markdown",
    "txt": "text/plain",
    "json": "application/json",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "toml": "application/toml",
    "rst": "text/x-rst",
    "png": "image/png",
    "gif": "image/gif",
    "webp": "image/webp",
    "bmp": "image/bmp",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "ico": "image/vnd.microsoft.icon",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "zip": "application/zip",
    "gz": "application/gzip",
    "tar": "application/x-tar",
    "wasm": "application/wasm",
    "woff": "font/woff",
    "woff2": "font/woff2",
    "ttf": "font/ttf",
    "otf": "font/otf",
    "mp3": "audio/mpeg",
    "wav": "audio/wav",
    "mp4": "video/mp4",
    "webm": "video/webm",
}
"""By extension. The table is fixed, so that a file has the same type on every computer."""


def mime_type_of(path: str) -> str:
    """The MIME type of a file by its last extension."""
    return _MIME_TYPES.get(splitext(normpath(path))[1].lower().removeprefix("."), BINARY_TYPE)


def is_text_type(mime_type: str) -> bool:
    """True if contents of this type are sent as text. Its parameters do not matter."""
    plain = mime_type.partition(";")[0].strip().lower()
    return plain.startswith("text/") or plain.endswith(("+json", "+xml", "+yaml")) or plain in _TEXT_TYPES
