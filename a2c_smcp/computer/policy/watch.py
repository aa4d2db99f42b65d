"""Watches a policy file, and applies its changes: those that loosen it after the owner's yes (`changes.py`).

A file that is wrong, or gone, changes nothing: the policy that was in force stays. As for the configuration, what is
applied after a yes is what the owner was shown, and a change without a yes is kept, so that the next start of the
program asks about it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.watch import Consent, RefusedChanges
from a2c_smcp.computer.file_stamps import Stamp, stamp
from a2c_smcp.computer.policy.changes import loosened
from a2c_smcp.computer.policy.rules import AccessPolicy
from a2c_smcp.errors import ConfigError
from a2c_smcp.loops import cancel_and_wait

__all__ = ["ReadPolicy", "watch_policy"]

logger = logging.getLogger(__name__)

_INTERVAL = 1.0

ReadPolicy = Callable[[], AccessPolicy]
"""Reads the file. Raises `ConfigError`."""


async def watch_policy(
    computer: Computer,
    path: Path,
    read: ReadPolicy,
    on_fault: Callable[[str], None],
    consent: Consent | None = None,
    refused: RefusedChanges[AccessPolicy] | None = None,
    interval: float = _INTERVAL,
) -> None:
    """Apply changes of the file until cancelled. `on_fault` is told why a change is not taken."""
    changes = _PolicyChanges(computer, on_fault, consent, refused)
    seen: Stamp | None = None  # the file is read first of all: it may have changed since the start
    try:
        while True:
            await asyncio.sleep(interval)
            if (now := stamp(path)) == seen:
                continue
            seen = now
            try:
                changes.consider(read())
            except ConfigError as error:
                on_fault(f"the policy is not taken, and the one before stays in force: {error.message}")
    finally:
        await changes.close()
        if stamp(path) != seen:
            with suppress(ConfigError):
                changes.keep_for_next_start(read())


class _PolicyChanges:
    """Applies changes to a computer. There is one question at a time, in a task of its own."""

    def __init__(
        self,
        computer: Computer,
        on_fault: Callable[[str], None],
        consent: Consent | None,
        refused: RefusedChanges[AccessPolicy] | None,
    ) -> None:
        assert computer.gate
        self._computer, self._on_fault, self._consent, self._refused = computer, on_fault, consent, refused
        self._known = computer.gate.policy
        self._asking: asyncio.Task[None] | None = None

    def consider(self, after: AccessPolicy) -> None:
        """Apply the change, or ask for consent first."""
        if self._asking:
            self._asking.cancel()  # the file has changed again: the question is out of date
        lines = loosened(self._known, after)
        self._keep(after, lines)  # until there is a yes, even if this program is killed
        if not lines:
            self._apply(after)
        elif self._consent is None:
            logger.warning(
                "a change of the policy is not applied, since nobody can be asked: %s. "
                "Start again on a terminal, and say yes; --trust-changes applies such changes without asking",
                "; ".join(lines),
            )
        else:
            self._asking = asyncio.create_task(self._ask(self._consent, after, lines))

    async def _ask(self, consent: Consent, after: AccessPolicy, lines: list[str]) -> None:
        try:
            is_agreed = await consent(lines) is True
        except Exception:  # whatever goes wrong is no yes
            logger.exception("the owner could not be asked about a change of the policy")
            return
        if not is_agreed:
            logger.warning("a change of the policy was declined: %s", "; ".join(lines))
            return
        self._apply(after)
        self._keep(after, [])
        logger.warning("a change of the policy is applied: %s", "; ".join(lines))

    def _apply(self, after: AccessPolicy) -> None:
        if after != self._known:
            self._known = after
            self._computer.replace_rules(after)
            self._on_fault(f"the policy has changed: {after}")

    def keep_for_next_start(self, after: AccessPolicy) -> None:
        self._keep(after, loosened(self._known, after))

    def _keep(self, after: AccessPolicy, lines: list[str]) -> None:
        if self._refused is None:
            return
        if lines:
            self._refused.note(after, lines)
        else:
            self._refused.clear()

    async def close(self) -> None:
        if self._asking:
            await cancel_and_wait(self._asking)
