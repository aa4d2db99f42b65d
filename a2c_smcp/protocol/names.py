"""Which strings may be names on the wire (WIRE §6): of offices, members, requests, tools, events, MCP clients."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import count
from typing import Any

from a2c_smcp.errors import BadRequest, VersionMismatch

MAX_NAME = 128
MAX_TOOL_NAME = 256
MAX_WINDOW_URI = 2048
MIN_INSTANCE, MAX_INSTANCE = 16, 128

INVISIBLE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # controls: C0, DEL, C1
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\ud800-\udfff"  # halves of surrogate pairs
    "]"
)
"""Characters that are invisible, or change the direction of text: with them, two different names could look alike.

These are Unicode's `Default_Ignorable_Code_Point` (zero-width and format characters, fillers, variation selectors,
tags), line separators, marks of annotations, and the blank pattern of Braille.
"""


def fault_in(name: object, longest: int = MAX_NAME, shortest: int = 1) -> str | None:
    """The fault in a name, or `None`."""
    if not isinstance(name, str):
        return "must be a string"
    if shortest <= len(name) <= longest and name.isascii() and name.isprintable() and name[0] != " " != name[-1]:
        return None  # nearly all names; the rules follow
    if not shortest <= len(name) <= longest:
        return f"must have {shortest} to {longest} characters"
    if name != name.strip():
        return "must not begin or end with white space"
    if INVISIBLE.search(name):
        return "must not hold control, bidirectional-override, zero-width or other invisible characters"
    return None


def fault_in_client(client: object) -> str | None:
    """The fault in the `client` of a request, the MCP client behind an agent, or `None`."""
    if not isinstance(client, dict):
        return "must be an object with a name"
    if fault := fault_in(client.get("name")):
        return f"must have a valid name: it {fault}"
    version = client.get("version")
    fault = None if version is None else fault_in(version)
    return f"must have a valid version: it {fault}" if fault else None


def client_field(name: str, version: str = "") -> dict[str, str] | None:
    """The `client` of requests for an MCP client that calls itself so. What a name must not hold is left out.

    Returns `None` if nothing is left of the name.
    """
    given = {"name": _fitting(name), "version": _fitting(version)}
    return {field: text for field, text in given.items() if text} if given["name"] else None


def _fitting(text: str) -> str:
    return INVISIBLE.sub("", text).strip()[:MAX_NAME].rstrip()


# What to say about an unknown name.

_SIMILARITY = 0.5
_LISTED = 10


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """At most three of the known names, the most similar one first."""
    return get_close_matches(name[:MAX_TOOL_NAME], list(known), cutoff=_SIMILARITY)


def did_you_mean(similar: Iterable[str]) -> str:
    """The end of a sentence about an unknown name; empty if no name is similar."""
    meant = " or ".join(map(repr, similar))
    return f", did you mean {meant}?" if meant else ""


def name_hint(name: str, known: Sequence[str], kind: str = "tools", there: str = "It has") -> str:
    """A sentence with similar names, or all names there are, of things of this kind."""
    if similar := similar_names(name, known):
        return f"Did you mean {' or '.join(similar)}?"
    return f"{there} {enumerated(known)}." if known else f"{there} no {kind} at all."


def enumerated(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


# Which versions of the protocol a Server accepts from clients.

PROTOCOL_VERSION = "0.4.0"
FIRST_VERSION = "0.1"
"""The version of a client that names none (WIRE §1)."""

_LATEST_MINOR = 4
"""0.5 wants one computer in an office, and other acks."""

_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.\d{1,4})?(?:[-+.]?[0-9A-Za-z][0-9A-Za-z.+-]{0,31})?", re.ASCII)


def accept(claimed: str | None, required: str | None = None) -> str:
    """The version that this client speaks. Raises `BadRequest` for a malformed one, or `VersionMismatch`."""
    version = FIRST_VERSION if claimed is None else claimed
    parsed = _VERSION.fullmatch(version)
    if parsed is None:
        raise BadRequest("a2c_version: must look like 0.4 or 0.4.2", field="a2c_version")
    is_supported = f"{version}.".startswith(f"{required}.") if required else int(parsed[2]) <= _LATEST_MINOR
    if parsed[1] != "0" or not is_supported:
        raise VersionMismatch(
            f"this server speaks {required or '0.1 to 0.4'}, not {version}",
            server_version=PROTOCOL_VERSION,
            client_version=version,
            min_supported=required or FIRST_VERSION,
            max_supported=required or PROTOCOL_VERSION,
        )
    return version


# Bundle ids: the names of MCP servers as the published 0.3 and 0.4 generations know them.

_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST_BYTES = 8


def fault_in_bundle_id(bundle_id: str) -> str | None:
    """The fault in a bundle id, or `None`."""
    if not 0 < len(bundle_id) <= MAX_NAME:
        return f"must have 1 to {MAX_NAME} characters"
    if _OTHER.search(bundle_id) or "__" in bundle_id:
        return "must consist of the letters A to Z and a to z, digits, hyphens and single underscores"
    return None


def bundle_id_of(server: Mapping[str, Any]) -> str:
    """Return the bundle id of a server in the shape of 000: `name`, `type`, `server_parameters`, perhaps `bundle_id`.

    Without an explicit one it is derived from the name, or, if nothing of the name is left, from the connection. The
    placeholders of the configuration must still be in it: a bundle id does not depend on the values of inputs.
    """
    explicit = server.get("bundle_id")
    from_name = re.sub("_+", "_", _OTHER.sub("_", server["name"])).strip("_-")
    return explicit or from_name or _from_connection(server["type"], server["server_parameters"])


class BundleIds:
    """The bundle ids of the servers of a computer, all different.

    Of two servers that want one id the first has it; the second gets a number, and its owner a warning. An id that is
    the name of another server is given to no server: a request may name a server either way (WIRE §9).
    """

    def __init__(self) -> None:
        self.by_name: Mapping[str, str] = {}
        self._wanted: dict[str, str] = {}
        self._servers: dict[str, str] = {}

    def put(self, server: Mapping[str, Any]) -> None:
        """Add a server, or replace the one of this name. It is in the shape that `bundle_id_of` reads."""
        self._wanted[server["name"]] = bundle_id_of(server)
        self._give()

    def remove(self, name: str) -> None:
        del self._wanted[name]
        self._give()

    def of(self, name: str) -> str:
        """Return the bundle id of a server; of one that was not put, its name."""
        return self.by_name.get(name, name)

    def server(self, called: str) -> str | None:
        """Return the name of the server with this name or bundle id, or `None`."""
        return called if called in self._wanted else self._servers.get(called)

    @property
    def warnings(self) -> list[str]:
        return [
            f"server {name!r}: its bundle id is {given!r}, because {self._wanted[name]!r} belongs to another server; "
            "give it a bundle_id of its own in the configuration"
            for name, given in self.by_name.items()
            if given != self._wanted[name]
        ]

    def _give(self) -> None:
        given: dict[str, str] = {}
        reserved = {*self._wanted, *self._wanted.values()}
        for name, wanted in self._wanted.items():
            bundle_id, number = wanted, count(2)
            if wanted in given or (wanted in self._wanted and wanted != name):
                while bundle_id in reserved or bundle_id in given:
                    bundle_id = f"{wanted}-{next(number)}"
            given[bundle_id] = name
        self._servers, self.by_name = given, {name: bundle_id for bundle_id, name in given.items()}


def _from_connection(kind: str, parameters: Mapping[str, Any]) -> str:
    if kind == "stdio":
        arguments = _counted(_text(each) for each in parameters.get("args") or ())
        fields = _text(kind) + _text(parameters["command"]) + arguments + _pairs(parameters.get("env"))
    else:
        fields = _text(kind) + _text(parameters["url"]) + _pairs(parameters.get("headers"))
    return "bundle_" + hashlib.sha256(fields).digest()[:_DIGEST_BYTES].hex()


def _text(value: object) -> bytes:
    encoded = str(value).encode(errors="surrogatepass")
    return _length(len(encoded)) + encoded


def _pairs(pairs: Mapping[str, Any] | None) -> bytes:
    return _counted(_text(name) + _text(value) for name, value in sorted((pairs or {}).items()))


def _counted(items: Iterable[bytes]) -> bytes:
    written = [*items]
    return _length(len(written)) + b"".join(written)


def _length(length: int) -> bytes:
    return length.to_bytes(4, "big")
