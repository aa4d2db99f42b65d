"""What MCP's conformance suite tests: a Computer that hosts the suite's server, signs in and calls its tools.

The suite starts a server, and then this program with the server's URL as its argument. `MCP_CONFORMANCE_SCENARIO` names
the scenario, `MCP_CONFORMANCE_CONTEXT` has its data as JSON. The package with `[all]` is all that it needs:

    conformance client --command "python client.py" --requirements 2026-07-28
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import cycle
from pathlib import Path
from typing import IO, Any
from urllib.request import ProxyHandler, build_opener

import a2c_smcp.computer as a2c  # imports its parts on first use, so a program that waits for its turn costs little

SERVER = "suite"
CALL_LIMIT = 20  # seconds
CLIENT_METADATA = "https://conformance-test.local/client-metadata.json"

Context = dict[str, Any]
Calls = Iterator[tuple[str, dict[str, Any]]]


# What scenarios need beyond the usual

SIGN_IN: dict[str, Callable[[Context], dict[str, Any]]] = {
    "auth/pre-registration": lambda context: {
        "client_id": context["client_id"],
        "client_secret": context["client_secret"],
    },
    "auth/client-credentials-basic": lambda context: {
        "grant": "client_credentials",
        "client_id": context["client_id"],
        "client_secret": context["client_secret"],
    },
    "auth/client-credentials-jwt": lambda context: {
        "grant": "client_credentials",
        "client_id": context["client_id"],
        "private_key": context["private_key_pem"],
        "signing_algorithm": context.get("signing_algorithm", "ES256"),
    },
}
"""How to sign in; by default with a document that describes the client, or by registration."""


def calls_from_context(tools: dict[str, Any], context: Context) -> Calls:
    for call in context["toolCalls"]:
        yield call["name"], call["arguments"]


def echo_of_a_schema(tools: dict[str, Any], context: Context) -> Calls:
    yield "json_schema_echo", {"schema": tools["json_schema_2020_12_tool"]["params_schema"]}


def each_tool_once(tools: dict[str, Any], context: Context) -> Calls:
    for name, tool in tools.items():
        yield name, filled_in(tool["params_schema"])


CALLS: dict[str, Callable[[dict[str, Any], Context], Calls]] = {
    "http-custom-headers": calls_from_context,
    "json-schema-2020-12-preservation": echo_of_a_schema,
}
"""Which tools are called; by default each once."""


# The usual

SAMPLES: dict[str, Any] = {"string": "text", "integer": 3, "number": 4.5, "boolean": True, "array": [], "object": {}}


def filled_in(schema: dict[str, Any]) -> dict[str, Any]:
    """Values for the fields of a schema: their defaults, or samples for those that are required."""
    fields, required = schema.get("properties", {}), schema.get("required", ())
    defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
    return {name: SAMPLES.get(fields.get(name, {}).get("type"), "text") for name in required} | defaults


async def answer(question: Any) -> Any:
    """A person who accepts a form as it is shown."""
    from a2c_smcp.protocol.questions import Answer

    return Answer("accept", filled_in(dict(question.schema)) if question.mode == "form" else None)


async def browse(url: str) -> None:
    """A browser whose user agrees to everything: the provider redirects it to the computer."""
    await asyncio.to_thread(build_opener(ProxyHandler({})).open, url, timeout=CALL_LIMIT)


def entry(url: str, auth: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": SERVER,
        "type": "streamable",
        "server_parameters": {"url": url, "auth": auth},
        "default_tool_meta": {"auto_apply": True},
    }


async def sign_in(computer: a2c.Computer, url: str, auth: dict[str, Any]) -> None:
    """Sign in as an owner does: a refusal says which authorization server of this machine `auth` has to name."""
    for _ in range(3):
        try:
            await computer.sign_in(SERVER)
        except a2c.SignInFailed as failure:
            print(failure.reason)
            named = re.search('"issuer": "([^"]+)"', failure.reason)
        else:
            return
        await computer.put_server(entry(url, {**auth, "issuer": named[1]} if named else {}))
        await computer.start()
        if computer.status()[SERVER].state == "ready":
            return


async def run(url: str, scenario: str, context: Context, folder: Path) -> None:
    """Sign in where that is needed, and again when a tool needs more."""
    computer = a2c.Computer("conformance", open_url=browse, on_question=answer, state_folder=folder)
    auth = SIGN_IN.get(scenario, lambda _: {"client_metadata_url": CLIENT_METADATA})(context)
    computer.add_server(entry(url, {}))
    async with computer:
        await computer.start()
        for _ in range(2):  # it may accept a token at first, and name another authorization server then
            if computer.status()[SERVER].state == "auth_required":
                await sign_in(computer, url, auth)
        status = computer.status()[SERVER]
        if status.state != "ready":
            sys.exit(f"the server is {status.state}: {status.reason}")
        tools = {tool["name"]: tool for tool in computer.get_tools()}
        calls = CALLS.get(scenario, each_tool_once)(tools, context)
        for number, (name, arguments) in enumerate(calls):
            for attempt in range(3):
                caller = a2c.Caller("office", "agent")
                result = await computer.execute_tool(caller, f"{number}.{attempt}", name, arguments, CALL_LIMIT)
                if result.get("_meta", {}).get("error_code") not in (4006, 4007):
                    break
                await sign_in(computer, url, auth)
            print(name, json.dumps(result, ensure_ascii=False))


def turn() -> IO[str] | None:
    """Wait until fewer of these programs run than the machine has cores: the suite starts all scenarios at once.

    The turn lasts until the file that is returned is closed.
    """
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        return None
    places = [f"a2c-conformance-{os.getuid()}-{number}" for number in range(os.cpu_count() or 1)]
    for place in cycle(places):
        file = Path(tempfile.gettempdir(), place).open("a", encoding="utf-8")  # noqa: SIM115  # the caller closes it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            time.sleep(0.02)
        else:
            return file
    return None


def main() -> None:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    gc.disable()  # so short a run leaves no garbage that matters, and looking for it takes a tenth of the time
    os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"  # tokens go to the folder, and end with it
    with turn() or nullcontext(), tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(sys.argv[1], scenario, context, Path(folder)))


if __name__ == "__main__":
    main()
