"""The session of an MCP client that goes on at another bridge when the one that serves it has ended.

Messages pass in both directions as they are. What the next bridge has to know is remembered on the way: requests
that are open, the handshake and the subscriptions of an older client, and a digest of each list that the client has.
At the next bridge, open requests are sent again, except calls of tools: those may have run, so they are answered with
the outcome `unknown`. The client is notified of lists that differ there, and of the resources that it watches.

Ids never meet those of another bridge: a question gets a number of its own on the way to the client, and its answer
is passed on only while the bridge that asked is there; requests that are told again have ids that no client has.

One task reads from the client as long as it is there, and writes to the present bridge; another one reads from the
bridges, one after the other, and alone writes to the client. A request is recorded in the step in which it is handed
over, so that after the end of a bridge each request is in `_open`, or has not been read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Container, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from hashlib import sha256
from itertools import count
from secrets import token_hex
from typing import Any, NamedTuple, TypeAlias

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from a2c_smcp.bridge.serving.calls import CALL_LOST, failed_result
from a2c_smcp.errors import Unavailable
from a2c_smcp.loops import cancel_and_wait

Message: TypeAlias = JSONRPCRequest | JSONRPCNotification | JSONRPCResponse | JSONRPCError
RequestId: TypeAlias = int | str

_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError)
_LISTS: Mapping[str, str] = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resources",
    "prompts/list": "prompts",
    "skills/list": "resources",
}
_SUBSCRIBE = "resources/subscribe"
LISTEN = "subscriptions/listen"
_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


class Link(NamedTuple):
    """Streams from and to a bridge. Once `is_over`, what still arrives is no answer.

    `not_taken` are the calls that have certainly not reached it: they are sent to the next one.
    """

    incoming: Any
    outgoing: Any
    is_over: Callable[[], bool] = lambda: False
    not_taken: Container[RequestId] = ()


class MovingSession:
    """The session of the client at these streams."""

    def __init__(self, from_client: Any, to_client: Any) -> None:
        self._from_client, self._to_client = from_client, to_client
        self._outgoing: Any = None
        self._is_linked = asyncio.Event()
        self._open: dict[RequestId, JSONRPCRequest] = {}
        self._kept: dict[tuple[str, str], JSONRPCRequest | JSONRPCNotification] = {}
        self._lists: dict[tuple[str, str | None], tuple[JSONRPCRequest, bytes]] = {}
        self._questions: dict[RequestId, RequestId] = {}
        self._numbers = count(1)
        self._again: dict[RequestId, JSONRPCRequest] = {}
        self._resumed: dict[RequestId, JSONRPCRequest] = {}

    async def serve(self, link: Callable[[], AbstractAsyncContextManager[Link]]) -> None:
        """Serve the client at one `link` after the other, until it has gone."""
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._follow(link))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel_and_wait(*tasks)
            self._from_client.close()
            self._to_client.close()

    async def _read(self) -> None:
        async for item in self._from_client:
            if isinstance(item, Exception):
                continue  # not a message, which the SDK ignores as well
            await self._is_linked.wait()
            message = self._noted(item.message)
            if message is not None:
                with suppress(*_GONE):
                    await self._outgoing.send(SessionMessage(message))

    async def _follow(self, link: Callable[[], AbstractAsyncContextManager[Link]]) -> None:
        while True:
            async with link() as (incoming, outgoing, is_over, not_taken):
                beginning = asyncio.create_task(self._begin(outgoing))
                try:
                    async for item in incoming:
                        if not isinstance(item, Exception) and not is_over():
                            await self._pass(item.message)
                finally:
                    self._is_linked.clear()
                    await cancel_and_wait(beginning)
            await self._answer_lost(not_taken)

    # To the bridge

    def _noted(self, message: Message) -> Message | None:
        """A message of the client as the bridge gets it; `None` for the answer to a question of an earlier one."""
        match message:
            case JSONRPCRequest():
                self._open[message.id] = message
            case JSONRPCResponse() | JSONRPCError():
                asked = self._questions.pop(message.id, None) if message.id is not None else None
                return None if asked is None else message.model_copy(update={"id": asked})
            case JSONRPCNotification(method="notifications/initialized"):
                self._kept[message.method, ""] = message
            case JSONRPCNotification(method="notifications/cancelled"):
                cancelled = (message.params or {}).get("requestId")
                self._open.pop(cancelled if isinstance(cancelled, int | str) else "", None)
        return message

    async def _begin(self, outgoing: Any) -> None:
        """Tell the next bridge what the one before knew."""
        again = [*self._kept.values(), *(request for request, _ in self._lists.values())]
        self._resumed = {id_: request for id_, request in self._open.items() if request.method == LISTEN}
        with suppress(*_GONE):
            for message in again:
                if isinstance(message, JSONRPCRequest):
                    id_ = token_hex(16)
                    self._again[id_] = message
                    message = message.model_copy(update={"id": id_})
                await outgoing.send(SessionMessage(message))
            for request in [*self._open.values()]:
                await outgoing.send(SessionMessage(request))
        self._outgoing = outgoing
        self._is_linked.set()

    # To the client

    async def _pass(self, message: Message) -> None:
        match message:
            case JSONRPCRequest():
                question = next(self._numbers)
                self._questions[question] = message.id
                message = message.model_copy(update={"id": question})
            case JSONRPCResponse() | JSONRPCError() if message.id is not None:
                if again := self._again.pop(message.id, None):
                    await self._compare(again, message)
                elif request := self._open.pop(message.id, None):  # else it was cancelled
                    self._remember(request, message)
                    await self._say(message)
                return
            case JSONRPCNotification(method="notifications/cancelled", params=params):
                asked = (params or {}).get("requestId")
                await self._withdraw(*[number for number, id_ in self._questions.items() if id_ == asked])
                return
            case JSONRPCNotification(method="notifications/subscriptions/acknowledged", params=params):
                if request := self._resumed.pop(_subscription(params), None):  # for the client it has never ended
                    await self._tell_updated(*_filter(request).get("resourceSubscriptions") or ())
                    return
        await self._say(message)

    async def _withdraw(self, *questions: RequestId) -> None:
        for number in questions:
            del self._questions[number]
            params = {"requestId": number, "reason": "the question was withdrawn"}
            await self._say(JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params))

    def _remember(self, request: JSONRPCRequest, answer: JSONRPCResponse | JSONRPCError) -> None:
        params = request.params or {}
        if isinstance(answer, JSONRPCError):
            return
        if request.method in ("initialize", "logging/setLevel"):
            self._kept[request.method, ""] = request
        elif request.method == _SUBSCRIBE:
            self._kept[_SUBSCRIBE, str(params.get("uri"))] = request
        elif request.method == "resources/unsubscribe":
            self._kept.pop((_SUBSCRIBE, str(params.get("uri"))), None)
        elif request.method in _LISTS:
            cursor = params.get("cursor")
            if cursor is None:
                self._lists = {key: kept for key, kept in self._lists.items() if key[0] != request.method}
            self._lists[request.method, cursor] = request, _digest(answer)

    async def _compare(self, request: JSONRPCRequest, answer: JSONRPCResponse | JSONRPCError) -> None:
        """Tell the client of what may be different at this bridge."""
        if request.method == _SUBSCRIBE:
            await self._tell_updated((request.params or {}).get("uri"))
        elif request.method in _LISTS:
            _, known = self._lists.get((request.method, (request.params or {}).get("cursor")), (None, b""))
            if _digest(answer) != known:
                kind = _LISTS[request.method]
                await self._tell(f"notifications/{kind}/list_changed", {}, f"{kind}ListChanged")

    async def _tell_updated(self, *uris: Any) -> None:
        for uri in uris:
            await self._tell("notifications/resources/updated", {"uri": uri}, "resourceSubscriptions")

    async def _tell(self, method: str, params: dict[str, Any], kind: str) -> None:
        """Notify an older client; one of 2026-07-28 on each of its streams that is for this kind."""
        if self._is_older:
            await self._say(JSONRPCNotification(jsonrpc="2.0", method=method, params=params))
        for request in [*self._open.values()]:
            wanted = _filter(request).get(kind) if request.method == LISTEN else None
            if wanted and params.get("uri") in (wanted if isinstance(wanted, list) else (None,)):
                tagged = {**params, "_meta": {_SUBSCRIPTION: request.id}}
                await self._say(JSONRPCNotification(jsonrpc="2.0", method=method, params=tagged))

    async def _answer_lost(self, not_taken: Container[RequestId]) -> None:
        """Answer calls that have gone to a bridge which has ended, and withdraw its questions."""
        for request in [*self._open.values()]:
            if request.method == "tools/call" and request.id not in not_taken:
                del self._open[request.id]
                result = failed_result(CALL_LOST, Unavailable(outcome="unknown"))
                result = result if self._is_older else {"resultType": "complete", **result}
                await self._say(JSONRPCResponse(jsonrpc="2.0", id=request.id, result=result))
        await self._withdraw(*self._questions)
        self._again.clear()

    @property
    def _is_older(self) -> bool:
        return ("initialize", "") in self._kept

    async def _say(self, message: Message) -> None:
        await self._to_client.send(SessionMessage(message))


def _subscription(params: Mapping[str, Any] | None) -> Any:
    """The request that opened the stream of a notice."""
    return ((params or {}).get("_meta") or {}).get(_SUBSCRIPTION)


def _filter(request: JSONRPCRequest) -> Mapping[str, Any]:
    """The kinds of changes that a stream of a client of 2026-07-28 is for."""
    wanted = (request.params or {}).get("notifications")
    return wanted if isinstance(wanted, Mapping) else {}


def _digest(answer: JSONRPCResponse | JSONRPCError) -> bytes:
    result = answer.result if isinstance(answer, JSONRPCResponse) else None
    return sha256(json.dumps(result, sort_keys=True).encode()).digest()
