"""`a2c-smcp service` where systemd runs: started at boot, after a crash and after an update."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.booted.conftest import TIME, Machine
from tests.computer.supervised import SERVERS
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.covers("service")]

OF_ANN = ("--user", "--machine=ann@")
INSTALLS = [*("-m", "pip", "install", "--force-reinstall"), *("--no-deps", "--no-build-isolation", "--no-index")]


def shown(machine: Machine, what: str, unit: str, *where: str) -> str:
    """A property of a unit, as systemd says it."""
    return machine.run("systemctl", *where, "show", "--value", f"--property={what}", unit).stdout.strip()


def processes(machine: Machine) -> list[str]:
    """Ids of the MCP server."""
    return machine.run("pgrep", "-f", SERVERS / "good.py").stdout.split()


async def test_a_service_of_a_user_runs_after_a_crash_an_update_and_a_boot(machine: Machine) -> None:
    config = json.dumps({"servers": {"good": {"command": sys.executable, "args": [str(SERVERS / "good.py")]}}})
    assert machine.run("sh", "-c", 'echo "$1" > a2c.json', "sh", config, user="ann").returncode == 0
    # The user signs in, for the first time: what lets a service run before that is up to `install`.
    assert machine.run("systemctl", "start", f"user@{machine.number('ann')}").returncode == 0
    assert "runs, and is started again at boot" in machine.a2c("service", "install", "--yes", "up", "--port", "7100")

    async def is_ready(times: int) -> None:
        await until(lambda: machine.a2c("service", "logs", "up").count("good: ready") == times, TIME)

    await is_ready(1)
    assert "active (running)" in machine.a2c("service", "status")
    before = processes(machine)
    machine.run("kill", "-KILL", shown(machine, "MainPID", "a2c-smcp-up", *OF_ANN))
    await is_ready(2)
    assert shown(machine, "NRestarts", "a2c-smcp-up", *OF_ANN) == "1"
    assert len(processes(machine)) == 1
    assert processes(machine) != before

    updated = machine.run(sys.executable, *INSTALLS, Path(__file__).parents[2])
    assert updated.returncode == 0, updated
    machine.a2c("service", "restart", "up")
    await is_ready(3)
    assert machine.run("journalctl", "--rotate").returncode == 0

    machine.shut_down()
    await machine.boot()
    await is_ready(4)
    assert "a2c-smcp-up is started by" in machine.a2c("doctor", fails=True)

    machine.a2c("service", "remove", "up")
    assert processes(machine) == []
    assert shown(machine, "LoadState", "a2c-smcp-up", *OF_ANN) == "not-found"


async def test_a_service_whose_options_are_wrong_is_not_started_again(machine: Machine) -> None:
    machine.a2c("service", "install", "--yes", "computer", "--url", "http://127.0.0.1:1", "--config", "missing.json")
    await until(lambda: shown(machine, "ActiveState", "a2c-smcp-computer", *OF_ANN) == "failed", TIME)
    assert shown(machine, "ExecMainStatus", "a2c-smcp-computer", *OF_ANN) == "2"
    assert shown(machine, "NRestarts", "a2c-smcp-computer", *OF_ANN) == "0"
    assert "missing.json" in machine.a2c("service", "logs", "computer")
    machine.a2c("service", "remove", "computer")


async def test_a_server_of_the_system_runs_as_the_user_who_called_sudo(machine: Machine) -> None:
    machine.a2c("key", "--principal", "ann", "--add-to", "keys.json")
    words = ["server", "--port", "7200", "--keys-file", "/home/ann/keys.json"]
    machine.a2c("service", "install", "--yes", "--system", *words, user="", SUDO_USER="ann")

    async def listens(times: int) -> None:
        def said() -> str:
            return machine.a2c("service", "logs", "--system", "server", user="", SUDO_USER="ann")

        await until(lambda: said().count("listening on") == times, TIME)

    await listens(1)
    main = shown(machine, "MainPID", "a2c-smcp-server")
    assert machine.run("ps", "-o", "user=", "-p", main).stdout.strip() == "ann"
    machine.run("kill", "-KILL", main)
    await listens(2)
    machine.shut_down()
    await machine.boot()
    await listens(3)
    assert "active (running)" in machine.a2c("service", "status", "--system", user="", SUDO_USER="ann")
    machine.a2c("service", "remove", "--system", user="", SUDO_USER="ann")
    assert shown(machine, "LoadState", "a2c-smcp-server") == "not-found"
