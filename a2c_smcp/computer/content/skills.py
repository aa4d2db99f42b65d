"""The skills of a Computer: the owner's and those of MCP servers, listed and read for agents (PROTOCOL-0.4 §§3, 4)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from a2c_smcp.computer.calls.definitions import Pinned
from a2c_smcp.computer.calls.table import ToolRoute
from a2c_smcp.computer.consent.approval import ApprovalRequest, Approvals, Caller
from a2c_smcp.computer.consent.pins import PinnedTools
from a2c_smcp.computer.content.blob_handles import Blobs
from a2c_smcp.computer.content.server_skills import ServerSkills
from a2c_smcp.computer.content.skill import Skill, SkillContents, SkillFile, SkillLimits, open_file
from a2c_smcp.computer.content.user_skills import Staging, UserFolder, UserSkills, skill_home
from a2c_smcp.computer.hosting import HostedServers
from a2c_smcp.computer.secrets.mask import SKILL, Mask
from a2c_smcp.errors import ApprovalRefused, CallTimeout, InvalidSkillName, SkillFileNotAccessible, SkillNotFound
from a2c_smcp.loops import OwnedTasks, cancel_and_wait, in_thread
from a2c_smcp.mcp_host.config.servers import ToolMeta
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.skills import SKILL_FILE, is_private_file, is_skill_name
from a2c_smcp.registry.schemas.check import Schema
from a2c_smcp.v04_events import A2CSkillRef

logger = logging.getLogger(__name__)

_GATHERED = 0.3
_DEADLINE = 20.0
_READS = 4
_MOST_LISTED = 2 * 1024 * 1024
_LONGEST_SHOWN = 256
_MOST_FILES, _MOST_BYTES = 512, 16 * 1024 * 1024
"""Of a skill that is listed for MCP clients: more than that, they need not take."""


class Skills:
    """`on_change` is called when agents would see a difference, at most once in `_GATHERED` seconds.

    `home` is the folder of all skills; the owner's are looked at every `interval` seconds. `warnings` says what is left
    out, and why.

    A skill of an MCP server is pinned as a tool is that runs without asking (`pins.py`). With `ask`, none of its files
    is given to agents after a change, until the owner has said yes.
    """

    def __init__(
        self,
        host: Callable[[], HostedServers],
        mask: Mask,
        blobs: Blobs,
        pins: PinnedTools,
        approvals: Approvals,
        on_change: Callable[[], None],
        *,
        home: Path | None = None,
    ) -> None:
        self.home = home.expanduser().absolute() if home else skill_home()
        self.interval = 1.0
        self._mask, self._blobs = mask, blobs
        self._pins, self._approvals = pins, approvals
        self._pinned: dict[str, Pinned] = {}
        self._asking: set[tuple[str, str]] = set()
        self._tasks = OwnedTasks()
        self._on_change = on_change
        self._contents = SkillContents(mask, SkillLimits.of_environment())
        self._folder, self._user = UserFolder(self.home), UserSkills()
        self._staging = Staging(self.home)
        self.servers = ServerSkills(host, self._staging, self._changed)
        self._found: dict[str, Skill] = {}
        self._left_out = 0
        self._gathering: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._reads = asyncio.Semaphore(_READS)

    async def open(self) -> None:
        """Read the owner's skills, and watch them from now on."""
        await self._look()
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        if self._watching:
            await cancel_and_wait(self._watching)
        await self._tasks.close()
        await self.servers.close()
        self._user, self._found, self._watching = UserSkills(), {}, None
        if self._gathering:
            self._gathering.cancel()
            self._gathering = None
        await in_thread(self._staging.close)

    @property
    def warnings(self) -> list[str]:
        faults = [f"skill {fault}" for fault in self._user.faults] + self.servers.faults()
        if self._left_out:
            faults.append(f"{self._left_out} skills are not listed: all together they have too much to say")
        return [self._mask.text(fault) for fault in faults]

    def references(self) -> list[A2CSkillRef]:
        """The skills as agents see them, without secrets."""
        return [self._mask.data(each.reference, SKILL, each.server) for each in self._found.values()]

    async def get(self, caller: Caller, name: str, rel_path: str | None, *, as_mcp: bool = False) -> dict[str, Any]:
        """The answer to `client:get_skill`, without its `req_id`: one file, inline or as a handle for this agent.

        With `as_mcp`, it is the file as MCP clients read it, a `SKILL.md` with its frontmatter; without a path, the
        frontmatter, and size and SHA-256 of each file. Raises `InvalidSkillName`, `SkillNotFound`, `ApprovalRefused`,
        `SkillFileNotAccessible`, `CallTimeout`.
        """
        if not is_skill_name(name):
            raise InvalidSkillName(name=name[:_LONGEST_SHOWN])
        skill, path = self._find(name), rel_path or SKILL_FILE
        try:
            async with asyncio.timeout(_DEADLINE), self._reads:
                if as_mcp and rel_path is None:
                    return await self._entry(skill)
                self._require_approved(caller, skill)
                await self.servers.fetch(skill, path)
                file = await self._load(skill, path, as_mcp=as_mcp)
        except TimeoutError:
            raise CallTimeout(f"the file was not read within {_DEADLINE:g} s") from None
        except OSError:
            raise SkillFileNotAccessible("it cannot be read", reason="not_found", rel_path=path) from None
        answer: dict[str, Any] = {
            "name": name,
            "rel_path": path,
            "mime_type": file.mime_type,
            "total_size": file.total_size,
            "sha256": file.sha256,
        }
        if file.body is None:
            return {**answer, "blob_handle": self._blobs.offer(caller, file)}
        return {**answer, "body": file.body}

    # Inside

    async def _load(self, skill: Skill, path: str, *, as_mcp: bool) -> SkillFile:
        opening, added = partial(self._open, skill.name, path), None
        if as_mcp:
            added = "" if "name" in skill.frontmatter else f"name: {skill.name}"
        return await in_thread(self._contents.load, opening, skill.name, path, skill.server, added)

    async def _entry(self, skill: Skill) -> dict[str, Any]:
        """The skill as MCP lists it, but for URIs. Files of MCP servers are not read for it."""
        paths = [*skill.digests] or await in_thread(_files_below, skill.root)
        files: dict[str, Any] = {}
        left = _MOST_BYTES
        for path in [path for path in paths if not is_private_file(path)]:
            size, digest = skill.digests.get(path, (0, ""))
            if self.servers.is_on_disk(skill, path):
                file = await self._load(skill, path, as_mcp=True)
                size, digest = file.total_size, file.sha256
            left -= size
            files[path] = {"total_size": size, "sha256": digest}
            if left < 0 or len(files) > _MOST_FILES or self._mask.name(path, skill.server) != path:
                text = f"MCP clients take {_MOST_FILES} files and {_MOST_BYTES} bytes, without secrets in their names"
                raise SkillFileNotAccessible(text, reason="too_large", rel_path=SKILL_FILE)
        frontmatter = self._mask.data({"name": skill.name, **skill.frontmatter}, server=skill.server)
        return {"name": skill.name, "frontmatter": frontmatter, "files": files}

    def _require_approved(self, caller: Caller, skill: Skill) -> None:
        """Raise `ApprovalRefused` for a pinned skill that has changed, and ask the owner, who may take long."""
        pinned, server = self._pinned.get(skill.name), skill.server
        if server is None or pinned is None or pinned.change is None or not pinned.change.asks:
            return
        about = skill.name, pinned.digest
        route = ToolRoute(server, skill.name, ToolMeta(), Schema({}), digest=pinned.digest, change=pinned.change)
        if about not in self._asking and self._approvals.can_ask(route):
            self._asking.add(about)
            self._tasks.spawn(self._ask(caller, route))
        raise ApprovalRefused(f"{skill.name!r} has changed, and its owner has to approve it first: ask again later")

    async def _ask(self, caller: Caller, route: ToolRoute) -> None:
        assert route.change
        name = route.tool
        request = ApprovalRequest(caller, name, route.server, name, {}, route.change.diff, every_time=True)
        try:
            await self._approvals.require(request, route)
            self._pins.accept(route.server, name, route.digest)
            self._changed()
        except ApprovalRefused as refusal:
            logger.info("skill %s: %s", name, refusal.message)
        finally:
            self._asking.discard((name, route.digest))

    def _find(self, name: str) -> Skill:
        """Also called in threads. Raises `SkillNotFound`."""
        if skill := self._found.get(name):
            return skill
        raise SkillNotFound(name=name[:_LONGEST_SHOWN])

    @contextmanager
    def _open(self, name: str, rel_path: str) -> Iterator[BinaryIO]:
        """Open a file, with all checks made anew. The folder comes from the name only."""
        with ExitStack() as stack:
            with self._staging.swapping:
                file = stack.enter_context(open_file(self._find(name).root, rel_path))
            yield file

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.interval)
            try:
                await self._look()
            except Exception:  # the next look may succeed
                logger.exception("the folder %s cannot be looked at", self._folder.path)

    async def _look(self) -> None:
        before = self._user
        after = await in_thread(self._folder.look, before)
        for fault in [fault for fault in after.faults if fault not in before.faults]:
            logger.warning("skill %s", fault)
        if after is not before:
            self._user = after
            self._changed()

    def _changed(self) -> None:
        """Take in what has changed, and tell agents of it soon."""
        self._found, self._left_out = _fitting([*self._user.skills.values(), *self.servers.skills().values()])
        self._pinned = {}
        for name, skill in self._found.items():
            definition = {"name": name, "frontmatter": skill.frontmatter, "resources": dict(skill.digests)}
            if skill.server and (pinned := self._pins.look_at_skill(skill.server, definition)):
                self._pinned[name] = pinned
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(_GATHERED, self._tell)

    def _tell(self) -> None:
        self._gathering = None
        self._on_change()


def _files_below(root: Path) -> list[str]:
    """The paths of the files in a folder, a few more than are listed at most. Links are not followed."""
    paths = (Path(folder, file).relative_to(root).as_posix() for folder, _, files in os.walk(root) for file in files)
    return sorted(path for path in islice(paths, _MOST_FILES + 2) if not (root / path).is_symlink())


def _fitting(skills: list[Skill]) -> tuple[dict[str, Skill], int]:
    """The skills whose references fit into one message, by name, and how many others there are."""
    found, room = dict[str, Skill](), _MOST_LISTED
    for skill in skills:
        room -= len(dumps(skill.reference)) if skill.name not in found else 0
        if room >= 0:
            found.setdefault(skill.name, skill)
    return found, len({skill.name for skill in skills}) - len(found)
