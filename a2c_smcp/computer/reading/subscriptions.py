"""Which resources of MCP servers agents have subscribed to, and how they are told that one has changed (WIRE §9).

**Life of a subscription.** It begins when the MCP server has taken it. It lapses after fifteen minutes unless the agent
asks again, and ends when the agent unsubscribes or loses its seat. It survives restarts of the MCP server: `Supervisor`
subscribes again, and reports the resource as changed, because a change may have been missed. The MCP server is asked to
end a subscription only when no agent has it any more; requests to begin and to end the same one follow each other
(`_changing`), so that the last one counts.

**Telling.** A change is told at once. Further ones within a tenth of a second are told together afterwards: the last
change is never lost. What the Server cannot deliver now is told again later, also on the next connection of the
computer; if there is no such agent any more, its subscriptions end.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.hosting import Hosting
from a2c_smcp.computer.secrets import Mask
from a2c_smcp.computer.tells import Delivery, Tells
from a2c_smcp.errors import CallTimeout, RateLimited
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.mcp_host.failures import ServerGone, ServerNotReady
from a2c_smcp.mcp_host.sessions.subscriptions import uris_above

__all__ = ["SubscribedResources"]

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

    def __init__(self, host: Callable[[], Hosting], tells: Tells, mask: Mask, lifetime: float) -> None:
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

    def end(self, office: str, agent: str | None = None) -> None:
        """End the subscriptions of an agent that has left, or of all agents of an office."""
        self._end_all(key for key in self._all if key.caller.office == office and agent in (None, key.caller.agent))

    def keep_only(self, office: str, agent: str) -> None:
        """End the subscriptions of other agents of an office."""
        self._end_all(key for key in self._all if key.caller.office == office and key.caller.agent != agent)

    async def close(self) -> None:
        self._end_all(self._all)
        await self._tasks.close()

    # Inside

    async def _ask(self, server: str, uri: str, limit: float) -> None:
        try:
            async with asyncio.timeout(limit), self._changing[server, uri]:
                await self._host().manager.subscribe(server, uri, limit)
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
