"""Bundle ids: the names of MCP servers as the published 0.3 and 0.4 generations know them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from a2c_smcp.protocol.names import MAX_NAME

__all__ = ["BundleIds", "bundle_id_of", "fault_in_bundle_id"]

_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST_BYTES = 8


def fault_in_bundle_id(bundle_id: str) -> str | None:
    """What is wrong with a bundle id, or `None`."""
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
    return explicit or _from_name(server["name"]) or _from_connection(server["type"], server["server_parameters"])


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


def _from_name(name: str) -> str:
    return re.sub("_+", "_", _OTHER.sub("_", name)).strip("_-")


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
