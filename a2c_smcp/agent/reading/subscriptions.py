"""Subscriptions to resources: kept in force, and who is told when a resource has changed.

A notice names the MCP server as its computer does, by name or by bundle id, which need not be the word of the
subscription; and its URI may be that of a part of the resource (MCP: a "sub-resource"). So a notice is for the
subscriptions to that server, or if there are none, for those to the same resource of any server of that computer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from a2c_smcp import mcp_events
from a2c_smcp.agent.events import EventDispatcher
from a2c_smcp.agent.requests import Requests
from a2c_smcp.agent.standing_requests import StandingRequests, Subscription
from a2c_smcp.agent.types import Seat
from a2c_smcp.endpoint import Reconnect
from a2c_smcp.errors import NotFound

__all__ = ["OnUpdate", "ResourceSubscriptions", "is_part_of"]

OnUpdate: TypeAlias = Callable[[str], Any]
"""Called with the URI of a resource that has changed. It may be async."""

Listeners: TypeAlias = tuple[OnUpdate, ...]


class ResourceSubscriptions:
    """The resources that an agent is told about."""

    def __init__(self, ask: Requests, events: EventDispatcher, pauses: Reconnect) -> None:
        self._ask = ask
        self._events = events
        self.standing: StandingRequests[Subscription, Listeners] = StandingRequests(self._send, pauses)

    async def subscribe(self, wanted: Subscription, on_update: OnUpdate | None) -> None:
        """Subscribe, or add a listener to a subscription. Raises the computer's refusal."""
        before = next((listeners for each, listeners in self._same(wanted) if each == wanted), ())
        listener = on_update or _for_events_only
        await self.standing.set(wanted, before if listener in before else (*before, listener))

    async def unsubscribe(self, unwanted: Subscription) -> None:
        """End a subscription with all its listeners. One that cannot be ended on the computer lapses there."""
        for each, _ in self._same(unwanted):
            self.standing.stop(each)
        data = {"mcp_server": unwanted.mcp_server, "uri": unwanted.uri}
        try:
            await self._ask.ask_newer(mcp_events.UNSUBSCRIBE_RESOURCE_EVENT, unwanted.computer, data, unwanted.office)
        except NotFound:
            return

    async def remove(self, wanted: Subscription, listener: OnUpdate) -> None:
        """Remove a listener, and end the subscription if it was the last."""
        before = next((listeners for each, listeners in self._same(wanted) if each == wanted), ())
        if left := tuple(each for each in before if each is not listener):
            self.standing.change(wanted, left)
        elif before:
            await self.unsubscribe(wanted)

    def on_told(self, seat: Seat, mcp_server: str, uri: str) -> None:
        """A computer tells that a resource has changed."""
        for each, listeners in self._meant(seat, mcp_server, uri):
            about = (seat.computer, each.mcp_server, uri, seat.office)
            self._events.dispatch_once("on_resource_updated", about)
            for listener in listeners:
                if listener is not _for_events_only:
                    self._events.dispatch_once(listener, (uri,))

    def _meant(self, seat: Seat, mcp_server: str, uri: str) -> list[tuple[Subscription, Listeners]]:
        found = [(each, listeners) for each, listeners in self.standing.at(seat) if is_part_of(uri, each.uri)]
        exact = [(each, listeners) for each, listeners in found if each.mcp_server == mcp_server]
        return exact or found

    def _same(self, wanted: Subscription) -> Iterable[tuple[Subscription, Listeners]]:
        """The subscriptions to this resource, also those that name the office or do not."""
        for each, listeners in self.standing.all():
            is_same_office = each.office == wanted.office or None in (each.office, wanted.office)
            if each[1:] == wanted[1:] and is_same_office:
                yield each, listeners

    async def _send(self, wanted: Subscription, listeners: Listeners) -> None:
        data = {"mcp_server": wanted.mcp_server, "uri": wanted.uri}
        await self._ask.ask_newer(mcp_events.SUBSCRIBE_RESOURCE_EVENT, wanted.computer, data, wanted.office)


def _for_events_only(uri: str) -> None:
    """The listener of a subscription that is told to `on_resource_updated` alone."""


def is_part_of(uri: str, whole: str) -> bool:
    """Whether a URI is that of a resource, or of a part of it."""
    return uri == whole or uri.startswith(whole if whole.endswith("/") else (f"{whole}/", f"{whole}#", f"{whole}?"))
