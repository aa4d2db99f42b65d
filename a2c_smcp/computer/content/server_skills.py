"""The skills of MCP servers: listed, and staged as folders. There are two conventions.

- A server that declares the extension `io.modelcontextprotocol/skills` lists each skill with its frontmatter, and with
  size and SHA-256 of each file. Its folder is empty at first. A file is read when it is needed, checked, and kept. If
  it is not what the list says, the list is read again; a skill that is still listed as before is left out.
- Any other server lists resources of the kind `resources` (PROTOCOL-0.4 §5). All files are read at once.

Each server has one task at most, which lists its resources and stages what has changed. What may come meanwhile, a new
list or a changed file, is noted and handled by the next turn of the same task. A skill that fails costs itself only: if
it was staged before, its older content goes away, because it is not what the server offers now.

Skills of a server that is not usable are kept on disk and hidden. When the server is ready again, all of its skills are
read anew, because they may have changed without a notice; a skill that is the same as before stays where it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import unquote

from a2c_smcp.computer.content.skill import (
    Digests,
    Frontmatter,
    NotASkill,
    Skill,
    frontmatter_in,
    frontmatter_of,
    read_frontmatter,
    skill_of,
)
from a2c_smcp.computer.content.user_skills import Draft, Staging
from a2c_smcp.computer.hosting import HostedServers
from a2c_smcp.errors import BadRequest, CallTimeout, NotPrivate, SkillFileNotAccessible, SMCPError, kind_of
from a2c_smcp.loops import OwnedTasks, in_thread, start_in_thread_async
from a2c_smcp.mcp_host.failures import OversizedAnswer, RequestRefused, if_short
from a2c_smcp.mcp_host.sessions.session import EventKind
from a2c_smcp.mcp_host.sessions.tool_request import LIST_SKILLS, READ_METHODS, ReadRequest
from a2c_smcp.mcp_host.status import State
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.names import MAX_WINDOW_URI
from a2c_smcp.protocol.operations import RESOURCES
from a2c_smcp.protocol.results import from_base64
from a2c_smcp.protocol.skills import SKILL_FILE, SKILL_SCHEME, is_skill_part

logger = logging.getLogger(__name__)

# Which resources of an MCP server are skills, and where their files belong (PROTOCOL-0.4 §5, and the extension).

_KINDS = ("resources", "mounted", "archive")
_LISTED = "entry"
"""The kind of a skill that is listed as the extension says."""
_DIGEST = re.compile("sha256:([0-9a-f]{64})")
_LONGEST_PART = 255
_DEEPEST = 16
_MOST_SLASHES = 32


@dataclass(frozen=True)
class ListedSkill:
    """A root, and the resources below it: their URIs, by their paths relative to the root.

    Only a skill that is listed as the extension says has a `frontmatter`, `digests`, and a `name`, which is its own
    unless another skill has it too. `fault` is why it cannot be used.
    """

    uri: str
    kind: str
    version: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    name: str | None = None
    frontmatter: Frontmatter = Frontmatter()  # noqa: RUF009  # frozen
    digests: Digests = field(default_factory=dict)
    fault: str = ""


def skills_in(resources: Iterable[object]) -> dict[str, ListedSkill]:
    """The skills in a list of resources, by the URIs of their roots. Of two resources with one URI the first counts."""
    listed = _skill_resources(resources)
    kinds = {
        uri: kind
        for uri, meta in listed.items()
        if (kind := meta.get("source")) in _KINDS and uri.removeprefix(SKILL_SCHEME).partition("/")[2]
    }
    roots = [uri for uri in kinds if root_of(uri, kinds, itself=False) is None]
    skills = {uri: ListedSkill(uri, kinds[uri], _version(listed[uri])) for uri in roots}
    for uri in listed:
        root = root_of(uri, skills, itself=False)
        if root is not None and uri not in kinds:  # a root inside of another is only a folder
            skills[root].files[uri.removeprefix(f"{root}/")] = uri
    return skills


def listed_skills(entries: Iterable[object]) -> dict[str, ListedSkill]:
    """The skills in the answers to `skills/list`, by the URIs of their folders. Of two with one URI the first counts.

    Skills with the same name are all known by their paths.
    """
    listed: dict[str, ListedSkill] = {}
    for entry in entries:
        uri = entry.get("uri") if isinstance(entry, dict) else None
        if isinstance(entry, dict) and isinstance(uri, str) and len(uri) <= MAX_WINDOW_URI:
            skill = _listed_skill(uri, entry)
            listed.setdefault(skill.uri, skill)
    names = Counter(each.name for each in listed.values())
    return {
        uri: replace(each, name=uri.partition("://")[2].replace("/", "-")) if names[each.name] > 1 else each
        for uri, each in listed.items()
    }


def _listed_skill(uri: str, entry: dict[str, Any]) -> ListedSkill:
    root, found = uri.removesuffix(f"/{SKILL_FILE}"), frontmatter_of(entry.get("frontmatter"))
    try:
        if root == uri or found.name is None or root.rpartition("/")[2] != found.name:
            raise NotASkill(f"its URI does not end with its name and /{SKILL_FILE}")
        files, digests = _listed_files(root, entry.get("resources"))
    except NotASkill as error:
        return ListedSkill(root, _LISTED, fault=str(error))
    version = _version(dict(found.metadata or {}))
    return ListedSkill(root, _LISTED, version, files, found.name, found, digests)


def _listed_files(root: str, resources: object) -> tuple[dict[str, str], dict[str, tuple[int, str]]]:
    """The URIs of a skill's files, and their sizes and digests, by path. Raises `NotASkill`."""
    if not isinstance(resources, list):
        raise NotASkill("it has no digests: what it says may change at any time")
    files, digests = dict[str, str](), dict[str, tuple[int, str]]()
    for each in resources:
        uri, digest, size = map(each.get, ("uri", "digest", "size")) if isinstance(each, dict) else (None,) * 3
        found = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
        if found is None or type(size) is not int or size < 0:
            raise NotASkill("a file has no SHA-256 digest, or no size")
        if not isinstance(uri, str) or not uri.startswith(f"{root}/") or len(uri) > MAX_WINDOW_URI:
            raise NotASkill("a file is outside of its folder")
        parts = [*map(unquote, uri.removeprefix(f"{root}/").split("/"))]
        path = "/".join(parts)
        check_staged_path(path)
        if any("/" in part for part in parts) or path in files:
            raise NotASkill(f"the path {if_short(path, _LONGEST_PART)!r} of a file is refused")
        files[path], digests[path] = uri, (size, found[1])
    if SKILL_FILE not in files:
        raise NotASkill(f"it has no {SKILL_FILE}")
    return files, digests


