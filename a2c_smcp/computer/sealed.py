"""Answers agents for a computer that has a device: opens sealed requests, refuses plain ones, signs answers.

A sealed request is opened, its agent is checked, and then it is an ordinary request: it takes the same way as a plain
one, and its answer, masked and within the limits as any other, is signed and sealed at the end. It outlives the
connection that it came by, and is run once (`device.py`: `Remembered`).

Answers come by callback, as those to plain tool calls do: each task between the arrival of a call and its tool would
cost the call more than most of the cryptography. Only what takes long has a task: requests beside tool calls, and the
signing and opening of large ones in a thread. These tasks belong to the guard. What the answer needs beside its content
is prepared while the tool runs (`_Preparation`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.consent.freeze import OwnersFreeze
from a2c_smcp.computer.device import ComputerDevice, OpenedData, Remembered, ReplySeal, RequestKey, written
from a2c_smcp.computer.secrets.mask import Mask
from a2c_smcp.connection import Deferred
from a2c_smcp.device_events import GET_DEVICE_EVENT, SEALED_EVENT
from a2c_smcp.devices import signing as signing
from a2c_smcp.devices.identity import KnownPeer, Voucher, fingerprint
from a2c_smcp.devices.signing import OpenedRequest, open_request, vouchers_from_wire
from a2c_smcp.devices.transcript import CallAddress, decoded
from a2c_smcp.errors import BadRequest, ResultGone, SMCPError
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol import codec
from a2c_smcp.protocol.events import OLDER_FIELDS, lookup
from a2c_smcp.protocol.results import computer_error_ack
from a2c_smcp.protocol.structure import ANSWER
from a2c_smcp.smcp import TOOL_CALL_EVENT

logger = logging.getLogger(__name__)

Then: TypeAlias = Callable[[Any], None]
"""Is called with an answer."""
GiveUp: TypeAlias = Callable[[], None] | None
"""Is called if there will be none."""

_SEALED, _GET_DEVICE = lookup(SEALED_EVENT), lookup(GET_DEVICE_EVENT)
_NOT_SEALED = frozenset((SEALED_EVENT, GET_DEVICE_EVENT))
_ADDRESSED = ("agent", "computer", "office_id", "req_id")
_HEAD_ROOM = 1024  # bytes of a message beside what is sealed or signed
_REPLY = 32


class _Content(NamedTuple):
    """A request after it was opened."""

    event: str
    data: dict[str, Any]
    timeout: int
    reply: bytes
    was: tuple[Voucher, ...]


@dataclass(eq=False)
class SealedAnswers:
    """Stands before the answers of one computer in one office. `origin` is that of its Server.

    `_answer` begins an ordinary answer: to a plain request, or to one that was opened.
    """

    _device: ComputerDevice
    _name: str
    _office: str
    _origin: str
    _answer: Callable[[str, dict[str, Any]], Deferred | Awaitable[Any]]
    _on_refused: Callable[[str, dict[str, Any], SMCPError], None]
    _mask: Mask
    _freezing: OwnersFreeze

    def __post_init__(self) -> None:
        self._requests = self._device.requests
        self._tasks = OwnedTasks()

    def room(self, largest: int) -> int:
        """The largest answer that fits into a message of this size once it is signed and sealed, which takes base64."""
        return (largest * 3 // 4 if self._device.e2e != "off" else largest) - _HEAD_ROOM

    async def close(self) -> None:
        """The computer has left the office."""
        await self._tasks.close()
        self.forget()

    def caller(self, caller: Caller, data: Mapping[str, Any]) -> Caller:
        """The caller, with its device if the request was sealed."""
        if not isinstance(data, OpenedData):
            return caller
        return replace(caller, device=data.device, seal=data.seal, is_repeating=data.is_repeated)

    def forget(self) -> None:
        """Drop the answers that are kept. What was answered stays known."""
        self._requests.forget_answers(self._office)

    def answer(self, name: str, data: dict[str, Any]) -> Deferred:
        """The answer to a request as it is sent. Errors become answers, too."""
        return Deferred(partial(self._begin, name, data))

    def _begin(self, name: str, data: dict[str, Any], then: Then) -> None:
        try:
            if name == GET_DEVICE_EVENT:
                self._freezing.check()
                then(self._statement(codec.decode(_GET_DEVICE, data)))
            elif name == SEALED_EVENT and self._device.e2e != "off":
                self._begin_sealed(codec.decode(_SEALED, data), then)
            else:
                if self._device.e2e != "off":
                    self._device.admit_plain(self._agent(_agent_in(data)))
                self._run(name, data, then)
        except Exception as error:
            then(self._refused(name, data, error))

    def _refused(self, name: str, data: dict[str, Any], error: Exception) -> Any:
        if isinstance(error, SMCPError):
            self._on_refused(name, data, error)
        return self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> Any:
        if isinstance(error, SMCPError):
            return self._mask.data(computer_error_ack(_row(name), error), ANSWER)
        logger.error("%s failed", name, exc_info=error)
        return computer_error_ack(_row(name), SMCPError())

    def _agent(self, name: str) -> KnownPeer:
        return KnownPeer(self._origin, self._office, "agent", name)

    def _statement(self, data: dict[str, Any]) -> dict[str, Any]:
        nonce = decoded(data["nonce"], "nonce")
        return {**self._device.statement(nonce, self._office, data["agent"], self._name), "req_id": data["req_id"]}

    # Sealed requests

    def _begin_sealed(self, data: dict[str, Any], then: Then) -> None:
        if data["office_id"] != self._office or data["computer"] != self._name:
            raise BadRequest("this request is for another computer or office", field="computer")
        address = CallAddress(self._office, data["agent"], self._name, data["req_id"])
        key, sealed = self._device.key(data["kid"]), data["sealed"]
        if key is None:
            raise self._device.unknown_key(sealed, *address[:3])
        work = (key, address, self._device.identity.public, sealed)
        if len(sealed) <= signing.LARGE:
            self._begin_opened(data, _Sealed(address, key.kid, open_request(*work)), then)
        else:
            self._tasks.spawn(self._open_large(data, address, work, then))

    async def _open_large(self, data: dict[str, Any], address: CallAddress, work: tuple[Any, ...], then: Then) -> None:
        try:
            opened = await asyncio.to_thread(open_request, *work)
            self._begin_opened(data, _Sealed(address, data["kid"], opened), then)
        except Exception as error:
            then(self._refused(SEALED_EVENT, data, error))

    def _begin_opened(self, outer: dict[str, Any], sealed: _Sealed, then: Then) -> None:
        """Answer a request whose agent has signed it, unless that was done before."""
        address, opened = sealed.address, sealed.opened
        content = _content(opened.body)
        self._device.admit_sealed(self._agent(address.agent), opened.agent, content.was)
        key = RequestKey(fingerprint(opened.agent), address)
        request = self._requests.find(key, opened.digest, sealed.kid)
        seal = request.seal if request else ReplySeal(content.reply, address)
        inner = _inner(content, outer, key.device, seal, is_repeated=request is not None)
        if self._freezing.state.is_frozen:  # not remembered: the same bytes may be sent again after the release
            self._run(content.event, inner, lambda answer: then(seal.answer(written(answer))))
            return
        if request and request.answer is not None:
            then(request.seal.answer(request.answer))
            return
        if request and request.waiting:
            request.waiting.append(then)
            return
        if request and request.outcome and content.event != TOOL_CALL_EVENT:
            raise ResultGone(repr(address.req_id), outcome=request.outcome)
        if request is None:
            self._device.make_room()
            if self._device.key(sealed.kid) is None:
                raise self._device.unknown_key(outer["sealed"], *address[:3])
            request = Remembered(opened.digest, sealed.kid, seal)
            self._requests.begin(key, request)
        request.waiting.append(then)
        self._run(content.event, inner, partial(self._end, key, request), partial(self._requests.give_up, key))

    def _end(self, key: RequestKey, request: Remembered, answer: Any) -> None:
        try:
            text = written(answer)
        except SMCPError as error:
            text = written(self._failed(SEALED_EVENT, error))
        request.end(text)
        self._requests.keep(key, text)

    # Answers

    def _run(self, event: str, data: dict[str, Any], then: Then, give_up: GiveUp = None) -> None:
        """Call `then` with the answer to a request, signed. `give_up` is called if there will be none."""
        preparation = _Preparation(event, data, self._signing_address(data))
        answer, signed = self._answer(event, data), partial(self._sign, preparation, then, give_up)
        if isinstance(answer, Deferred):
            answer.begin(signed)
            preparation.prepare_soon()
        else:
            self._spawn(_awaited(answer, signed), give_up)

    def _signing_address(self, data: Mapping[str, Any]) -> CallAddress | None:
        """Where the signed answer to a request belongs; `None` if it is not signed."""
        if not self._device.signs or not isinstance(data.get("req_id"), str):
            return None
        return CallAddress(self._office, _agent_in(data), self._name, data["req_id"])

    def _sign(self, preparation: _Preparation, then: Then, give_up: GiveUp, answer: Any) -> None:
        preparation.is_over = True
        if preparation.address is None or not isinstance(answer, dict):
            then(answer)
        elif signing.is_small(answer):
            then(self._signed(preparation, preparation.address, answer))
        else:
            signing_it = asyncio.to_thread(self._signed, preparation, preparation.address, answer)
            self._spawn(_awaited(signing_it, then), give_up)

    def _spawn(self, work: Coroutine[Any, Any, None], give_up: GiveUp) -> None:
        task = self._tasks.spawn(work)
        if give_up:
            task.add_done_callback(lambda ended: give_up() if ended.cancelled() or ended.exception() else None)

    def _signed(self, preparation: _Preparation, address: CallAddress, answer: dict[str, Any]) -> Any:
        """The signed answer. What cannot be signed becomes an error."""
        try:
            return signing.signed(self._device.identity, preparation.signed_for(address), answer)
        except Exception as error:
            return self._failed(preparation.event, error)


class _Preparation:
    """A request that runs. What its answer needs beside the content is prepared meanwhile.

    `address` is where the answer belongs, if it is signed.
    """

    __slots__ = ("_data", "_signed_for", "address", "event", "is_over")

    def __init__(self, event: str, data: dict[str, Any], address: CallAddress | None) -> None:
        self.event = event
        self.address = address
        self.is_over = False
        self._data = data
        self._signed_for: bytes | None = None

    def prepare_soon(self) -> None:
        """Prepare in the next turn of the event loop, after the task of the call, which sends it to its MCP server."""
        if not self.is_over and (self.address or isinstance(self._data, OpenedData)):
            asyncio.get_running_loop().call_soon(self._prepare)

    def _prepare(self) -> None:
        if self.is_over:
            return
        if isinstance(self._data, OpenedData):
            self._data.seal.prepare()
        if self.address:
            with suppress(TypeError, ValueError, RecursionError):  # raised again when the answer is signed
                self.signed_for(self.address)

    def signed_for(self, address: CallAddress) -> bytes:
        """The address that the answer is signed for."""
        if self._signed_for is None:
            row = _row(self.event)  # an older event (003) is another name for the same request
            name = row.name if row else self.event
            params = signing.digest(signing.parameters(name, self._data))
            self._signed_for = signing.signed_for(address, name, params)
        return self._signed_for


class _Sealed(NamedTuple):
    """A request that was opened, and the name of the key that it was sealed to."""

    address: CallAddress
    kid: str
    opened: OpenedRequest


async def _awaited(answer: Awaitable[Any], then: Then) -> None:
    then(await answer)


def _inner(
    content: _Content, outer: Mapping[str, Any], device: str, seal: ReplySeal, *, is_repeated: bool
) -> OpenedData:
    """The request as if it had come in plain. Who asks whom is what the seal belongs to."""
    inner = OpenedData(content.data, device, seal, is_repeated=is_repeated)
    for field in _ADDRESSED:
        if inner.setdefault(field, outer[field]) != outer[field]:
            raise BadRequest(f"{field}: differs inside and outside of the seal", field=field)
    if "timeout" in inner:
        inner["timeout"] = min(outer["timeout"], content.timeout)
    return inner


def _row(name: str) -> Any:
    try:
        return lookup(name)
    except SMCPError:
        return None


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
