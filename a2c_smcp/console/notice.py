"""Notices on the desktop of this machine: something waits for its owner, who has no page of the console open.

They are shown by a program of the system. What agents have chosen is an argument or a variable of its own, never a part
of a script, and of a text that may hold markup the markup is escaped.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from html import escape
from typing import TypeAlias

from a2c_smcp.computer.consent.approval import PendingApproval, PendingApprovals, PendingQuestion, PendingQuestions
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol.escaping import escaped

logger = logging.getLogger(__name__)

_PAUSE, _TIMEOUT = 15.0, 10.0
_LONGEST = 200
_TITLE, _TEXT = "A2C_NOTICE_TITLE", "A2C_NOTICE_TEXT"
_BUS = "org.freedesktop.Notifications"
_APPLESCRIPT = "on run argv\ndisplay notification (item 2 of argv) with title (item 1 of argv)\nend run"
_TOAST = f"""
$manager = [Windows.UI.Notifications.ToastNotificationManager, Windows.UI.Notifications, ContentType=WindowsRuntime]
$xml = $manager::GetTemplateContent([Windows.UI.Notifications.ToastTemplateType]::ToastText02)
$texts = $xml.GetElementsByTagName('text')
[void]$texts.Item(0).AppendChild($xml.CreateTextNode($env:{_TITLE}))
[void]$texts.Item(1).AppendChild($xml.CreateTextNode($env:{_TEXT}))
$toast = [Windows.UI.Notifications.ToastNotification, Windows.UI.Notifications, ContentType=WindowsRuntime]::new($xml)
$app = '{{1AC14E77-02E7-4E5D-B744-2EB1AE5198B7}}\\WindowsPowerShell\\v1.0\\powershell.exe'
$manager::CreateToastNotifier($app).Show($toast)
"""
_ENCODED = base64.b64encode(_TOAST.encode("utf-16-le")).decode()


Shower: TypeAlias = Callable[[str, str], list[str]]
"""The program, and its arguments, that show a title and a text."""


def _notify_send(title: str, text: str) -> list[str]:
    """The program reads backslashes in the text as those of C."""
    return ["notify-send", "--app-name=a2c-smcp", "--", title, escape(text).replace("\\", r"\\")]


def _gdbus(title: str, text: str) -> list[str]:
    place = ["--dest", _BUS, "--object-path", f"/{_BUS.replace('.', '/')}", "--method", f"{_BUS}.Notify"]
    title, text = (json.dumps(each, ensure_ascii=False) for each in (title, escape(text)))
    shown = [title, text, "@as []", "@a{sv} {}", "int32 -1"]
    return ["gdbus", "call", "--session", *place, "--", '"a2c-smcp"', "uint32 0", '""', *shown]


def _osascript(title: str, text: str) -> list[str]:
    return ["osascript", "-e", _APPLESCRIPT, title, text]


def _powershell(title: str, text: str) -> list[str]:
    program = os.path.expandvars(r"%SystemRoot%\System32\WindowsPowerShell\v1.0\powershell.exe")
    return [program, "-NoProfile", "-NonInteractive", "-EncodedCommand", _ENCODED]


_SHOWERS: Mapping[str, tuple[Shower, ...]] = {"darwin": (_osascript,), "win32": (_powershell,)}


def shower() -> Shower | None:
    """Return what shows a notice on this machine; `None` if it has no program for that."""
    known = _SHOWERS.get(sys.platform, (_notify_send, _gdbus))
    return next((shower for shower in known if shutil.which(shower("", "")[0])), None)


class DesktopNotices:
    """One notice at a time, and a pause after each. `is_watched` is true while a page of the console is open."""

    def __init__(self, shower: Shower, computer: str, is_watched: Callable[[], bool], pause: float = _PAUSE) -> None:
        self._shower, self._is_watched, self._pause = shower, is_watched, pause
        self._title = escaped(f"a2c-smcp: {computer}")
        self._new: dict[int, str] = {}
        self._tasks = OwnedTasks()
        self._is_showing = False

    def follow(self, approvals: PendingApprovals, questions: PendingQuestions) -> None:
        for pending in (approvals, questions):
            pending.on_added.append(self._add)
            pending.on_removed.append(self._remove)

    def _remove(self, pending: PendingApproval | PendingQuestion) -> None:
        self._new.pop(pending.number, None)

    async def close(self) -> None:
        await self._tasks.close()

    def _add(self, pending: PendingApproval | PendingQuestion) -> None:
        if isinstance(pending, PendingApproval):
            wanted = pending.request
            text = f"{wanted.caller.who} wants to run {wanted.name} of {wanted.server}"
        else:
            text = f"{pending.who} asks a question"
        self._new[pending.number] = escaped(text)[:_LONGEST]
        if not self._is_showing:
            self._is_showing = True
            self._tasks.spawn(self._show())

    async def _show(self) -> None:
        try:
            while self._new:
                first, *more = self._new.values()
                self._new.clear()
                if not self._is_watched():
                    await self._run(f"{first} (and {len(more)} more)" if more else first)
                    await asyncio.sleep(self._pause)
        finally:
            self._is_showing = False

    async def _run(self, text: str) -> None:
        """Show it, and log that it could not be shown."""
        program, *arguments = self._shower(self._title, text)
        variables, silent = {**os.environ, _TITLE: self._title, _TEXT: text}, asyncio.subprocess.DEVNULL
        running = None
        try:
            running = await asyncio.create_subprocess_exec(
                program, *arguments, stdin=silent, stdout=silent, stderr=silent, env=variables
            )
            async with asyncio.timeout(_TIMEOUT):
                problem = f"it ends with {code}" if (code := await running.wait()) else ""
        except OSError as error:
            problem = error.strerror or "it does not end"
        finally:
            if running and running.returncode is None:
                running.kill()
                await running.wait()
        if problem:
            logger.warning("the desktop shows no notice by %s: %s", program, problem)
