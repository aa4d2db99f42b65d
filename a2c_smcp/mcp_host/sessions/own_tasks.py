"""Tasks of MCP 2025-11-25 in the other direction: a server asks something of us, and fetches our answer later.

A request of a server with a `task` among its parameters is answered at once with the id of a task; the work goes on in
the session's task group. The server polls (`tasks/get`), fetches the answer or waits for it (`tasks/result`), cancels.

States: working, then completed, failed or cancelled, once. The work itself sets completed and failed; `cancel` sets
cancelled before it stops the work, so that what the work still does is ignored. A task is forgotten when its time is
over, and there are at most `MOST_TASKS`: then the oldest that has ended makes room, and otherwise a new one is refused.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.abc
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

__all__ = ["RELATED_TASK", "OwnTasks"]

RELATED_TASK = "io.modelcontextprotocol/related-task"
MOST_TASKS = 32
LONGEST_TTL = 60 * 60 * 1000
_POLL_INTERVAL = 500  # milliseconds

Work = Callable[[], Awaitable[dict[str, Any]]]


class _OwnTask:
    def __init__(self, ttl: int) -> None:
        self.id = secrets.token_hex(16)
        self.status = "working"
        self.created = self.updated = _now()
        self.ttl = ttl
        self.expires = time.monotonic() + ttl / 1000
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.result: dict[str, Any] | MCPError = MCPError(INTERNAL_ERROR, "the task was cancelled")

    def end(self, status: str) -> None:
        self.status, self.updated = status, _now()
        self.ended.set()

    def shown(self) -> dict[str, Any]:
        return {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self.created,
            "lastUpdatedAt": self.updated,
            "ttl": self.ttl,
            "pollInterval": _POLL_INTERVAL,
        }


class OwnTasks:
    """The tasks that one server has given us. Refusals are raised as `MCPError`."""

    def __init__(self) -> None:
        self._tasks: dict[str, _OwnTask] = {}

    def create(self, ttl: object, work: Work, group: anyio.abc.TaskGroup) -> dict[str, Any]:
        """Begin the work and return MCP's `CreateTaskResult`. `work` raises nothing but `MCPError`."""
        self._forget_expired()
        if len(self._tasks) >= MOST_TASKS:
            ended = next((id_ for id_, task in self._tasks.items() if task.ended.is_set()), None)
            if ended is None:
                raise MCPError(INTERNAL_ERROR, f"there are {MOST_TASKS} tasks already")
            del self._tasks[ended]
        task = _OwnTask(min(ttl, LONGEST_TTL) if type(ttl) is int and ttl > 0 else LONGEST_TTL)
        self._tasks[task.id] = task
        group.start_soon(_run, task, work)
        return {"task": task.shown()}

    def get(self, params: dict[str, Any]) -> dict[str, Any]:
        return self._task(params).shown()

    async def result(self, params: dict[str, Any]) -> dict[str, Any]:
        """Wait for the end of the task and return the answer, or raise the error."""
        task = self._task(params)
        await task.ended.wait()
        if isinstance(task.result, MCPError):
            raise task.result
        return task.result | {"_meta": {**task.result.get("_meta", {}), RELATED_TASK: {"taskId": task.id}}}

    def cancel(self, params: dict[str, Any]) -> dict[str, Any]:
        task = self._task(params)
        if task.ended.is_set():
            raise MCPError(INVALID_PARAMS, f"the task is {task.status} already")
        task.end("cancelled")
        task.scope.cancel()
        return task.shown()

    def list(self) -> dict[str, Any]:
        self._forget_expired()
        return {"tasks": [task.shown() for task in self._tasks.values()]}

    def _task(self, params: dict[str, Any]) -> _OwnTask:
        self._forget_expired()
        id_ = params.get("taskId")
        task = self._tasks.get(id_) if isinstance(id_, str) else None
        if task is None:
            raise MCPError(INVALID_PARAMS, "there is no such task")
        return task

    def _forget_expired(self) -> None:
        now = time.monotonic()
        for task in [task for task in self._tasks.values() if task.expires <= now]:
            del self._tasks[task.id]
            task.scope.cancel()


async def _run(task: _OwnTask, work: Work) -> None:
    with task.scope:
        try:
            task.result = await work()
            status = "completed"
        except MCPError as error:
            task.result, status = error, "failed"
        if not task.ended.is_set():
            task.end(status)
    if not task.ended.is_set():
        task.end("cancelled")


def _now() -> str:
    return datetime.now(UTC).isoformat()
