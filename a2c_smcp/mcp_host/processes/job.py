"""Processes on Windows: each in a job of its own, which ends with the handle that this process has of it.

A process is started suspended and put into its job before it runs, so all its descendants belong to the job, and cannot
leave it. `TerminateJobObject` ends them together. If this process is killed, the kernel closes its handles, and the
jobs end. No other process has such a handle: they are not inherited. A child has no window, and a console of its own:
Ctrl-C and Ctrl-Break of ours do not reach it.

A `JobControl` reports and takes orders like a watcher of `guard_program`, but there is no SIGTERM: after the grace the
whole job is terminated. This module is imported on every system, and used on Windows only.
"""
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import asyncio
import ctypes
import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import PureWindowsPath
from typing import Any

from a2c_smcp.loops import OwnedTasks, in_thread
from a2c_smcp.mcp_host.failures import StartFailed

_SUSPENDED, _NO_WINDOW = 0x4, 0x08000000
_POLLED = 0.01
"""Seconds between two looks at what is left of a terminated job."""
_UNQUOTABLE = frozenset('"%\r\n')


class JobControl:
    """A job with its process. `reports` are lines with its exit code, and end when no process is left."""

    def __init__(self, process: Any, job: Any) -> None:
        self.reports = asyncio.StreamReader()
        self._process, self._job = process, job
        self._tasks = OwnedTasks()
        self._tasks.spawn(self._watch())

    def write(self, order: bytes) -> None:
        """Terminate the job after the grace of the order."""
        asyncio.get_running_loop().call_later(json.loads(order)["grace"], self.close)

    def is_closing(self) -> bool:
        return self._job is None

    def close(self) -> None:
        """Terminate the job."""
        if self._job is not None:
            import win32job

            win32job.TerminateJobObject(self._job, 1)

    async def _watch(self) -> None:
        code = await in_thread(self._process.wait)
        self.reports.feed_data(json.dumps({"exit": code}).encode() + b"\n")
        self.close()
        while _count(self._job):  # noqa: ASYNC110, jobs report to a port, which the loop offers no function for
            await asyncio.sleep(_POLLED)
        self._job.Close()
        self._job = None
        self.reports.feed_eof()


def launch_in_job(path: str, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> tuple[JobControl, Any]:
    """Start the program at `path`, and return its control and process. Raises `StartFailed` if that is impossible."""
    from asyncio import windows_utils

    import pywintypes
    import win32job

    program, command = _as_executed(path, argv)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with ExitStack() as failing:
        try:
            job = _new_job()
            failing.callback(job.Close)
            process: Any = windows_utils.Popen(
                command, executable=program, env={**env}, cwd=cwd, creationflags=_SUSPENDED | _NO_WINDOW, **pipes
            )
            failing.callback(process.kill)
            for pipe in (process.stdin, process.stdout, process.stderr):
                failing.callback(pipe.close)
            win32job.AssignProcessToJobObject(job, int(process._handle))
        except (OSError, ValueError) as error:
            raise StartFailed(str(error)) from None
        except pywintypes.error as error:
            raise StartFailed(error.strerror) from None
        ctypes.windll.ntdll.NtResumeProcess(int(process._handle))
        failing.pop_all()
    return JobControl(process, job), process


def is_running(pid: int) -> bool:
    """True if there is a process with this id."""
    import pywintypes
    import win32api
    import win32con
    import win32process

    try:
        process = win32api.OpenProcess(win32con.PROCESS_QUERY_LIMITED_INFORMATION, False, pid)
    except pywintypes.error:
        return False
    with closing(process):
        return bool(win32process.GetExitCodeProcess(process) == win32con.STILL_ACTIVE)


def _new_job() -> Any:
    """Return a job that the kernel ends when the last handle of it is closed."""
    import win32job

    job = win32job.CreateJobObject(None, "")
    limits = win32job.QueryInformationJobObject(job, win32job.JobObjectExtendedLimitInformation)
    limits["BasicLimitInformation"]["LimitFlags"] |= win32job.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
    win32job.SetInformationJobObject(job, win32job.JobObjectExtendedLimitInformation, limits)
    return job


def _count(job: Any) -> int:
    """Return the number of processes in a job."""
    import win32job

    known = win32job.QueryInformationJobObject(job, win32job.JobObjectBasicAccountingInformation)
    return int(known["ActiveProcesses"])


def _as_executed(path: str, argv: Sequence[str]) -> tuple[str, str | list[str]]:
    """Return the program and its command line: scripts, such as npx.cmd, are run by the command interpreter.

    It reads a quoted argument as it is, but for quotes and percent signs. Raises `CommandUnusable` for those.
    """
    if PureWindowsPath(path).suffix.lower() in (".exe", ".com"):
        return path, [*argv]
    for argument in (path, *argv[1:]):
        if found := _UNQUOTABLE & set(argument):
            shown = ", ".join(map(repr, sorted(found)))
            raise StartFailed(
                f"{argv[0]!r} is a script, and no argument of it can have {shown}: name its program instead"
            )
    import win32api

    interpreter = f"{win32api.GetSystemDirectory()}\\cmd.exe"
    words = " ".join(f'"{word}"' for word in (path, *argv[1:]))
    return interpreter, f'"{interpreter}" /d /s /v:off /c "{words}"'
