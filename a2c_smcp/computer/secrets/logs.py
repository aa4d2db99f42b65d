"""Log records without secrets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from a2c_smcp.computer.secrets.mask import Mask

__all__ = ["MaskFilter", "masked_logs"]

_PLAIN = logging.Formatter()
_MERGED = ("msg", "args", "exc_info", "exc_text")
_SPEAKERS = ("a2c_smcp", "aiohttp", "anyio", "asyncio", "engineio", "httpcore2", "httpx2", "mcp", "socketio")


@contextmanager
def masked_logs(mask: Mask) -> Iterator[None]:
    """Masks what we and the libraries that see secrets log meanwhile, whoever handles it."""
    known = logging.getLogger().manager.loggerDict
    speakers = [logging.getLogger(name) for name in [*_SPEAKERS, *known] if name.partition(".")[0] in _SPEAKERS]
    hiding = MaskFilter(mask)
    for speaker in speakers:
        speaker.addFilter(hiding)
    try:
        yield
    finally:
        for speaker in speakers:
            speaker.removeFilter(hiding)


class MaskFilter(logging.Filter):
    """Masks every record that passes, for this handler and all that come after it.

    A record without secrets is not touched. In one with secrets the arguments are merged into the message, and its
    traceback becomes text (`exc_text`), which formatters print in place of the exception.
    """

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self._mask = mask

    def filter(self, record: logging.LogRecord) -> bool:
        message = _message(record)
        traceback = _traceback(record)
        if self._hides(message) or self._hides(repr(record.args)):
            record.msg, record.args = self._mask.text(message), None
        if self._hides(traceback):
            record.exc_info, record.exc_text = None, self._mask.text(traceback)
        for name, value in list(vars(record).items()):
            if name not in _MERGED and isinstance(value, str | list | tuple | dict):
                self._mask_attribute(record, name, value)
        return True

    def _mask_attribute(self, record: logging.LogRecord, name: str, value: object) -> None:
        text = value if isinstance(value, str) else repr(value)
        if self._hides(text):
            setattr(record, name, self._mask.text(text))

    def _hides(self, text: str) -> bool:
        return self._mask.text(text) is not text


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # of which logging would print message and arguments, whatever they contain
        record.msg, record.args = f"{record.msg} (its arguments do not fit)", None
        return str(record.msg)


def _traceback(record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[0] is not None:
        return _PLAIN.formatException(record.exc_info)
    return record.exc_text or ""
