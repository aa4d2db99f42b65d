"""Answers the requests by which agents read what MCP servers offer (WIRE §9, PROTOCOL-0.4 §2). All of it is masked."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from a2c_smcp.computer.calls.live import LiveCalls
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.content.blob_handles import Blobs
from a2c_smcp.computer.content.lists import ReadCall, ReadLists, Result, ServerReads, masked_error, refused_read
from a2c_smcp.computer.hosting import HostedServers
from a2c_smcp.computer.owner import Owner
from a2c_smcp.computer.secrets.mask import READ, Mask
from a2c_smcp.computer.sign_in import hint_for, refused_read_of
from a2c_smcp.computer.tells import Delivery, Tells
from a2c_smcp.errors import (
    AnswerTooLarge,
    BadRequest,
    CallTimeout,
    CapabilityNotSupported,
    PromptNotFound,
    RateLimited,
    ServerNotFound,
    SMCPError,
)
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.mcp_host.failures import AuthRequired, RequestRefused, ServerFailure, ServerGone, ServerNotReady
from a2c_smcp.mcp_host.limits import is_within, text_in
from a2c_smcp.mcp_host.sessions.server_info import AboutServer
from a2c_smcp.mcp_host.sessions.subscriptions import uris_above
from a2c_smcp.protocol import operations
from a2c_smcp.protocol.codec import MAX_TIMEOUT
from a2c_smcp.protocol.operations import MCPOperation, Operation
from a2c_smcp.protocol.questions import is_input_required

# Contents of resources, messages of prompts, completions: checked, masked, and sent whole, by the side band or not.
#
# Large binary contents always go by the side band (WIRE §9). Texts do so only for an agent that asks with `blobs:
# true`, and only if the answer would be too large otherwise. What is too large all the same is an error that says its
# size.

_HEAD_ROOM = 1024


class ReadContents:
    """`max_message` is the largest answer that can be sent, in bytes."""

    def __init__(self, blobs: Blobs, mask: Mask, max_message: int) -> None:
        self._blobs = blobs
        self._mask = mask
        self.limit(max_message)

    def limit(self, max_message: int) -> None:
        """Send no larger answers from now on."""
        self._max_message = max_message

    async def of(
        self, operation: MCPOperation, caller: Caller, server: str, raw: dict[str, Any], *, texts: bool
    ) -> dict[str, Any]:
        """The answer to a request. Raises `ServerFailure` if MCP's result is not valid, or `AnswerTooLarge`."""
        result, contents = operation.read(raw), operation.contents
        if result is None:
            raise ServerFailure(f"its answer is not a result of {operation.method}")
        if contents is None:
            return await self._mask.answer(result, READ, server)
        result = await self._masked(result, contents.of(result), server, texts=texts)
        items = await self._blobs.move_large(caller, contents.of(result))
        if texts and not is_within(contents.replaced(result, items), self._max_message - _HEAD_ROOM):
            items = await self._blobs.move_large(caller, items, texts=True)
        return contents.replaced(result, items)

    async def _masked(
        self, raw: dict[str, Any], items: list[dict[str, Any]], server: str, *, texts: bool
    ) -> dict[str, Any]:
        """The answer without secrets. No time is spent on one that is too large whatever is moved."""
        if not is_within(raw, self._max_message):
            size = text_in(raw)
            if size - self._blobs.movable(items, texts=texts) > self._max_message:
                raise AnswerTooLarge(f"{size} bytes, at most {self._max_message} can be sent", size=size)
        return await self._mask.answer(raw, READ, server)


# Which resources of MCP servers agents have subscribed to, and how they are told that one has changed (WIRE §9).
#
# **Life of a subscription.** It begins when the MCP server has taken it. It lapses after fifteen minutes unless the
# agent asks again, and ends when the agent unsubscribes or loses its seat. It survives restarts of the MCP server:
# `Supervisor` subscribes again, and reports the resource as changed, because a change may have been missed. The MCP
# server is asked to end a subscription only when no agent has it any more; requests to begin and to end the same one
# follow each other (`_changing`), so that the last one counts.
#
# **Telling.** A change is told at once. Further ones within a tenth of a second are told together afterwards: the
# last change is never lost. What the Server cannot deliver now is told again later, also on the next connection of
# the computer; if there is no such agent any more, its subscriptions end.

