"""A Server with the operator's console, its members, and the pages of an operator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PROGRAM = Path(sys.executable).with_name("a2c-smcp")
ADMIN, CLIENT = "operator-0123456789", "client-key-0123456789"

MEMBERS = ExitStack()
"""Their connections, which are closed before the Server ends."""


class Member:
    """A client that speaks Socket.IO by hand."""

    def __init__(self, url: str, role: str, name: str, office: str) -> None:
        self.name = name
        address = f"{url.replace('http', 'ws')}/socket.io/?EIO=4&transport=websocket&a2c_version=0.4"
        self.socket: ClientConnection = MEMBERS.enter_context(connect(address))
        self.socket.recv()
        self.socket.send("40/smcp," + json.dumps({"token": CLIENT}))
        self.socket.recv()
        self.emit("server:join_office", role=role, name=name, office_id=office)
        self.socket.recv()

    def emit(self, event: str, number: int = 1, **payload: Any) -> None:
        self.socket.send(f"42/smcp,{number}" + json.dumps([event, payload]))

    def hears(self, words: str) -> str:
        while words not in (message := str(self.socket.recv())):
            if message == "2":
                self.socket.send("3")
        return message


class Server:
    """`a2c-smcp server --console`."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.keys = folder / "keys.json"
        self.keys.write_text("{}")
        env = {name: value for name, value in os.environ.items() if not name.startswith("A2C_")}
        env |= {"A2C_SERVER_ADMIN_KEY": ADMIN, "A2C_SERVER_API_KEY": CLIENT, "PYTHONUNBUFFERED": "1"}
        env["XDG_STATE_HOME"] = str(folder / "state")
        options = ["--port", "0", "--keys-file", str(self.keys), "--console", "--log-level", "error", *more]
        self.process = subprocess.Popen([PROGRAM, "server", *options], env=env, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.url = self.process.stdout.readline().split()[-1]
        console = next(line for line in self.process.stdout if line.startswith("console at "))
        self.console = console.split()[-1].rstrip("/")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stdout
        self.process.stdout.close()


def sign_in(page: Any, server: Server, key: str = ADMIN) -> None:
    page.goto(f"{server.console}/")
    page.fill("input[name=key]", key)
    page.click("button.main")
    page.wait_for_selector("#connection, main [role=alert]")


def opened(page: Any, server: Server, path: str) -> None:
    page.goto(f"{server.console}{path}")
    page.wait_for_selector("#connection[data-state=live]")
