"""The machine that numbers are from, and its cores: one for what is measured, the others for who asks."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

__all__ = ["machine", "measured_core", "pin", "pin_generator"]


def machine() -> dict[str, Any]:
    """What a reader needs to compare: cores, processor, system, Python."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "Python": platform.python_version(),
    }


def measured_core() -> int | None:
    """The core of whoever is measured: the last one; `None` where there is one core only, or no choice."""
    cores = _cores()
    return cores[-1] if len(cores) > 1 else None


def pin(thread: int, core: int) -> None:
    """Keeps a thread, and those that it starts from now on, on one core."""
    os.sched_setaffinity(thread, {core})


def pin_generator() -> None:
    """Keeps this process off the core of whoever is measured."""
    if (core := measured_core()) is not None:
        os.sched_setaffinity(0, set(_cores()) - {core})


_AT_START = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _cores() -> list[int]:
    """Those that this process may use, before it was pinned itself."""
    return _AT_START


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