_MOST = 256
_PAUSE = 0.1  # seconds between two tells about one subscription
_AGAIN = 1.0  # seconds until a tell that could not be delivered is tried again


class _SubscriptionKey(NamedTuple):
    caller: Caller
    server: str
    uri: str


@dataclass(slots=True, eq=False)
class _Subscription:
    """One subscription. `server` is what the agent calls the MCP server, `uri` the resource as it asked for it.

    `caller` is the agent as it asked last: what it is told is sealed for that request. `changed` is the URI of a change
    that is not told yet. While there is a `pause`, nothing is told.
    """

    caller: Caller
    server: str
    uri: str
    lapse: asyncio.TimerHandle
    changed: str | None = None
    pause: asyncio.TimerHandle | None = None


class SubscribedResources:
    """The subscriptions of all agents. They lapse after `lifetime` seconds."""

    def __init__(self, host: Callable[[], HostedServers], tells: Tells, mask: Mask, lifetime: float) -> None:
        self._host = host
        self._tells = tells
        self._mask = mask
        self._lifetime = lifetime
        self._all: dict[_SubscriptionKey, _Subscription] = {}
        self._by_resource: dict[tuple[str, str], set[_SubscriptionKey]] = defaultdict(set)
        self._changing: dict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks = OwnedTasks()
        tells.on_connected.append(self._tell_all)

    async def subscribe(self, caller: Caller, asked: str, uri: str, original: str, limit: float) -> None:
        """Subscribe, or renew a subscription. `asked` and `uri` are the agent's words, `original` the server's.

        Raises `RateLimited`, or what the server answers.
        """
        server = self._host().known(asked)
        key = _SubscriptionKey(caller, server, original)
        is_new = key not in self._all
        if is_new and sum(each.caller == caller for each in self._all) >= _MOST:
            raise RateLimited(f"an agent has at most {_MOST} subscriptions on a computer")
        self._keep(key, asked, uri)
        try:
            await self._ask(server, original, limit)
        except (ServerNotReady, ServerGone, CallTimeout):
            if is_new:
                self._end(key)
                raise
        except BaseException:
            self._end(key)
            raise

    def unsubscribe(self, caller: Caller, asked: str, original: str) -> None:
        """End a subscription, if there is one."""
        self._end(_SubscriptionKey(caller, self._host().known(asked), original))

    def updated(self, server: str, uri: str) -> None:
        """Tell the agents that have subscribed to this resource, or to one that it is a part of."""
        for above in uris_above(uri):
            for key in list(self._by_resource.get((server, above), ())):
                subscription = self._all[key]
                is_only = subscription.changed in (None, uri)
                subscription.changed = uri if is_only else above
                if subscription.pause is None:
                    self._tell(key, subscription)

    def drop(self, matches: Callable[[Caller], bool]) -> None:
        """End the subscriptions of these agents."""
        self._end_all(key for key in self._all if matches(key.caller))

    async def close(self) -> None:
        self._end_all(self._all)
        await self._tasks.close()

    # Inside

    async def _ask(self, server: str, uri: str, limit: float) -> None:
        try:
            async with asyncio.timeout(limit), self._changing[server, uri]:
                await self._host().manager[server].subscribe(uri, limit)
        except TimeoutError:
            raise CallTimeout(f"{server!r} did not answer within {limit:g} s") from None

    def _keep(self, key: _SubscriptionKey, server: str, uri: str) -> None:
        lapse = asyncio.get_running_loop().call_later(self._lifetime, self._end, key)
        if known := self._all.get(key):
            known.lapse.cancel()
            known.caller, known.server, known.uri, known.lapse = key.caller, server, uri, lapse
            return
        self._all[key] = _Subscription(key.caller, server, uri, lapse)
        self._by_resource[key.server, key.uri].add(key)

    def _end_all(self, keys: Iterable[_SubscriptionKey]) -> None:
        for key in list(keys):
            self._end(key)

    def _end(self, key: _SubscriptionKey) -> None:
        subscription = self._all.pop(key, None)
        if subscription is None:
            return
        subscription.lapse.cancel()
        if subscription.pause is not None:
            subscription.pause.cancel()
        resource = (key.server, key.uri)
        self._by_resource[resource].discard(key)
        if not self._by_resource[resource]:
            del self._by_resource[resource]
            self._tasks.spawn(self._release(*resource))

    async def _release(self, server: str, uri: str) -> None:
        """End a subscription at the MCP server, unless it was begun again meanwhile."""
        async with self._changing[server, uri]:
            if (server, uri) not in self._by_resource:
                await self._host().manager.unsubscribe(server, uri)
        if (server, uri) not in self._by_resource:
            self._changing.pop((server, uri), None)

    # Telling

    def _tell(self, key: _SubscriptionKey, subscription: _Subscription) -> None:
        """Tell a change now, and nothing more about this subscription for a moment."""
        uri, subscription.changed = subscription.changed, None
        self._pause(key, subscription, _PAUSE)
        if uri is None:
            return
        shown = subscription.uri if uri == key.uri else self._mask.uri(uri, key.server)

        def settle(delivery: Delivery) -> None:
            if self._all.get(key) is not subscription:
                return
            if delivery is Delivery.UNDELIVERED:
                self._end_all(each for each in self._all if each.caller == key.caller)
            elif delivery in (Delivery.LATER, Delivery.LOST):
                subscription.changed = subscription.changed or uri
                self._pause(key, subscription, _AGAIN)

        told = {"mcp_server": subscription.server, "uri": self._mask.uri(shown, key.server)}
        self._tells.tell(subscription.caller, "resource", told, settle)

    def _pause(self, key: _SubscriptionKey, subscription: _Subscription, seconds: float) -> None:
        if subscription.pause is not None:
            subscription.pause.cancel()
        subscription.pause = asyncio.get_running_loop().call_later(seconds, self._go_on, key, subscription)

    def _go_on(self, key: _SubscriptionKey, subscription: _Subscription) -> None:
        subscription.pause = None
        if subscription.changed is not None:
            self._tell(key, subscription)

    def _tell_all(self, office: str) -> None:
        """There is a new connection: tell what could not be told on the last one."""
        for key, subscription in list(self._all.items()):
            if key.caller.office == office and subscription.changed is not None:
                self._tell(key, subscription)


