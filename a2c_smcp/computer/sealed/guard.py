"""Answers agents for a computer that has a device: opens sealed requests, refuses plain ones, signs answers.

A sealed request is opened, its agent is checked, and then it is an ordinary request: it takes the same way as a plain
one, and its answer, masked and within the limits as any other, is signed and sealed at the end. It runs in a task of
its own, which outlives the connection that it came by, and is run once (`remembered.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.sealed.device import ComputerDevice
from a2c_smcp.computer.sealed.remembered import Remembered, RequestKey, SealedRequests
from a2c_smcp.computer.sealed.replies import OpenedData, ReplySeal
from a2c_smcp.computer.secrets import ANSWER, Mask
from a2c_smcp.device_events import GET_DEVICE_EVENT, SEALED_EVENT
from a2c_smcp.devices import signing
from a2c_smcp.devices.identity import Voucher, fingerprint
from a2c_smcp.devices.known import KnownPeer
from a2c_smcp.devices.sealing import OpenedRequest, SealingKey, open_request
from a2c_smcp.devices.statement import vouchers_from_wire
from a2c_smcp.devices.transcript import CallAddress, decoded
from a2c_smcp.errors import BadRequest, ResultGone, SMCPError
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.protocol import codec
from a2c_smcp.protocol.events import OLDER_FIELDS, lookup
from a2c_smcp.protocol.results import computer_error_ack
from a2c_smcp.smcp import TOOL_CALL_EVENT

__all__ = ["GuardedAnswers"]

logger = logging.getLogger(__name__)

_SEALED, _GET_DEVICE = lookup(SEALED_EVENT), lookup(GET_DEVICE_EVENT)
_NOT_SEALED = frozenset((SEALED_EVENT, GET_DEVICE_EVENT))
_HEAD_ROOM = 1024  # bytes of a message beside what is sealed or signed
_REPLY = 32


class _Content(NamedTuple):
    """What was sealed."""

    event: str
    data: dict[str, Any]
    timeout: int
    reply: bytes
    was: tuple[Voucher, ...]


class GuardedAnswers:
    """Stands before the answers of one computer in one office. `origin` is that of its Server."""

    def __init__(
        self,
        device: ComputerDevice,
        name: str,
        office: str,
        origin: str,
        answer: Callable[[str, dict[str, Any]], Awaitable[Any]],
        mask: Mask,
    ) -> None:
        self._device = device
        self._name, self._office, self._origin = name, office, origin
        self._answer = answer
        self._mask = mask
        self._requests = SealedRequests()
        self._tasks: set[asyncio.Task[dict[str, Any]]] = set()
        device.on_key_dropped.append(self._requests.forget_key)

    def room(self, largest: int) -> int:
        """The largest answer that fits into a message of this size once it is signed and sealed, which takes base64."""
        return (largest * 3 // 4 if self._device.e2e != "off" else largest) - _HEAD_ROOM

    async def close(self) -> None:
        await cancel_and_wait(*self._tasks)

    def caller(self, caller: Caller, data: Mapping[str, Any]) -> Caller:
        """The caller, with its device if the request was sealed."""
        return replace(caller, device=data.device, seal=data.seal) if isinstance(data, OpenedData) else caller

    def forget(self) -> None:
        """Drop the answers that are kept. What was answered stays known."""
        self._requests.forget_answers()

    async def answer(self, name: str, data: dict[str, Any]) -> Any:
        """The answer to a request as it is sent. Errors become answers, too."""
        try:
            if name == GET_DEVICE_EVENT:
                return self._statement(codec.decode(_GET_DEVICE, data))
            if name == SEALED_EVENT and self._device.e2e != "off":
                return await self._unsealed(codec.decode(_SEALED, data))
            self._device.admit_plain(self._agent(_agent_in(data)))
        except SMCPError as error:
            return self._mask.data(computer_error_ack(_row(name), error), ANSWER)
        except Exception:
            logger.exception("%s failed", name)
            return computer_error_ack(_row(name), SMCPError())
        return await self._signed(name, data, await self._answer(name, data))

    def _agent(self, name: str) -> KnownPeer:
        return KnownPeer(self._origin, self._office, "agent", name)

    def _statement(self, data: dict[str, Any]) -> dict[str, Any]:
        nonce = decoded(data["nonce"], "nonce")
        return {**self._device.statement(nonce, self._office, data["agent"], self._name), "req_id": data["req_id"]}

    # Sealed requests

    async def _unsealed(self, data: dict[str, Any]) -> dict[str, Any]:
        if data["office_id"] != self._office or data["computer"] != self._name:
            raise BadRequest("this request is for another computer or office", field="computer")
        address = CallAddress(self._office, data["agent"], self._name, data["req_id"])
        key = self._device.key(data["kid"])
        if key is None:
            raise self._device.unknown_key(data["sealed"], *address[:3])
        opened = await self._opened(key, address, data["sealed"])
        content = _content(opened.body)
        self._device.admit_sealed(self._agent(data["agent"]), opened.agent, content.was)
        remembered_by = RequestKey(fingerprint(opened.agent), address.req_id)
        digest = hashlib.sha256(opened.body).digest()
        request = self._requests.find(remembered_by, digest)
        if request is None:
            request = Remembered(digest, key.kid, ReplySeal(content.reply, address))
            self._requests.begin(remembered_by, request)
        elif request.answer is not None:
            return request.seal.answer(request.answer)
        elif request.is_over and content.event != TOOL_CALL_EVENT:
            raise ResultGone(repr(address.req_id), outcome="done")
        task = request.task
        if task is None:
            inner = self._inner(content, data, remembered_by.device, request.seal)
            task = request.task = asyncio.create_task(self._run(remembered_by, content.event, inner))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return request.seal.answer(await asyncio.shield(task))

    async def _opened(self, key: SealingKey, address: CallAddress, sealed: str) -> OpenedRequest:
        public = self._device.identity.public
        if len(sealed) <= signing.LARGE:
            return open_request(key, address, public, sealed)
        return await asyncio.to_thread(open_request, key, address, public, sealed)

    def _inner(self, content: _Content, outer: Mapping[str, Any], device: str, seal: ReplySeal) -> OpenedData:
        """The request as if it had come in plain. Who asks whom is what the seal belongs to."""
        addressed = {field: outer[field] for field in ("agent", "computer", "office_id", "req_id")}
        for field, value in addressed.items():
            if content.data.get(field, value) != value:
                raise BadRequest(f"{field}: differs inside and outside of the seal", field=field)
        limited = {"timeout": min(outer["timeout"], content.timeout)} if "timeout" in content.data else {}
        return OpenedData({**content.data, **addressed, **limited}, device, seal)

    async def _run(self, remembered_by: RequestKey, event: str, data: OpenedData) -> dict[str, Any]:
        try:
            answer = await self._signed(event, data, await self._answer(event, data))
        except BaseException:
            self._requests.give_up(remembered_by)
            raise
        self._requests.end(remembered_by, answer, len(codec.dumps_each([answer])))
        return answer  # type: ignore[no-any-return]

    # Signatures

    async def _signed(self, event: str, request: Mapping[str, Any], answer: Any) -> Any:
        if not self._device.signs or not isinstance(answer, dict) or not isinstance(request.get("req_id"), str):
            return answer
        address = CallAddress(self._office, _agent_in(request), self._name, request["req_id"])
        parameters = signing.parameters(_row_name(event), request)
        work = (self._device.identity, address, _row_name(event), parameters, answer)
        if signing.is_small(answer):
            return signing.signed(*work)
        return await asyncio.to_thread(signing.signed, *work)


def _row(name: str) -> Any:
    try:
        return lookup(name)
    except SMCPError:
        return None


def _row_name(name: str) -> str:
    """The name that an event has in the table: an older one (003) is another name for the same request."""
    row = _row(name)
    return row.name if row else name


def _agent_in(data: Mapping[str, Any]) -> str:
    agent = data.get("agent", data.get(OLDER_FIELDS["agent"]))
    return agent if isinstance(agent, str) else ""


def _content(body: bytes) -> _Content:
    """Raises `BadRequest` or `DeviceMismatch`."""
    content = codec.loads_exactly(body)
    event, data = (content.get("event"), content.get("data")) if isinstance(content, dict) else (None, None)
    if not isinstance(event, str) or not isinstance(data, dict) or event in _NOT_SEALED:
        raise BadRequest("a sealed request has an event and its data", field="sealed")
    timeout = content.get("timeout")
    if type(timeout) is not int or timeout < 1:
        raise BadRequest("timeout: must be whole seconds", field="timeout")
    reply, was = decoded(content.get("reply"), "reply", _REPLY), vouchers_from_wire(content.get("was"))
    return _Content(event, data, timeout, reply, was)
