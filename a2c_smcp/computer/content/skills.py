"""The skills of a Computer: the owner's and those of MCP servers, listed and read for agents (PROTOCOL-0.4 §§3, 4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.content.blob_handles import Blobs
from a2c_smcp.computer.content.server_skills import ServerSkills
from a2c_smcp.computer.content.skill import Skill, SkillContents, SkillLimits, open_file
from a2c_smcp.computer.content.user_skills import Staging, UserFolder, UserSkills, skill_home
from a2c_smcp.computer.hosting import HostedServers
from a2c_smcp.computer.secrets.mask import SKILL, Mask
from a2c_smcp.errors import CallTimeout, InvalidSkillName, SkillFileNotAccessible, SkillNotFound
from a2c_smcp.loops import cancel_and_wait, in_thread
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.skills import SKILL_FILE, is_skill_name
from a2c_smcp.v04_events import A2CSkillRef

logger = logging.getLogger(__name__)

_GATHERED = 0.3
_DEADLINE = 20.0
_READS = 4
_MOST_LISTED = 2 * 1024 * 1024
_LONGEST_SHOWN = 256


class Skills:
    """`on_change` is called when agents would see a difference, at most once in `_GATHERED` seconds.

    `home` is the folder of all skills; the owner's are looked at every `interval` seconds. `warnings` says what is left
    out, and why.
    """

    def __init__(
        self,
        host: Callable[[], HostedServers],
        mask: Mask,
        blobs: Blobs,
        on_change: Callable[[], None],
        *,
        home: Path | None = None,
    ) -> None:
        self.home = home.expanduser().absolute() if home else skill_home()
        self.interval = 1.0
        self._mask, self._blobs = mask, blobs
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

    async def get(self, caller: Caller, name: str, rel_path: str | None) -> dict[str, Any]:
        """The answer to `client:get_skill`, without its `req_id`: one file, inline or as a handle for this agent.

        Raises `InvalidSkillName`, `SkillNotFound`, `SkillFileNotAccessible`, `CallTimeout`.
        """
        if not is_skill_name(name):
            raise InvalidSkillName(name=name[:_LONGEST_SHOWN])
        skill, path = self._find(name), rel_path or SKILL_FILE
        try:
            async with asyncio.timeout(_DEADLINE), self._reads:
                opening = partial(self._open, name, path)
                file = await in_thread(self._contents.load, opening, name, path, skill.server)
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
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(_GATHERED, self._tell)

    def _tell(self) -> None:
        self._gathering = None
        self._on_change()


def _fitting(skills: list[Skill]) -> tuple[dict[str, Skill], int]:
    """The skills whose references fit into one message, by name, and how many others there are."""
    found, room = dict[str, Skill](), _MOST_LISTED
    for skill in skills:
        room -= len(dumps(skill.reference)) if skill.name not in found else 0
        if room >= 0:
            found.setdefault(skill.name, skill)
    return found, len({skill.name for skill in skills}) - len(found)
