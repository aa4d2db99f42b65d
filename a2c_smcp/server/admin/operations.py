"""All nodes as one, for operators: lists of members, offices, calls and keys, and what operators do.

Each node knows its own part. The node that is asked asks the others, and makes one list of all answers; a node that
does not answer is named beside it (`missing`). Everything that changes something is reported to the observers.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec

from a2c_smcp.errors import BadRequest, NotFound, SMCPError, Unavailable
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol.names import fault_in
from a2c_smcp.server.admin.events import EventFilter, EventReader, EventSource
from a2c_smcp.server.admin.history import EndedRow, History, RefusalRow, Snapshot, merged
from a2c_smcp.server.admin.keys import ServerKeys, is_of_operator
from a2c_smcp.server.admin.node_view import (
    CallRow,
    GrantRow,
    KeyRow,
    KeyUses,
    MemberRow,
    NodeRow,
    NodeView,
    OfficeRow,
    RowPage,
    Selection,
    SessionSeen,
    page_of,
)
from a2c_smcp.server.auth.api_keys import OperatorKeys
from a2c_smcp.server.auth.authentication import AuthenticationProvider, CredentialUses
from a2c_smcp.server.auth.authorization import GrantHolder
from a2c_smcp.server.auth.grants import GRANT, AccessGrants
from a2c_smcp.server.cluster.memory import SharedDirectory, as_shared
from a2c_smcp.server.cluster.proxy import NODE_HEADER, PeerNodes
from a2c_smcp.server.freezes import Freeze, Freezes, FreezeScope
from a2c_smcp.server.hub import Hub
from a2c_smcp.server.observation.happened import OperatorActed

# The other nodes, asked over HTTP at the URLs where nodes reach one another, with the secret that they share.
#
# A list of all nodes is made by the node that was asked. A node that does not answer in time is named in the answer,
# and what it knows is missing there.

NODE_PATH = "/admin/node"
"""Below it, nodes ask one another. Only the secret opens it, not the admin key."""

_PATIENCE = aiohttp.ClientTimeout(total=3.0, sock_connect=1.0)
_STREAMING = aiohttp.ClientTimeout(total=None, sock_connect=1.0, sock_read=30.0)
_LONGEST_LINE = 256 * 1024
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
_NOT_FOUND = 404


class Missing(msgspec.Struct):
    """A node that has not answered, and why."""

    node: str
    reason: str


class NodeAnswers(NamedTuple):
    """The answers of other nodes by name, as JSON, and the nodes without one."""

    bodies: dict[str, bytes]
    missing: list[Missing]


class OtherNodes:
    """Asks all other nodes at once. Without a shared directory there are none."""

    def __init__(self, shared: SharedDirectory | None) -> None:
        self._peers = PeerNodes(shared) if shared else None
        self._session: aiohttp.ClientSession | None = None

    async def names(self) -> list[str]:
        """Raises `Unavailable`."""
        return sorted(await self._peers.others()) if self._peers else []

    async def ask(self, what: str, *, method: str = "GET", **query: str) -> NodeAnswers:
        """Asks every other node the same."""
        if self._peers is None:
            return NodeAnswers({}, [])
        try:
            urls = await self._peers.others()
        except Unavailable as error:
            return NodeAnswers({}, [Missing("*", error.about)])
        answers = await asyncio.gather(*(self._ask(url, what, method, query) for url in urls.values()))
        by_node = dict(zip(urls, answers, strict=True))
        return NodeAnswers(
            {node: answer for node, answer in by_node.items() if isinstance(answer, bytes)},
            [Missing(node, answer) for node, answer in by_node.items() if isinstance(answer, str)],
        )

    async def lines(self, node: str, what: str) -> AsyncIterator[bytes]:
        """Yield the lines of a stream of another node, until it ends. Raises `Unavailable`."""
        url = (await self._peers.others()).get(node) if self._peers else None
        if url is None:
            raise Unavailable(f"node {node!r} is gone")
        try:
            headers = await self._headers()
            async with self._http().get(
                f"{url}{NODE_PATH}/{what}", headers=headers, timeout=_STREAMING, allow_redirects=False
            ) as response:
                response.raise_for_status()
                async for line in response.content:
                    yield line
        except _FAILURES as error:
            raise Unavailable(f"node {node!r} does not answer: {type(error).__name__}") from None

    async def close(self) -> None:
        if self._peers:
            await self._peers.close()
        if self._session:
            await self._session.close()

    async def _ask(self, url: str, what: str, method: str, query: Mapping[str, str]) -> bytes | str:
        """The answer, or why there is none."""
        try:
            async with self._http().request(
                method,
                f"{url}{NODE_PATH}/{what}?{urlencode(query)}",
                headers=await self._headers(),
                allow_redirects=False,
                timeout=_PATIENCE,
            ) as response:
                body = await response.read()
        except (*_FAILURES, SMCPError) as error:
            return f"it does not answer ({type(error).__name__})"
        if response.status == _NOT_FOUND:
            return "it runs without --admin-key"
        return body if response.ok else f"it answers with status {response.status}"

    async def _headers(self) -> dict[str, str]:
        assert self._peers
        return {NODE_HEADER.decode(): (await self._peers.secret()).decode()}

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            trust: ssl.SSLContext | bool = True
            with suppress(ssl.SSLError):
                trust = ssl.create_default_context()
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0, ssl=trust),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_LONGEST_LINE,
            )
        return self._session


Row = TypeVar("Row")
Placed = TypeVar("Placed", MemberRow, CallRow, EndedRow, RefusalRow)

_LOOK_FOR_NODES = 2.0
_USES, _USES_SOON, _USES_EVERY, _USES_LAST = "key-uses", 1.0, 60.0, 366 * 86400.0
_LOOKS, _LOOK_AGAIN = 60, 0.05


class Who(msgspec.Struct, frozen=True):
    """An operator, by the name of the admin key; where from, and whether through the console."""

    address: str | None
    name: str | None = None
    is_console: bool = False


class RowsOfNodes(msgspec.Struct, Generic[Row]):
    """A page of rows, and the nodes whose rows are missing."""

    page: RowPage[Row]
    missing: Sequence[Missing] = ()


class KeyChange(msgspec.Struct):
    """The result of a change of keys. `key` is a new key, shown once.

    `differing` are nodes that have another keys file, in which the change has to be made too. `until_restart`: the keys
    file could not be written, and the key is refused until all processes of the Server are started again; with a store
    that outlives them, for as long as the file has it.
    """

    id: str
    key: str | None = None
    row: KeyRow | None = None
    differing: Sequence[str] = ()
    missing: Sequence[Missing] = ()
    until_restart: bool = False


class FreezeChange(msgspec.Struct):
    """A scope that was frozen or thawed, which has so many computers now.

    `missing` are nodes that have not confirmed it. `unkept` says why a freeze ends with the process; empty if it lasts.
    `still` are other freezes that hold a thawed scope, or parts of it.
    """

    freeze: Freeze
    computers: int
    missing: Sequence[Missing]
    unkept: str = ""
    still: Sequence[Freeze] = ()


class NodeSessions(Protocol):
    """The sessions of operators that this node knows, by their ids."""

    def seen(self, session: str) -> SessionSeen: ...

    def end_here(self, session: str) -> None: ...


class HeldKeys(Protocol):
    """New keys that this node has made for operators, and not shown yet."""

    def take(self, session: str, wanted: str) -> KeyChange | None: ...


class Operations:
    """The reads and actions of operators, through any node."""

    def __init__(
        self, hub: Hub, auth: AuthenticationProvider | None, operators: OperatorKeys, grants: AccessGrants | None = None
    ) -> None:
        """Clients are admitted by `auth`, and operators by their own keys."""
        self.view = view = NodeView(hub)
        self.keys, self.admin_keys = (ServerKeys(keys, hub.reload, hub.keep_withheld) for keys in (auth, operators))
        self.operators = operators
        self.grants = grants
        self._history = history = History(view.node)
        self.sessions: NodeSessions | None = None
        self.new_keys: HeldKeys | None = None
        self.others = OtherNodes(as_shared(view.hub.directory))
        self.source = EventSource(view.hub.observation, view.node)
        view.hub.observation.record(history.record)

    async def keep_uses(self) -> None:
        """Keep the uses of keys in the store that nodes share, so that they outlast this node."""
        uses, shared = self.view.hub.uses, as_shared(self.view.hub.directory)
        while shared:
            pause = _USES_SOON
            with suppress(Unavailable):
                for credential in self.view.key_uses().connections:
                    uses.note(credential)
                before = await shared.kept(_USES)
                uses.learn(_kept_uses.decode(before) if before else uses)
                await shared.swap(_USES, before, msgspec.json.encode(uses).decode(), _USES_LAST)
                pause = _USES_EVERY
            await asyncio.sleep(pause)

    async def close(self) -> None:
        self.source.end_all()
        await self.others.close()

    # Lists

    async def all_members(self) -> tuple[list[MemberRow], list[Missing]]:
        answers = await self.others.ask("members")
        others = [row for body in answers.bodies.values() for row in _members.decode(body)]
        return [*self.view.members(), *others], answers.missing

    async def members(self, selection: Selection) -> RowsOfNodes[MemberRow]:
        return _chosen(selection, *await self.all_members())

    async def offices(self, selection: Selection) -> RowsOfNodes[OfficeRow]:
        """Offices with a member that fits the filters; their numbers are of all members."""
        rows, missing = await self.all_members()
        chosen = {row.office for row in selection.choose(rows)}
        offices = offices_of(row for row in rows if row.office in chosen)
        return RowsOfNodes(page_of(offices, selection, lambda row: row.place), missing)

    async def calls(self, selection: Selection) -> RowsOfNodes[CallRow]:
        """Requests in flight, the oldest first."""
        answers = await self.others.ask("calls")
        rows = [*self.view.calls(), *(row for body in answers.bodies.values() for row in _calls.decode(body))]
        return _chosen(selection, rows, answers.missing)

    def own_history(self) -> Snapshot:
        """Return the history of this node."""
        self.view.hub.observation.settle()
        return self._history.snapshot()

    async def past(self) -> tuple[Snapshot, list[Missing]]:
        """Return the history of all nodes."""
        answers = await self.others.ask("history")
        return merged([self.own_history(), *map(_history.decode, answers.bodies.values())]), answers.missing

    async def ended(self, selection: Selection) -> RowsOfNodes[EndedRow]:
        """Tool calls that have ended, the newest first."""
        snapshot, missing = await self.past()
        return _chosen(selection, snapshot.ended, missing, newest_first=True)

    async def refusals(self, selection: Selection) -> RowsOfNodes[RefusalRow]:
        snapshot, missing = await self.past()
        return _chosen(selection, snapshot.refusals, missing, newest_first=True)

    async def nodes(self) -> tuple[list[NodeRow], list[Missing]]:
        """Raises `Unavailable` if the store that nodes share does not answer."""
        shared = as_shared(self.view.hub.directory)
        rows = [self.view.row()]
        if shared is None:
            return rows, []
        answers = await self.others.ask("node")
        rows += [_node.decode(body) for body in answers.bodies.values()]
        known = {node.name: node for node in await shared.nodes()}
        for row in rows:
            if node := known.pop(row.node or "", None):
                row.url, row.lease, row.since = node.url, node.lease, node.started_at
        gone = [NodeRow(node.name, "", node.started_at, members=node.members, ready=False) for node in known.values()]
        for row in gone:
            row.url, row.lease = known[row.node or ""].url, known[row.node or ""].lease
        return sorted([*rows, *gone], key=lambda row: row.node or ""), answers.missing

    async def all_keys(self) -> tuple[list[KeyRow], list[Missing]]:
        """The keys of clients, and those of operators if they are in a file.

        Raises `BadRequest` if this Server has neither.
        """
        answers = await self.others.ask("key-uses")
        uses = self.view.key_uses()
        for body in answers.bodies.values():
            uses.add(_uses.decode(body))
        rows = self._key_rows(uses)
        return sorted(rows, key=lambda row: row.place), answers.missing

    async def all_grants(self) -> list[GrantRow]:
        """The grants of people to MCP clients, if they can sign in here."""
        grants = await self.grants.all() if self.grants else []
        return [
            GrantRow(
                f"{GRANT}{grant.id}",
                grant.person.id,
                grant.office,
                grant.name,
                grant.domain,
                *(grant.created, grant.used, grant.expires),
            )
            for grant in grants
        ]

    # Events

    @asynccontextmanager
    async def following(self, query: Mapping[str, str]) -> AsyncIterator[EventReader]:
        """A reader of the events of all nodes. Raises `BadRequest` or `RateLimited`."""
        reader = self.source.open(EventFilter(query))
        tasks = OwnedTasks()
        tasks.spawn(self._follow_others(reader, query, tasks))
        try:
            yield reader
        finally:
            self.source.close(reader)
            await tasks.close()

    async def _follow_others(self, reader: EventReader, query: Mapping[str, str], tasks: OwnedTasks) -> None:
        """Follows nodes that come later, too, and those that come back."""
        followed: set[str] = set()

        async def follow(node: str) -> None:
            with suppress(Unavailable):
                async for line in self.others.lines(node, f"events?{urlencode(query)}"):
                    if line.startswith(b"{"):
                        reader.put({"node": node, **_facts.decode(line)})
            followed.discard(node)

        while True:
            with suppress(Unavailable):
                for node in await self.others.names():
                    if node not in followed:
                        followed.add(node)
                        tasks.spawn(follow(node))
            await asyncio.sleep(_LOOK_FOR_NODES)

    # What operators do

    async def disconnect(self, wanted: str, who: Who) -> list[MemberRow]:
        """Ends a connection by its id, on any node. Returns its seats. Raises `NotFound`."""
        rows, _ = await self.all_members()
        seats = [row for row in rows if row.id == wanted]
        if not any(row.connected for row in seats):
            raise NotFound("there is no such member, or it is not connected; its id is in the list of members")
        try:
            self.view.disconnect(wanted)
        except NotFound:
            answers = await self.others.ask("disconnect", method="POST", id=wanted)
            if not any(_flag.decode(body) for body in answers.bodies.values()):
                raise
        for row in seats:
            self.report("disconnect", who, office=row.office, role=row.role, name=row.name, target=row.principal)
        return seats

    def freezes(self) -> list[Freeze]:
        """All freezes, the widest first."""
        return sorted(self._freezes.by_scope.values(), key=lambda freeze: [part or "" for part in freeze.scope])

    async def freeze(self, scope: FreezeScope, reason: str, who: Who) -> FreezeChange:
        """Freeze a computer, an office or the Server. Raises `BadRequest`, and `Unavailable` as `Freezes.freeze`."""
        freeze = Freeze(*scope, reason.strip(), who.name or who.address or "", time.time())
        written = self._freezes.freeze(freeze)
        self._report_freeze("freeze", who, freeze)
        await written
        return await self._frozen(freeze)

    async def thaw(self, scope: FreezeScope, who: Who) -> FreezeChange:
        """End a freeze. Raises `NotFound` and `Unavailable` as `Freezes.thaw`."""
        known = self._freezes.by_scope.get(scope)
        try:
            freeze = await self._freezes.thaw(scope)
        except Unavailable:
            if known:  # its end may be written, and just the answer lost
                self._report_freeze("try to thaw", who, known)
            raise
        self._report_freeze("thaw", who, freeze)
        return await self._frozen(freeze)

    @property
    def _freezes(self) -> Freezes:
        return self.view.hub.freezes

    def _report_freeze(self, action: str, who: Who, freeze: Freeze) -> None:
        self.report(action, who, office=freeze.office, computer=freeze.computer, reason=freeze.reason or None)

    async def _frozen(self, freeze: Freeze) -> FreezeChange:
        """The result of a change, once all other nodes know it that answer."""
        missing, (rows, _) = await asyncio.gather(self._unaware(), self.all_members())
        office, computer = freeze.scope
        there = [row for row in rows if row.role == "computer" and office in (None, row.office)]
        count = sum(computer in (None, row.name) for row in there)
        still = [one for one in self.freezes() if _overlap(one.scope, freeze.scope) and one.scope != freeze.scope]
        return FreezeChange(freeze, count, missing, self._freezes.unkept, still)

    async def _unaware(self) -> list[Missing]:
        """The nodes that do not know the latest change after a while, or do not answer."""
        number, late = self._freezes.number, list[str]()
        for _ in range(_LOOKS):
            answers = await self.others.ask("freezes")
            late = [node for node, body in answers.bodies.items() if _number.decode(body) < number]
            if not late:
                break
            await asyncio.sleep(_LOOK_AGAIN)
        return [*answers.missing, *(Missing(node, "it has not heard of it yet") for node in late)]

    async def create_key(self, entry: object, who: Who) -> KeyChange:
        new, key = await (self.admin_keys if is_of_operator(entry) else self.keys).create(entry)
        return await self._changed("create key", who, new, key)

    async def expire_key(self, wanted: str, expires: float, who: Who) -> KeyChange:
        await self._keys_with(wanted).expire(wanted, expires)
        return await self._changed("expire key", who, wanted)

    async def new_link(self, office: str, principal: str, who: Who) -> str:
        """A one-time link for the page on which MCP clients are signed in. Raises `BadRequest`."""
        if self.grants is None:
            raise BadRequest("nobody can sign in here: start the Server with --mcp --sign-in")
        for field, name in (("office", office), ("principal", principal)):
            if fault := fault_in(name):
                raise BadRequest(f"{field}: {fault}")
        link = await self.grants.new_link(GrantHolder(principal, is_by_link=True), office)
        self.report("create link", who, office=office, target=principal)
        return link

    async def revoke_key(self, wanted: str, who: Who) -> KeyChange:
        """End a key, or a grant of a person to an MCP client."""
        if self.grants and wanted.startswith(GRANT):
            grant = await self.grants.revoke(wanted)
            self.report("revoke grant", who, key=wanted, office=grant.office, target=grant.person.id)
            return KeyChange(wanted)
        row = self.key_row(wanted)
        is_written = await self._keys_with(wanted).revoke(wanted)
        return await self._changed("revoke key", who, wanted, is_written=is_written, revoked=row)

    async def rotate_key(self, wanted: str, grace: float, who: Who) -> KeyChange:
        new, key = await self._keys_with(wanted).rotate(wanted, grace)
        await self._changed("rotate key", who, wanted)
        return await self._changed("create key", who, new, key)

    async def _changed(
        self,
        action: str,
        who: Who,
        wanted: str,
        key: str | None = None,
        *,
        is_written: bool = True,
        revoked: KeyRow | None = None,
    ) -> KeyChange:
        """Puts the changed file in force on all nodes, and says which of them have another one."""
        row = self.key_row(wanted)
        of = row or revoked
        self.report(action, who, key=wanted, target=of.principal if of else None)
        withheld = {} if is_written else {"withheld": wanted}
        answers = await self.others.ask("reload", method="POST", key=wanted, **withheld)
        differing = [node for node, body in answers.bodies.items() if not _is_same(_key.decode(body), row)]
        return KeyChange(wanted, key, row, differing, answers.missing, until_restart=not is_written)

    # Sessions of the console

    async def session_elsewhere(self, session: str) -> SessionSeen:
        """Return a session as the other nodes saw it: any end, and the latest use."""
        answers = await self.others.ask("session", id=session)
        seen = [_seen.decode(body) for body in answers.bodies.values()]
        known = [session_seen.idle for session_seen in seen if session_seen.idle is not None]
        return SessionSeen(any(session_seen.is_ended for session_seen in seen), min(known, default=None))

    async def end_session_elsewhere(self, session: str) -> None:
        await self.others.ask("end-session", method="POST", id=session)

    async def new_key_elsewhere(self, session: str, wanted: str) -> KeyChange | None:
        """A new key that another node has made for this session, taken from it."""
        answers = await self.others.ask("new-key", method="POST", session=session, id=wanted)
        return next(filter(None, map(_change.decode, answers.bodies.values())), None)

    def key_row(self, wanted: str) -> KeyRow | None:
        """A key as this node knows it."""
        with suppress(BadRequest):
            return next((row for row in self._key_rows(self.view.key_uses()) if row.id == wanted), None)
        return None

    @property
    def unwritable(self) -> str:
        """The reason why a keys file could not be changed at first; empty if each can."""
        return self.keys.unwritable or self.admin_keys.unwritable

    def _key_rows(self, uses: KeyUses) -> list[KeyRow]:
        if self.operators.file is None:
            return self.keys.rows(uses)
        with suppress(BadRequest):
            return [*self.keys.rows(uses), *self.admin_keys.rows(uses)]
        return self.admin_keys.rows(uses)

    def _keys_with(self, wanted: str) -> ServerKeys:
        is_admin_key = any(operator.credential == wanted for operator in self.operators.holders)
        return self.admin_keys if is_admin_key else self.keys

    def report(self, action: str, who: Who, **facts: str | None) -> None:
        """Report what an operator has done, here or elsewhere, such as signing in to the console."""
        via = "console" if who.is_console else "api"
        about = {"principal": who.name, **facts}
        self.view.hub.observation.report(OperatorActed(action, who.address, via, about))


def _chosen(
    selection: Selection, rows: Iterable[Placed], missing: Sequence[Missing], *, newest_first: bool = False
) -> RowsOfNodes[Placed]:
    page = page_of(selection.choose(rows), selection, lambda row: row.place, newest_first=newest_first)
    return RowsOfNodes(page, missing)


def offices_of(rows: Iterable[MemberRow]) -> list[OfficeRow]:
    """Groups members by office."""
    offices: dict[str, OfficeRow] = {}
    for row in rows:
        office = offices.setdefault(row.office, OfficeRow(row.office))
        if row.role == "agent":
            office.agent = row.name
        else:
            office.computers += 1
            office.calls += row.calls
            office.frozen += row.frozen
        office.away += not row.connected
        if row.node and row.node not in office.nodes:
            office.nodes.append(row.node)
    return list(offices.values())


def _overlap(one: FreezeScope, other: FreezeScope) -> bool:
    return all(None in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True))


def _is_same(one: KeyRow | None, other: KeyRow | None) -> bool:
    if one is None or other is None:
        return one is other
    unused = KeyUses(0.0, {}, {})
    return one.with_uses(unused) == other.with_uses(unused)


_members = msgspec.json.Decoder(list[MemberRow])
_calls = msgspec.json.Decoder(list[CallRow])
_history = msgspec.json.Decoder(Snapshot)
_node = msgspec.json.Decoder(NodeRow)
_uses = msgspec.json.Decoder(KeyUses)
_kept_uses = msgspec.json.Decoder(CredentialUses)
_number = msgspec.json.Decoder(int)
_seen = msgspec.json.Decoder(SessionSeen)
_key = msgspec.json.Decoder(KeyRow | None)
_change = msgspec.json.Decoder(KeyChange | None)
_flag = msgspec.json.Decoder(bool)
_facts = msgspec.json.Decoder(dict)