def root_of(uri: str, roots: Container[str], *, itself: bool = True) -> str | None:
    """The root that a URI is, or lies below."""
    if itself and uri in roots:
        return uri
    return next((each for each in _parents(uri) if each in roots), None)


def check_staged_path(path: str) -> None:
    """Raise `NotASkill` for a path of a file that is not plainly inside of a skill's folder."""
    parts = path.split("/")
    is_plain = all(part not in ("", ".", "..") and part.isprintable() for part in parts)
    if not is_plain or "\\" in path or ":" in path or len(parts) > _DEEPEST:
        raise NotASkill(f"the path {if_short(path, _LONGEST_PART)!r} of a file is refused")
    try:
        lengths = [len(os.fsencode(part)) for part in parts]
    except UnicodeEncodeError:
        raise NotASkill(f"the path {if_short(path, _LONGEST_PART)!r} of a file is refused") from None
    if max(lengths) > _LONGEST_PART:
        raise NotASkill(f"the path {if_short(path, _LONGEST_PART)!r} of a file is too long")


def _skill_resources(resources: Iterable[object]) -> dict[str, dict[str, Any]]:
    """The metadata of each resource of this scheme, by its URI."""
    found: dict[str, dict[str, Any]] = {}
    for each in resources:
        uri = each.get("uri") if isinstance(each, dict) else None
        if not isinstance(uri, str) or len(uri) > MAX_WINDOW_URI or uri.count("/") > _MOST_SLASHES:
            continue
        if uri.startswith(SKILL_SCHEME):
            meta = each["_meta"] if isinstance(each, dict) and isinstance(each.get("_meta"), dict) else {}
            found.setdefault(uri, meta)
    return found


