"""Which tool calls were begun, so that none runs twice for one key, also across a crash (WIRE §5).

A key (office, agent, req_id) is unknown, *begun* or *ended*. `begin` is called after the owner's approval, directly
before the request is written to the MCP server, and returns only when the line is in the file: whatever the server may
have seen is in the journal. The kernel has the line then, and keeps it when this process is killed; there is no fsync,
so a crash of the whole machine may lose it. `end` is called when the outcome is known. If the process dies in between,
the key stays begun: the tool may have run, and nobody can tell (outcome `unknown`). A call that ended without a result,
because it was cancelled or timed out, is ended and `unknown` as well; only a result makes it `done`.

Without a file the journal lasts as long as the process. With one that cannot be locked, read or written no call may
begin (`JournalFailed`). That is tried again with every call, so it is over as soon as its cause is.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from a2c_smcp.computer.calls.journal_file import DIGEST_SIZE, JournalFailed, JournalFile, Record
from a2c_smcp.computer.instance import default_folder
from a2c_smcp.errors import Outcome, RateLimited
from a2c_smcp.protocol.codec import MAX_TIMEOUT

__all__ = ["Journal", "JournalFailed", "Key", "journal_of"]

Key = tuple[str, str, str]
"""Office, agent, req_id."""

_KEEP = MAX_TIMEOUT + 3600.0
_MOST = 100_000


class Journal:
    """`keep` is in seconds from the beginning of a call, `most` a number of calls: ended ones make room for others."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        keep: float = _KEEP,
        most: int = _MOST,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = JournalFile(path) if path else None
        self._keep = keep
        self._most = most
        self._clock = clock
        self._begun: dict[bytes, Record] = {}
        self._ended: dict[bytes, Record] = {}

    def find(self, key: Key) -> Record | None:
        """The call that was begun under this key. Raises `JournalFailed` where that cannot be known."""
        self._open()
        self._forget_old()
        digest = _digest(key)
        return self._begun.get(digest) or self._ended.get(digest)

    def begin(self, key: Key, call: bytes) -> None:
        """Raises `RateLimited` or `JournalFailed`; then nothing may run. `call` is a digest of what is called."""
        self._open()
        if len(self._begun) + len(self._ended) >= self._most:
            self._make_room()
        record = Record.of(_digest(key), call, self._clock())
        if self._file:
            self._file.append(record.line)
        self._begun[record.key] = record

    def end(self, key: Key, outcome: Outcome) -> None:
        """Where that cannot be written any more the call stays begun in the file, and its outcome `unknown`."""
        if (record := self._begun.pop(_digest(key), None)) is None:
            return
        record.outcome = outcome
        self._ended[record.key] = record
        if self._file and self._file.is_open:
            with suppress(JournalFailed):
                self._file.append(record.mark)
                self._file.compact(self._begun, self._ended)

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _open(self) -> None:
        """Takes over what an earlier process has left. The file is rewritten: its last line may be torn."""
        if self._file is None or self._file.is_open:
            return
        records = self._file.read()
        self._begun = {key: record for key, record in records.items() if record.outcome is None}
        self._ended = {key: record for key, record in records.items() if record.outcome is not None}
        self._forget_old()
        while self._ended and len(self._begun) + len(self._ended) > self._most:
            self._make_room()
        self._file.rewrite(self._begun, self._ended)

    def _make_room(self) -> None:
        if not self._ended:
            raise RateLimited(f"{self._most} calls were begun and have not ended")
        del self._ended[next(iter(self._ended))]

    def _forget_old(self) -> None:
        oldest = self._clock() - self._keep
        for records in (self._begun, self._ended):
            while records and next(iter(records.values())).at < oldest:
                del records[next(iter(records))]


@contextmanager
def journal_of(name: str, url: str, office: str, folder: Path | None = None) -> Iterator[Journal]:
    """The journal of this computer in this office of this Server, in a file beside its instance.

    Two processes never share one: the second may begin calls when the first has ended.
    """
    digest = hashlib.sha256(f"{url}\0{name}\0{office}".encode()).hexdigest()[:32]
    journal = Journal((folder or default_folder()) / "instances" / f"{digest}.calls")
    try:
        with suppress(JournalFailed):  # the owner is told at once, the agent with each call
            journal.find(("", "", ""))
        yield journal
    finally:
        journal.close()


def _digest(key: Key) -> bytes:
    return hashlib.blake2b("\0".join(key).encode(errors="surrogatepass"), digest_size=DIGEST_SIZE).digest()
