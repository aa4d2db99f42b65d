"""Runs VRL scripts in a worker process (`worker_program`), so it imports nothing of this package.

A request is JSON: `[source, event]` to run a script, `[source]` to compile it only. An answer is the line `ok` and the
event as JSON, or the line `failed` and the reason.
"""

from __future__ import annotations

import json
from typing import Any

from vrl_python import VRLRuntime

MEMORY = 64 * 1024 * 1024

_runtimes: dict[str, Any] = {}


def answer(request: bytes) -> bytes:
    source, *events = json.loads(request)
    try:
        if source not in _runtimes:
            compiled = VRLRuntime()
            compiled.compile(source)
            _runtimes[source] = compiled
        outcome = [_runtimes[source].execute(source, event).processed_event for event in events]
        text = "ok\n" + json.dumps(outcome[0] if outcome else None, ensure_ascii=False, allow_nan=False)
    except BaseException as error:  # a panic in native code is not an Exception
        text = f"failed\n{error}"
    return text.encode("utf-8", "replace")