def _parents(uri: str) -> Iterator[str]:
    """The URIs of the folders that a URI lies in, the outermost first."""
    at = len(SKILL_SCHEME)
    while (at := uri.find("/", at)) >= 0:
        yield uri[:at]
        at += 1


def _version(meta: dict[str, Any]) -> str | None:
    version = meta.get("version")
    return str(version) if isinstance(version, str | int | float) and not isinstance(version, bool) else None


_MOST_PAGES = 1000
_PATIENCE = 20.0
_LONGEST_LISTING = 120.0
_LONGEST_STAGING = 120.0
_MOST_LISTED = 64 * 1024 * 1024
"""Bytes of a list."""
_READS = 4


@dataclass(frozen=True)
class StagingLimits:
    """Limits on the skills of one MCP server: numbers, and bytes of one skill and of all."""

    resources: int = 10_000
    skills: int = 256
    files: int = 1000
    skill_bytes: int = 64 * 1024 * 1024
    all_bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True)
class _Staged:
    """A skill as it was staged. `digest` is that of all its files.

    `fetched` are the paths of the files that were read since, one at a time.
    """

    listed: ListedSkill
    skill: Skill
    digest: str
    size: int
    fetched: set[str] = field(default_factory=set)
    fetching: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass
class _SkillServer:
    """`all` and `updated` are what the next turn of its task handles.

    `rejected` are skills whose files were not as they were listed, and why, by URI.
    """

    bundle_id: str
    staged: dict[str, _Staged] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    is_shown: bool = True
    is_busy: bool = False
    is_wanted: bool = False
    all: bool = False
    updated: set[str] = field(default_factory=set)
    rejected: dict[str, tuple[ListedSkill, str]] = field(default_factory=dict)


