"""Whether two requests with one `req_id` are the same call (WIRE §5), told without parsing what is large.

The same call has the same computer and tool, and params that are equal as JSON. A client that sends a call again sends
the same bytes for them, as ours do, so digests of the bytes are compared first. Small params that differ as bytes are
parsed, and compared whatever their order of keys and white space. Large ones are not: there, other bytes are another
call.
"""

from __future__ import annotations

import json
from functools import cached_property
from hashlib import sha256
from typing import Any

from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.codec import loads_exactly
from a2c_smcp.server.envelope import Envelope
from a2c_smcp.server.fields import raw_params

__all__ = ["Identity"]

_SMALL = 8 * 1024
"""Up to this size, in bytes, params that differ as bytes are parsed and compared."""


class Identity:
    """What remains of a request, to compare others with it. It may be kept longer than the request itself."""

    def __init__(self, envelope: Envelope) -> None:
        fields, params = envelope.fields, raw_params(envelope.body)
        self._target = fields["computer"], fields["tool_name"]
        self._attached = tuple(sha256(data).digest() for data in envelope.attachments)
        self._digest = sha256(params).digest()
        self._params = bytes(params) if len(params) < _SMALL else None

    @property
    def size(self) -> int:
        """Bytes that keeping it takes, beyond a few."""
        return len(self._params or b"")

    def is_same(self, other: Identity) -> bool:
        if self._target != other._target or self._attached != other._attached:
            return False
        return self._digest == other._digest or (self._canonical is not None and self._canonical == other._canonical)

    @cached_property
    def _canonical(self) -> str | None:
        """Small params whatever their order of keys and white space."""
        try:
            return None if self._params is None else _text(loads_exactly(str(self._params, "utf-8")))
        except BadRequest:
            return None


def _text(params: Any) -> str:
    """So that 1 and true differ."""
    return json.dumps(params, sort_keys=True)