ANSWER_LIMIT = 20.0
"""Seconds for a request that names no `timeout` (WIRE §5)."""


class ServerReading:
    """`operations` are those that it answers."""

    def __init__(self, owner: Owner, live: LiveCalls, contents: ReadContents) -> None:
        self._mask = mask = owner.mask

        def host() -> HostedServers:
            return owner.host

        self.subscriptions = SubscribedResources(host, owner.tells, mask, owner.limits.subscription_limit)
        self._host = host
        self._reads = ServerReads(host, live, owner.answering)
        self._lists = ReadLists(host, self._reads, mask)
        self._contents = contents
        self._answers: dict[Operation, Callable[[ReadCall], Awaitable[Result]]] = {
            operations.GET_SERVERS: self._get_servers,
            operations.SUBSCRIBE_RESOURCE: self._subscribe,
            operations.UNSUBSCRIBE_RESOURCE: self._unsubscribe,
            **{row: partial(self._lists.answer, row) for row in operations.MCP_LISTS},
            **{row: partial(self._ask, row) for row in operations.MCP_OPERATIONS},
        }
        self.operations = frozenset(self._answers)

    async def answer(self, operation: Operation, caller: Caller, data: Mapping[str, Any]) -> Result:
        """The answer to a decoded request, without its `req_id`. Raises `SMCPError`, without secrets."""
        called, server = data.get("mcp_server") or "", None
        try:
            server = self._host().known(called) if called else ""
            timeout = data.get("timeout")
            limit = timeout if type(timeout) is int and 1 <= timeout <= MAX_TIMEOUT else ANSWER_LIMIT
            deadline = asyncio.get_running_loop().time() + limit
            return await self._answers[operation](ReadCall(caller, data, server, called, deadline))
        except AuthRequired as failure:
            raise refused_read_of(failure, called) from None
        except CapabilityNotSupported as error:
            missing = f"{called!r} does not offer {error.details['capability']}"
            raise CapabilityNotSupported(missing, **{**error.details, "mcp_server": called}) from None
        except SMCPError as error:
            if operation.fallback and isinstance(error, ServerNotFound | ServerNotReady):
                raise operation.fallback(repr(called), mcp_server=called) from None
            raise masked_error(error, self._mask, server) from None

    # Servers

    async def _get_servers(self, _: ReadCall) -> Result:
        host = self._host()
        return {"servers": [self._server(host, name, status.state) for name, status in host.status().items()]}

    def _server(self, host: HostedServers, name: str, state: str) -> Result:
        is_known = name in host.manager
        about = host.manager[name].about if is_known else AboutServer()
        found: Result = {"name": name, "bundle_id": host.bundle_ids.of(name), "state": state}
        found["capabilities"] = about.capabilities
        said = {"title": about.title, "version": about.version, "instructions": about.instructions}
        found |= {field: value for field, value in said.items() if value}
        if about.icons:
            found["icons"] = about.icons
        if state == "auth_required" and is_known and (refusal := host.manager[name].refusal):
            found["auth"] = {"error_code": refusal.result_code, **hint_for(refusal, name)}
        masked: list[Result] = self._mask.data({"servers": [found]}, READ, name)["servers"]
        return masked[0]

    # Contents

    async def _ask(self, operation: MCPOperation, asked: ReadCall) -> Result:
        """Ask the MCP server, and return the masked answer."""
        params = operation.mcp_params(asked.data, partial(self._lists.original, asked.server))
        try:
            raw = await self._reads.ask(operation, asked, params)
        except (RequestRefused, BadRequest) as refusal:
            if operation is operations.GET_PROMPT and "mcp_code" in refusal.details:
                raise await self._explained(asked, asked.data["name"], refusal) from None
            raise
        if is_input_required(raw):
            return await self._mask.answer(raw, READ, asked.server)
        texts = asked.data.get("blobs") is True
        return await self._contents.of(operation, asked.caller, asked.server, raw, texts=texts)

    async def _explained(self, asked: ReadCall, name: str, refusal: SMCPError) -> SMCPError:
        """Why a prompt was refused. Many MCP servers only say that something is wrong."""
        prompt = await self._lists.prompt(asked, name)
        if prompt is None:
            return PromptNotFound(repr(name), **{**refusal.details, "mcp_server": asked.called})
        given = asked.data.get("arguments") or {}
        needed = [each["name"] for each in prompt.get("arguments") or () if each.get("required") is True]
        if missing := [each for each in needed if each not in given]:
            about = f"arguments: the prompt {name!r} needs {', '.join(missing)}"
            return BadRequest(about, **{**refusal.details, "field": "arguments"})
        return refusal

    # Subscriptions

    async def _subscribe(self, asked: ReadCall) -> Result:
        uri = asked.data["uri"]
        original = self._lists.original(asked.server, uri)
        try:
            await self.subscriptions.subscribe(asked.caller, asked.called, uri, original, asked.left)
        except RequestRefused as refusal:
            raise refused_read(refusal, "resources/subscribe", asked.called, uri) from None
        return {}

    async def _unsubscribe(self, asked: ReadCall) -> Result:
        original = self._lists.original(asked.server, asked.data["uri"])
        self.subscriptions.unsubscribe(asked.caller, asked.called, original)
        return {}
