"""Masks secrets in log records."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from a2c_smcp.computer.secrets.mask import Mask

_PLAIN = logging.Formatter()
_MERGED = ("msg", "args", "exc_info", "exc_text")
_NAMES = ("name", "levelname", "pathname", "filename", "module", "funcName", "threadName", "processName", "taskName")
_SPEAKERS = ("a2c_smcp", "aiohttp", "anyio", "asyncio", "engineio", "httpcore2", "httpx2", "mcp", "socketio")


@contextmanager
def masked_logs(mask: Mask) -> Iterator[None]:
    """Inside the `with` block, mask the log records of this package and of libraries that see secrets."""
    cover = _Cover(MaskFilter(mask), logging.getLogRecordFactory())
    logging.setLogRecordFactory(cover)
    try:
        yield
    finally:
        cover.lift()


class _Cover:
    """A factory of log records that adds the filter to each logger that makes one, so that new loggers have it, too.

    Another program part may have put its own factory around this one; then it stays in place, without effect, after
    `lift`.
    """

    def __init__(self, hiding: MaskFilter, before: Callable[..., logging.LogRecord]) -> None:
        self._hiding = hiding
        self._before = before
        self._is_lifted = False
        self._speakers: set[logging.Logger] = set()
        self._lock = threading.RLock()

    def __call__(self, name: str, *record: Any, **more: Any) -> logging.LogRecord:
        if str(name).partition(".")[0] in _SPEAKERS:
            self._cover(logging.getLogger(name))
        return self._before(name, *record, **more)

    def _cover(self, speaker: logging.Logger) -> None:
        with self._lock:
            if not self._is_lifted:
                self._speakers.add(speaker)
                speaker.addFilter(self._hiding)

    def lift(self) -> None:
        with self._lock:
            self._is_lifted = True
            for speaker in self._speakers:
                speaker.removeFilter(self._hiding)
        factory = logging.getLogRecordFactory()
        while isinstance(factory, _Cover) and factory._is_lifted:
            factory = factory._before
        logging.setLogRecordFactory(factory)


class MaskFilter(logging.Filter):
    """Masks every record that passes, for this handler and all later ones.

    A record without secrets is not changed. In a record with secrets the arguments are merged into the message, and the
    traceback becomes text (`exc_text`), which formatters print instead of the exception.
    """

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self._mask = mask

    def filter(self, record: logging.LogRecord) -> bool:
        message = _message(record)
        traceback = _traceback(record)
        if self._hides(message) or self._hides(repr(record.args)):
            record.msg, record.args = self._mask.logged(message), None
        if self._hides(traceback):
            record.exc_info, record.exc_text = None, self._mask.logged(traceback)
        for name, value in list(vars(record).items()):
            if name not in _MERGED and isinstance(value, str | list | tuple | dict):
                text = value if isinstance(value, str) else repr(value)
                masked = self._mask.name(text) if name in _NAMES else self._mask.logged(text)
                if masked is not text:
                    setattr(record, name, masked)
        return True

    def _hides(self, text: str) -> bool:
        return self._mask.logged(text) is not text


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # logging would print message and arguments, including secrets
        record.msg, record.args = f"{record.msg} (the log arguments do not match the format string)", None
        return str(record.msg)


def _traceback(record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[0] is not None:
        return _PLAIN.formatException(record.exc_info)
    return record.exc_text or ""
