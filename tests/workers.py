"""Runs the tests in several processes: `pytest --workers N` (a plugin of `conftest.py`).

The tests are imported and collected once, which takes seconds, and then the processes are forked: each has them all in
memory. Every worker begins with its own stretch of the list, so that what is started once per module is started once.
A worker that has finished its stretch takes over about half of the longest one that is left: the modules at its end.

A worker and the main process talk over a pipe. The main process sends indices into the list of tests, and None at the
end. A worker always knows the test after the one it runs, because pytest then ends only those fixtures which the next
test does not need. After each test it sends a list of `(kind, content)`: each `report` of pytest, and each `warning`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryFile
from typing import Any, NoReturn

import pytest

from tests.program import start_fork_server

__all__ = ["Workers", "number_of_workers"]

_PER_CORE = 3  # tests wait more than they compute
_MOST = 16
_PATIENCE = 60.0
"""How long the fixtures of a worker may take to end when the run was interrupted."""


def number_of_workers(wanted: str) -> int:
    """`--workers`: a number, or `auto`."""
    return min(_PER_CORE * (os.cpu_count() or 1), _MOST) if wanted == "auto" else int(wanted)


class Workers:
    """The plugin of the main process, which runs no test itself."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._workers: list[_Worker] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """While the tests are collected, the server that starts the programs of all workers imports."""
        if not session.config.option.collectonly and not session.config.option.fast:
            start_fork_server()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or len(session.items) < 2:
            return None
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{session.testsfailed} error(s) during collection")
        try:
            self._run(session)
        finally:
            for worker in self._workers:
                worker.end()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _run(self, session: pytest.Session) -> None:
        if reporter := session.config.pluginmanager.getplugin("terminalreporter"):
            reporter.showfspath = False  # tests of many files end by turns: only dots are shown
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # the folder of all workers
        count = min(self._number, len(session.items))
        bounds = [len(session.items) * n // count for n in range(count + 1)]
        for number in range(count):
            self._start(session, f"w{number}", deque(range(bounds[number], bounds[number + 1])))
        while self._workers:
            ready = wait([worker.connection for worker in self._workers])
            for worker in [each for each in self._workers if each.connection in ready]:
                self._hear(session, worker)

    def _start(self, session: pytest.Session, name: str, waiting: deque[int]) -> None:
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            for other in (ours, *(worker.connection for worker in self._workers)):
                other.close()
            _work(session, name, theirs)
        theirs.close()
        worker = _Worker(name, pid, ours, waiting)
        self._workers.append(worker)
        for _ in range(2):
            self._give(session, worker)

    def _give(self, session: pytest.Session, worker: _Worker) -> None:
        if session.shouldfail or session.shouldstop:
            worker.give(None)
            return
        if not worker.waiting:
            longest = max((each.waiting for each in self._workers), key=len)
            worker.waiting.extend(longest.pop() for _ in range(len(longest) - _cut(session, [*longest])))
            worker.waiting.reverse()
        worker.give(worker.waiting.popleft() if worker.waiting else None)

    def _hear(self, session: pytest.Session, worker: _Worker) -> None:
        try:
            told = worker.connection.recv()
        except (EOFError, OSError):  # also in the middle of a message
            self._ended(session, worker)
            return
        for kind, content in told:
            if kind == "warning":
                session.config.hook.pytest_warning_recorded.call_historic(kwargs=content)
            else:
                _show(session.config, content)
        worker.given.popleft()
        self._give(session, worker)

    def _ended(self, session: pytest.Session, worker: _Worker) -> None:
        """As it should, or in the middle of a test, which has failed then: another worker goes on behind it."""
        self._workers.remove(worker)
        code = worker.end()
        if not worker.given:
            return
        item = session.items[worker.given.popleft()]
        said = f"the process {worker.name} ended with the exit code {code} while it ran this test"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call")
        session.config.hook.pytest_runtest_logreport(report=report)
        self._start(session, f"{worker.name}+", deque([*worker.given, *worker.waiting]))


def _cut(session: pytest.Session, waiting: list[int]) -> int:
    """Where these tests are divided: between two modules if there are several, as near to the middle as possible."""
    modules = [session.items[index].path for index in waiting]
    middle = len(waiting) // 2
    between = [place for place in range(1, len(waiting)) if modules[place] != modules[place - 1]]
    return min(between, key=lambda place: abs(place - middle), default=middle)


def _show(config: pytest.Config, content: dict[str, Any]) -> None:
    report = config.hook.pytest_report_from_serializable(config=config, data=content)
    if report.when == "setup":
        config.hook.pytest_runtest_logstart(nodeid=report.nodeid, location=report.location)
    config.hook.pytest_runtest_logreport(report=report)
    if report.when == "teardown":
        config.hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)


class _Worker:
    """A worker as the main process knows it: `given` is sent and not done, `waiting` is to be sent."""

    def __init__(self, name: str, pid: int, connection: Connection, waiting: deque[int]) -> None:
        self.name = name
        self.connection = connection
        self.waiting = waiting
        self.given: deque[int] = deque()
        self._pid = pid

    def give(self, index: int | None) -> None:
        if index is not None:
            self.given.append(index)
        with suppress(ConnectionError):  # it has ended, which is seen when its connection is read
            self.connection.send(index)

    def end(self) -> int:
        """Its exit code. It ends its fixtures first, within a time."""
        self.connection.close()
        killed = threading.Timer(_PATIENCE, os.kill, (self._pid, signal.SIGKILL))
        killed.start()
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        finally:
            killed.cancel()


def _work(session: pytest.Session, name: str, connection: Connection) -> NoReturn:
    """What a forked process does. It ends as Python would, but leaves its memory to the system, which is quick."""
    code = 1
    try:
        _run_tests(session, connection, _prepare(session.config, name))
        code = 0
    except (EOFError, ConnectionError, KeyboardInterrupt):
        session._setupstate.teardown_exact(None)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        os._exit(code)


def _prepare(config: pytest.Config, name: str) -> _Reports:
    """Own captured output and own folder of temporary files; reports are gathered for the main process."""
    plugins = config.pluginmanager
    plugins.unregister(name="terminalreporter")
    if config.option.capture == "fd":
        _capture_apart(plugins.getplugin("capturemanager"))
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / name
    factory._basetemp.mkdir()
    reports = _Reports(config)
    plugins.register(reports)
    reports.gathered.clear()  # when it is registered, it is told of all warnings before the fork again
    return reports


def _capture_apart(capture: Any) -> None:
    """Put an own file behind the streams of this process. They stay the same: modules may have kept them."""
    capture.suspend_global_capture(in_=True)
    for stream in (capture._global_capturing.out, capture._global_capturing.err):
        with TemporaryFile(buffering=0) as own:
            os.dup2(own.fileno(), stream.tmpfile.fileno())
    capture.resume_global_capture()


class _Reports:
    """The plugin of a worker that gathers what the main process shall show."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.gathered: list[tuple[str, dict[str, Any]]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.gathered.append(("report", data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        """As text: a warning may hold what cannot be sent."""
        said = UserWarning(f"{warning_message.category.__name__}: {warning_message.message}")
        message = warnings.WarningMessage(said, UserWarning, warning_message.filename, warning_message.lineno)
        content = {"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
        self.gathered.append(("warning", content))


def _run_tests(session: pytest.Session, connection: Connection, reports: _Reports) -> None:
    item = connection.recv()
    while item is not None:
        following = connection.recv()
        session.config.hook.pytest_runtest_protocol(
            item=session.items[item], nextitem=None if following is None else session.items[following]
        )
        connection.send(reports.gathered)
        reports.gathered.clear()
        item = following
