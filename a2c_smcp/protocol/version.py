"""Which versions of the protocol a Server accepts from clients."""

from __future__ import annotations

import re

from a2c_smcp.errors import BadRequest, VersionMismatch

__all__ = ["FIRST_VERSION", "PROTOCOL_VERSION", "accept"]

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
    is_meant = f"{version}.".startswith(f"{required}.") if required else int(parsed[2]) <= _LATEST_MINOR
    if parsed[1] != "0" or not is_meant:
        raise VersionMismatch(
            f"this server speaks {required or '0.1 to 0.4'}, not {version}",
            server_version=PROTOCOL_VERSION,
            client_version=version,
            min_supported=required or FIRST_VERSION,
            max_supported=required or PROTOCOL_VERSION,
        )
    return version