class ServerSkills:
    """`on_change` is called when agents would see a difference."""

    def __init__(self, host: Callable[[], HostedServers], staging: Staging, on_change: Callable[[], None]) -> None:
        self.limits = StagingLimits()
        self._host = host
        self._staging = staging
        self._on_change = on_change
        self._servers: dict[str, _SkillServer] = {}
        self._tasks = OwnedTasks()

    def skills(self) -> dict[str, Skill]:
        """The skills that agents may use, by name."""
        shown = [each for server in self._servers.values() if server.is_shown for each in server.staged.values()]
        return {each.skill.name: each.skill for each in shown}

    def faults(self) -> list[str]:
        return [f"server {name!r}: {fault}" for name, server in self._servers.items() for fault in server.faults]

    def on_state(self, name: str, state: State) -> None:
        """A server that has just failed may be back in a moment, and one that is asleep wakes up when it is used."""
        host = self._host()
        if state == "ready" and host.manager[name].about.declares("resources"):
            self._show(name, host.bundle_ids.of(name))
        elif state not in ("starting", "backoff", "asleep"):
            self._hide(name)

    def on_event(self, name: str, kind: EventKind, about: str | None) -> None:
        server = self._servers.get(name)
        if server is None:
            return
        if kind == "resource_list_changed" and not server.all:
            self._want(name)
        elif kind == "skill_updated" and about is not None and root_of(about, server.staged) is not None:
            server.updated.add(about)
            self._want(name)

    def forget(self, name: str) -> None:
        """A server is not configured any more."""
        server = self._servers.pop(name, None)
        if server and server.staged:
            self._tasks.spawn(in_thread(self._remove, [each.skill for each in server.staged.values()]))
            self._on_change()

    def is_on_disk(self, skill: Skill, path: str) -> bool:
        """True if a file of a skill has been read already."""
        staged = self._staged_in(skill)
        return staged is None or staged.listed.kind != _LISTED or path in staged.fetched

    async def fetch(self, skill: Skill, path: str) -> None:
        """Read a file from its MCP server if it is not on disk yet.

        Raises `SkillFileNotAccessible` if it is not what was listed, and the `ServerFailure` of a server that is gone.
        """
        staged = self._staged_in(skill)
        if staged is None or skill.server is None or path not in staged.listed.digests:
            return
        async with staged.fetching:
            if path in staged.fetched:
                return
            try:
                content = await self._read(skill.server, staged.listed.files[path])
                _check_fetched(staged.listed, path, content)
            except NotASkill as error:
                self._reject(skill.server, staged, f"{path}: {error}")
                raise SkillFileNotAccessible(str(error), reason="not_found", rel_path=path) from None
            except (RequestRefused, OversizedAnswer):
                text = "its MCP server does not give it"
                raise SkillFileNotAccessible(text, reason="not_found", rel_path=path) from None
            await in_thread(Draft(skill.root).replace, path, content)
            staged.fetched.add(path)
            if self._staged_in(skill) is None:
                await in_thread(self._remove, [skill])

    async def close(self) -> None:
        await self._tasks.close()
        staged = [each.skill for server in self._servers.values() for each in server.staged.values()]
        self._servers.clear()
        await in_thread(self._remove, staged)

    # Inside

    def _show(self, name: str, bundle_id: str) -> None:
        """A server is ready: read all of its skills."""
        server = self._servers.setdefault(name, _SkillServer(bundle_id))
        if server.bundle_id != bundle_id:
            server.bundle_id, server.staged = bundle_id, {}
        was_shown, server.is_shown = server.is_shown, True
        if server.staged and not was_shown:
            self._on_change()
        server.all = True
        server.rejected.clear()
        self._want(name)

    def _staged_in(self, skill: Skill) -> _Staged | None:
        server = self._servers.get(skill.server or "")
        staged = server.staged.values() if server else ()
        return next((each for each in staged if each.skill.root == skill.root), None)

    def _reject(self, name: str, staged: _Staged, why: str) -> None:
        """Leave a skill out until it is listed differently, or its server starts again."""
        server, uri = self._servers[name], staged.listed.uri
        if server.staged.get(uri) is staged:
            server.rejected[uri] = staged.listed, why
            del server.staged[uri]
            self._on_change()
            self._want(name)
            self._tasks.spawn(in_thread(self._remove, [staged.skill]))

    def _hide(self, name: str) -> None:
        """A server is not usable now."""
        server = self._servers.get(name)
        if server and server.is_shown:
            server.is_shown = False
            if server.staged:
                self._on_change()

    def _remove(self, skills: Iterable[Skill]) -> None:
        for skill in skills:
            self._staging.remove(skill.root)

    def _want(self, name: str) -> None:
        server = self._servers[name]
        server.is_wanted = True
        if not server.is_busy:
            server.is_busy = True
            self._tasks.spawn(self._work(name, server))

    async def _work(self, name: str, server: _SkillServer) -> None:
        """Stage until nothing has changed meanwhile."""
        try:
            while server.is_wanted and self._servers.get(name) is server:
                server.is_wanted = False
                read_all, server.all = server.all, False
                updated, server.updated = server.updated, set()
                try:
                    await self._stage_changes(name, server, updated, read_all=read_all)
                except (SMCPError, TimeoutError) as error:  # when it is ready again, all are read
                    logger.warning("%s: its skills cannot be read: %s", name, error)
        finally:
            server.is_busy = False

    async def _stage_changes(self, name: str, server: _SkillServer, updated: set[str], *, read_all: bool) -> None:
        async with asyncio.timeout(_LONGEST_LISTING):
            listed = await self._listed(name)
        changed = {root for uri in updated if (root := root_of(uri, listed)) is not None}
        before = server.staged
        after, faults = await self._staged(name, server, listed, set(before) if read_all else changed)
        for fault in [fault for fault in faults if fault not in server.faults]:
            logger.warning("%s: %s", name, fault)
        server.staged, server.faults = after, faults
        places = {each.skill.root for each in after.values()}
        if server.is_shown and (changed or _seen(before) != _seen(after)):
            self._on_change()
        await in_thread(self._remove, [each.skill for each in before.values() if each.skill.root not in places])

    async def _staged(
        self, name: str, server: _SkillServer, listed: Mapping[str, ListedSkill], changed: set[str]
    ) -> tuple[dict[str, _Staged], list[str]]:
        """Stage the skills that have `changed` or are new. Return all, and what is wrong with the others."""
        before, after, faults = server.staged, dict[str, _Staged](), list[str]()
        in_order = sorted(listed.values(), key=lambda each: each.uri not in before)  # those that have a name keep it
        for each in in_order[: self.limits.skills]:
            known = before.get(each.uri)
            if known and known.listed == each and each.uri not in changed:
                after[each.uri] = known
                continue
            rejected, why = server.rejected.get(each.uri, (None, ""))
            if rejected == each:
                faults.append(f"skill {each.uri}: {why}")
                continue
            try:
                after[each.uri] = await self._stage(name, server.bundle_id, each, known, [*after.values()])
            except NotASkill as error:
                faults.append(f"skill {each.uri}: {error}")
        if len(listed) > self.limits.skills:
            faults.append(f"only {self.limits.skills} of its {len(listed)} skills are used")
        return after, faults

    async def _listed(self, name: str) -> dict[str, ListedSkill]:
        if self._host().manager[name].about.declares(READ_METHODS[LIST_SKILLS]):
            return await in_thread(listed_skills, await self._list(name, LIST_SKILLS, "skills"))
        return await in_thread(skills_in, await self._list(name, RESOURCES.method, RESOURCES.listed))

    async def _list(self, name: str, method: str, field: str) -> list[object]:
        items: list[object] = []
        cursor: str | None = None
        size = 0
        for _ in range(_MOST_PAGES):
            request = ReadRequest(method=method, params={"cursor": cursor} if cursor else {}, timeout=_PATIENCE)
            page = await self._host().manager[name].requests.read(request)
            listed, following = page.get(field), page.get("nextCursor")
            items += listed if isinstance(listed, list) else []
            size += len(dumps(page))
            is_full = len(items) >= self.limits.resources or size > _MOST_LISTED
            if not isinstance(following, str) or following == cursor or is_full:
                break
            cursor = following
        return items[: self.limits.resources]

    async def _stage(
        self, name: str, bundle_id: str, listed: ListedSkill, known: _Staged | None, others: list[_Staged]
    ) -> _Staged:
        """Read a skill, and put it in its place. Raises `NotASkill`, and the `ServerFailure` of a server that is gone.

        One that is the same as before stays where it is.
        """
        _check_listed(listed, self.limits.files)
        try:
            draft = await self._draft()
            try:
                room = self.limits.all_bytes - sum(each.size for each in others)
                async with asyncio.timeout(_LONGEST_STAGING):
                    whole, size = await self._fill(draft, name, listed, min(self.limits.skill_bytes, room))
                digest = _digest(whole)
                skill = self._skill(whole, name, bundle_id, digest, {each.skill.name for each in others})
                if known is None or (known.digest, known.skill.root) != (digest, skill.root):
                    await in_thread(self._staging.install, draft, skill.root)
                    known = None
            finally:
                await in_thread(draft.remove)
        except TimeoutError:
            raise NotASkill(f"its files did not come in {_LONGEST_STAGING:g} s") from None
        except (NotPrivate, RequestRefused, OversizedAnswer, CallTimeout) as error:
            raise NotASkill(error.message) from None
        except OSError as error:
            raise NotASkill(f"it cannot be written: {error.strerror or kind_of(type(error))}") from None
        if known:
            return replace(known, listed=listed, skill=skill)
        return _Staged(listed, skill, digest, size)

    def _skill(self, listed: ListedSkill, server: str, bundle_id: str, digest: str, taken: Collection[str]) -> Skill:
        found, own = listed.frontmatter, listed.name or listed.frontmatter.name
        if own is None or not is_skill_part(own):
            raise NotASkill(f"the name in the frontmatter of its {SKILL_FILE} is missing, or no name of a skill")
        name, source = f"mcp:{bundle_id}:{own}", f"mcp:{bundle_id}"
        if name in taken:
            raise NotASkill(f"another skill of this server has the name {own!r}")
        # What was listed differently has another place: a file that comes late never gets into a newer skill.
        place = self._staging.place_of(bundle_id, f"{own}-{digest[:16]}" if listed.kind == _LISTED else own)
        make = partial(skill_of, uri=listed.uri, version=listed.version, server=server, digests=listed.digests)
        return make(place, found, name=name, source=source)

    async def _read(self, name: str, uri: str) -> bytes:
        return _content_of(await self._host().manager[name].requests.read(ReadRequest.of_resource(uri, _PATIENCE)))

    async def _draft(self) -> Draft:
        """A new draft. One that is made while this is cancelled is removed: nobody else knows of it."""
        making = start_in_thread_async(self._staging.draft)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            with suppress(OSError, NotPrivate):
                await in_thread((await making).remove)
            raise

    async def _fill(self, draft: Draft, name: str, listed: ListedSkill, room: int) -> tuple[ListedSkill, int]:
        """Write all files, unless they are read later. Returns the skill with all digests, and its size."""
        if listed.kind == _LISTED:
            size = sum(size for size, _ in listed.digests.values())
            if size > room:
                raise NotASkill(f"it has {size} bytes, and there is room for {max(room, 0)}")
            return listed, size
        digests: dict[str, tuple[int, str]] = {}
        size = 0
        slots = asyncio.Semaphore(_READS)

        async def copy(path: str, uri: str) -> None:
            nonlocal size
            async with slots:
                content = await self._read(name, uri)
                size += len(content)
                if size > room:
                    raise NotASkill(f"it has more than {room} bytes")
                digests[path] = len(content), hashlib.sha256(content).hexdigest()
                await in_thread(draft.write, path, content)

        try:
            async with asyncio.TaskGroup() as tasks:
                for path, uri in listed.files.items():
                    tasks.create_task(copy(path, uri))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        found = await in_thread(read_frontmatter, draft.folder)
        return replace(listed, frontmatter=found, digests=digests), size


