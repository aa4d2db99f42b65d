"""The thread that gives spans to exporters. To end a span is to append it to a queue, so that no call waits for it."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from threading import Event, Lock, Thread

from opentelemetry.context import attach, set_value
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter

from a2c_smcp.telemetry.own_spans import Exportable

__all__ = ["SpanWriter"]

logger = logging.getLogger(__name__)

_PAUSE = 1.0
_LAST = 30.0  # seconds that the last spans have
_MOST = 16 * 1024
_AT_ONCE = 128  # few, because other threads wait meanwhile


class SpanWriter(SpanProcessor):
    """Exports spans once a second, and the last ones at the end. While exporters are stuck, the oldest are dropped."""

    def __init__(self, exporters: Sequence[SpanExporter], provider: TracerProvider) -> None:
        self._exporters = exporters
        self._provider = provider
        self._waiting: deque[Exportable | ReadableSpan] = deque(maxlen=_MOST)
        self.add = self._waiting.append
        self._start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._restart)

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context and context.trace_flags.sampled:
            self.add(span)

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        self._write()
        return True

    def shutdown(self) -> None:
        self._is_over.set()
        self._thread.join(_LAST)
        for exporter in self._exporters:
            exporter.shutdown()

    def _start(self) -> None:
        self._is_over = Event()
        self._writing = Lock()
        self._thread = Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def _restart(self) -> None:
        """A child process has no thread yet. The spans that wait are those of its parent."""
        self._waiting.clear()
        self._start()

    def _run(self) -> None:
        attach(set_value("suppress_instrumentation", True))  # no spans of what an exporter does
        while not self._is_over.wait(_PAUSE):
            self._write()
        self._write()

    def _write(self) -> None:
        with self._writing:
            if len(self._waiting) == _MOST:
                logger.warning("spans are lost: more than %d wait to be exported", _MOST)
            while spans := self._taken():
                for exporter in self._exporters:
                    try:
                        exporter.export(spans)
                    except Exception:
                        logger.exception("spans are lost")

    def _taken(self) -> list[ReadableSpan]:
        """Some of those that wait; none if there are no more."""
        taken: list[ReadableSpan] = []
        while self._waiting and len(taken) < _AT_ONCE:
            span = self._waiting.popleft()
            found = span if isinstance(span, ReadableSpan) else span.readable(self._provider.resource)
            if found is not None:
                taken.append(found)
        return taken
