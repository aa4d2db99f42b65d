"""Checks who has signed the answer to a request (WIRE §10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from a2c_smcp.agent.sealed.device import AgentDevice
from a2c_smcp.agent.types import Seat
from a2c_smcp.devices import signing
from a2c_smcp.devices.transcript import CallAddress
from a2c_smcp.errors import DeviceMismatch, SMCPError

__all__ = ["Checking", "servers_word"]

_SERVER_CODES = frozenset((400, 403, 404, 408, 410, 413, 421, 426, 429, 499, 500, 503))


class Checking:
    """Checks the signature of the answer to one request, and only then gives its content to `then`.

    A large answer is checked beside the event loop, unless `then` has to see it before any later event. `is_open`:
    whether checking is left to `finish`. `of_new_key`: the answer, if its signature is right and its key is not the one
    by which the computer is known.
    """

    __slots__ = ("_address", "_device", "_event", "_request", "_seat", "_signed_for", "_then", "is_open", "of_new_key")

    def __init__(
        self,
        device: AgentDevice,
        seat: Seat,
        address: CallAddress,
        event: str,
        request: Mapping[str, Any],
        then: Callable[[Any], Any] | None,
    ) -> None:
        self._device = device
        self._seat = seat
        self._event = event
        self._address = address
        self._request = request
        self._then = then
        self._signed_for: bytes | None = None
        self.is_open = True
        self.of_new_key: Any = None

    def prepare(self) -> None:
        """Digest the parameters, which the answer is signed for. Those that are not JSON were not sent either."""
        with suppress(TypeError, ValueError, RecursionError):
            self._signed_for = self._digest()

    def _digest(self) -> bytes:
        params = signing.digest(signing.parameters(self._event, self._request))
        return signing.signed_for(self._address, self._event, params)

    def check(self, answer: Any) -> Any:
        """The signed content of the answer, or a large answer as it came. Raises `DeviceMismatch`."""
        try:
            content = self._content(answer, quickly=self._then is None)
        except signing.TakesLong:
            if SMCPError.from_wire(answer) is None:
                return answer
            content = self._content(answer)
        self.is_open = False
        return self._read(content)

    async def finish(self, answer: Any) -> Any:
        content = await asyncio.to_thread(self._content, answer)
        if error := SMCPError.from_wire(content):
            raise error
        return self._read(content)

    def _read(self, content: Any) -> Any:
        return self._then(content) if self._then else content

    def _content(self, answer: Any, *, quickly: bool = False) -> Any:
        if not isinstance(answer, dict):
            raise self._mismatch("an answer is not signed")
        try:
            found = signing.checked(self._signed_for or self._digest(), answer, quickly=quickly)
            if found is None:
                return servers_word(answer)
            self._check_signer(found.key, answer)
        except DeviceMismatch as error:
            error.outcome = "unknown"
            raise
        return found.answer

    def _check_signer(self, key: bytes, answer: dict[str, Any]) -> None:
        try:
            self._device.check_signer(self._seat, key)
        except DeviceMismatch as error:
            if "known" in error.details:
                self.of_new_key = answer
            raise

    def _mismatch(self, why: str) -> DeviceMismatch:
        return DeviceMismatch(f"{why}: start computer {self._seat.computer!r} with --sign", outcome="unknown")


def servers_word(answer: Any) -> Any:
    """An answer that only a Server can have made: an error of a code that Servers make, marked as not verified.

    Raises `DeviceMismatch` for anything else.
    """
    error = SMCPError.from_wire(answer)
    if error is None or error.code not in _SERVER_CODES:
        raise DeviceMismatch(
            "an answer is not sealed or signed by the computer: the Server has changed it, or made it up",
            outcome="unknown",
        )
    return {**error.to_wire(verified=False)}