def _check_listed(listed: ListedSkill, most_files: int) -> None:
    """Raise `NotASkill` for what is not staged, whatever its files are."""
    if listed.fault:
        raise NotASkill(listed.fault)
    if listed.kind not in ("resources", _LISTED):
        raise NotASkill(f"skills of the kind {listed.kind!r} are not used: they name a folder or an address")
    if not listed.files:
        raise NotASkill("it has no files")
    if len(listed.files) > most_files:
        raise NotASkill(f"it has {len(listed.files)} files, at most {most_files} are taken")
    for path in listed.files:
        check_staged_path(path)


def _check_fetched(listed: ListedSkill, path: str, content: bytes) -> None:
    """Raise `NotASkill` if a file is not the one that was listed."""
    if listed.digests[path] != (len(content), hashlib.sha256(content).hexdigest()):
        raise NotASkill("its content is not the one that its size and digest announce")
    if path == SKILL_FILE and frontmatter_in(content).whole != listed.frontmatter.whole:
        raise NotASkill("its frontmatter is not the one that was listed")


def _digest(listed: ListedSkill) -> str:
    uri = listed.uri if listed.kind == _LISTED else ""
    parts = [uri, listed.frontmatter.whole, sorted(listed.digests.items())]
    return hashlib.sha256(dumps(parts).encode(errors="surrogatepass")).hexdigest()


def _seen(staged: Mapping[str, _Staged]) -> list[tuple[Any, str]]:
    """The part of skills that agents see."""
    return [(each.skill.reference, each.digest) for each in staged.values()]


def _content_of(read: Mapping[str, Any]) -> bytes:
    """The contents of a resource, one after the other. Raises `NotASkill`."""
    contents = read.get("contents")
    pieces = [_piece_of(each) for each in contents] if isinstance(contents, list) else [None]
    if None in pieces:
        raise NotASkill("the content of a file is neither text nor base64")
    return b"".join(piece for piece in pieces if piece is not None)


def _piece_of(content: object) -> bytes | None:
    text, blob = (content.get("text"), content.get("blob")) if isinstance(content, dict) else (None, None)
    if isinstance(text, str):
        return text.encode("utf-8", "replace")
    try:
        return from_base64(blob) if isinstance(blob, str) else None
    except BadRequest:
        return None
