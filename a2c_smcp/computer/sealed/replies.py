"""What goes back to the agent of a sealed request: its answer and its notices, under a secret of the request."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from a2c_smcp.devices.sealing import ANSWER, ReplyKey, reply_key, seal_reply
from a2c_smcp.devices.transcript import CallAddress
from a2c_smcp.protocol.codec import Written, dumps

__all__ = ["OpenedData", "ReplySeal", "written"]


class ReplySeal:
    """Seals for the agent that sent one request. Notices are numbered, so that an agent notices an old one.

    The numbers begin at the time in milliseconds: they rise across a restart, after which the agent sends the request
    again with the same secret.
    """

    __slots__ = ("_address", "_prepared", "_reply", "_seq")

    def __init__(self, reply: bytes, address: CallAddress) -> None:
        self._reply = reply
        self._address = address
        self._seq = int(time.time() * 1000)
        self._prepared: tuple[ReplyKey, str] | None = None

    def prepare(self) -> None:
        """Do now what an answer needs beside its text."""
        if self._prepared is None:
            self._prepared = self._new_answer()

    def answer(self, text: bytes) -> Written:
        """The answer, which was `written`, as it is sent. Each has a key of its own."""
        (key, beginning), self._prepared = self._prepared or self._new_answer(), None
        sealed = key.seal(text)
        return Written({"req_id": self._address.req_id, "sealed": sealed}, f'{beginning}"{sealed}"}}')

    def _new_answer(self) -> tuple[ReplyKey, str]:
        """A key that was not used yet, and how the answer begins."""
        key = reply_key(self._reply, self._address, ANSWER, 0)
        return key, f'{{"req_id":{dumps(self._address.req_id)},"sealed":'

    def notice(self, name: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The payload of a notice, apart from who is told by whom."""
        self._seq += 1
        sealed = seal_reply(self._reply, self._address, name, self._seq, written(data))
        return {"req_id": self._address.req_id, "seq": self._seq, "sealed": sealed}


class OpenedData(dict[str, Any]):
    """The data of a request that was sealed, with the fingerprint of the agent's device, and the seal for replies.

    `is_repeated`: it was answered before.
    """

    __slots__ = ("device", "is_repeated", "seal")

    def __init__(self, data: Mapping[str, Any], device: str, seal: ReplySeal, *, is_repeated: bool) -> None:
        super().__init__(data)
        self.is_repeated = is_repeated
        self.device = device
        self.seal = seal


def written(value: Mapping[str, Any]) -> bytes:
    """The JSON that is sealed."""
    text = value.text if isinstance(value, Written) else dumps(dict(value))
    return text.encode(errors="surrogatepass")
