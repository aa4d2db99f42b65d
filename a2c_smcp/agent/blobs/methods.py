"""The methods of the two clients that transfer large contents: the same, awaited and blocking."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from a2c_smcp.agent.blobs.transfers import AnyPath
from a2c_smcp.registry.calls.progress import OnProgress

if TYPE_CHECKING:
    from a2c_smcp.agent.flows import Flows

__all__ = ["AsyncTransferMethods", "TransferMethods"]

Result = TypeVar("Result")


class AsyncTransferMethods:
    """`on_progress(bytes, total, None)` is called while bytes are transferred; it may be async."""

    _flows: Flows

    async def put_file(
        self,
        computer: str,
        path: AnyPath,
        name: str | None = None,
        on_progress: OnProgress | None = None,
        *,
        office: str | None = None,
    ) -> str:
        """Send a file to a computer, and return its path there. `name` is a hint for its name there.

        After a lost connection it goes on where it was. The computer checks its hash. Raises `BlobWriteFailed` if the
        computer takes no files (`details["reason"]` is `forbidden`: its owner has to start it with `--landing`, and
        without `--read-only`), not so many, or not so large ones; `OSError` if the file cannot be read; other
        `SMCPError`s.
        """
        return await self._flows.ask.transfers.put_file(computer, path, name, office, on_progress)

    async def put_bytes(
        self,
        computer: str,
        content: bytes,
        name: str | None = None,
        on_progress: OnProgress | None = None,
        *,
        office: str | None = None,
    ) -> str:
        """As `put_file`, for bytes in memory."""
        return await self._flows.ask.transfers.put_bytes(computer, content, name, office, on_progress)

    async def read_blob(
        self, computer: str, handle: str, on_progress: OnProgress | None = None, *, office: str | None = None
    ) -> bytes:
        """Fetch the content of a blob handle, and check its hash. After a lost connection it goes on where it was.

        Results of tools are complete already. Raises `BlobNotAccessible` if the handle has ended, `AnswerTooLarge` for
        more than `max_result` bytes, and other `SMCPError`s.
        """
        return await self._flows.ask.transfers.read(computer, handle, office, on_progress)

    async def save_blob(
        self,
        computer: str,
        handle: str,
        path: AnyPath,
        on_progress: OnProgress | None = None,
        *,
        office: str | None = None,
    ) -> Path:
        """As `read_blob`, into a file, which is replaced when the content is complete. Raises `OSError`, too."""
        return await self._flows.ask.transfers.save(computer, handle, path, office, on_progress)


class TransferMethods(ABC):
    """The methods of `AsyncTransferMethods`, blocking. `on_progress` is called in threads."""

    _flows: Flows

    @abstractmethod
    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result: ...

    def put_file(
        self,
        computer: str,
        path: AnyPath,
        name: str | None = None,
        on_progress: OnProgress | None = None,
        *,
        office: str | None = None,
    ) -> str:
        return self._wait(self._flows.ask.transfers.put_file(computer, path, name, office, on_progress))

    def put_bytes(
        self,
        computer: str,
        content: bytes,
        name: str | None = None,
        on_progress: OnProgress | None = None,
        *,
        office: str | None = None,
    ) -> str:
        return self._wait(self._flows.ask.transfers.put_bytes(computer, content, name, office, on_progress))

    def read_blob(
        self, computer: str, handle: str, on_progress: OnProgress | None = None, *, office: str | None = None
    ) -> bytes:
        return self._wait(self._flows.ask.transfers.read(computer, handle, office, on_progress))

    def save_blob(
        self,
        computer: str,
        handle: str,
        path: AnyPath,
        on_progress: OnProgress | None = None,
        *,
        office: str | None = None,
    ) -> Path:
        return self._wait(self._flows.ask.transfers.save(computer, handle, path, office, on_progress))
