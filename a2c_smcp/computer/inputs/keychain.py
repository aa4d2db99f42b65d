"""The keyring of this machine, where it has one. A machine without is an empty keyring that keeps nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from a2c_smcp.loops import in_thread

__all__ = ["KEYRING_SERVICE", "Keychain", "backend"]

KEYRING_SERVICE = "a2c-smcp"
"""Under which service name values are kept; the user name is the id of the input."""

LIMIT = 15.0
"""How long the keyring may take, in seconds. It may be asking its owner to unlock it."""

logger = logging.getLogger(__name__)


class Keychain:
    """Secrets by input id. `None` and `False` stand for "there is none" and "was not kept"."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled

    async def get(self, id_: str) -> str | None:
        value = await self._ask(lambda keyring: keyring.get_password(KEYRING_SERVICE, id_))
        return value if isinstance(value, str) else None

    async def set(self, id_: str, value: str) -> bool:
        return await self._ask(lambda keyring: keyring.set_password(KEYRING_SERVICE, id_, value) or True) is True

    async def delete(self, id_: str) -> bool:
        return await self._ask(lambda keyring: keyring.delete_password(KEYRING_SERVICE, id_) or True) is True

    async def _ask(self, question: Callable[[Any], object]) -> object:
        if not self._enabled:
            return None
        try:
            async with asyncio.timeout(LIMIT):
                return await in_thread(_answer, question)
        except TimeoutError:
            self._enabled = False
            logger.warning("the keyring did not answer within %g s and is left alone from now on", LIMIT)
            return None


def backend() -> str | None:
    """What keeps secrets on this machine, such as `keyring.backends.macOS.Keyring`; `None` where nothing does."""
    found = _answer(lambda keyring: keyring.get_keyring())
    is_usable = found is not None and getattr(found, "priority", 0) > 0
    return f"{type(found).__module__}.{type(found).__qualname__}" if is_usable else None


def _answer(question: Callable[[Any], object]) -> object:
    """Loading the keyring takes a while, so that happens here, in the thread."""
    try:
        import keyring
        from keyring.errors import NoKeyringError, PasswordDeleteError
    except ImportError:
        return None
    try:
        return question(keyring)
    except (NoKeyringError, PasswordDeleteError):
        return None
    except Exception as error:  # backends are plug-ins, and raise what they like
        logger.warning("the keyring failed with %s, continuing without it", type(error).__qualname__)
        return None
