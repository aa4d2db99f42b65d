"""Everything that a sign-in makes secret is searched for in everything that leaves the computer, and not found."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from a2c_smcp.computer import SignInFailed
from tests.sign_in.conftest import Scene, call

pytestmark = pytest.mark.covers("9-sign-in-secrets")

OTHERS = ("uvicorn", "starlette", "python_multipart", "sse_starlette", "mcp.server")
"""Loggers of the servers, which run in the same process."""


def logged(caplog: pytest.LogCaptureFixture) -> str:
    lines = logging.Formatter("%(name)s %(message)s")
    return "\n".join(lines.format(record) for record in caplog.records if not record.name.startswith(OTHERS))


def files_in(folder: Path) -> dict[Path, str]:
    return {path: path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file()}


def found(secrets: set[str], text: str) -> list[str]:
    assert len(secrets) > 5
    return [secret for secret in secrets if secret in text]


async def test_a_server_that_repeats_its_token_is_masked(scene: Scene) -> None:
    computer = await scene.meet()
    for _ in range(2):
        said = json.dumps(await call(computer, "tell_headers"))
        assert "Bearer ***" in said
        assert not found(scene.provider.secrets(), said)
        scene.provider.expire()


async def test_nothing_of_a_sign_in_is_in_logs_answers_errors_and_representations(
    scene: Scene, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    states: list[str] = []
    computer = await scene.meet(on_state=lambda *said: states.append(str(said)))
    said = [json.dumps(await call(computer, "add", a=1, b=2)), json.dumps(await call(computer, "write", text="x"))]
    scene.provider.expire()
    said.append(json.dumps(await call(computer, "tell_headers")))
    scene.provider.says_iss = "https://elsewhere.example"
    with pytest.raises(SignInFailed) as caught:
        await computer.sign_in("files")
    said += [str(caught.value), repr(caught.value), repr(caught.value.__context__)]
    scene.provider.says_iss = None
    scene.provider.revoke_all()
    scene.provider.person = "refuses"
    said.append(json.dumps(await call(computer, "add", a=1, b=2)))
    said += [str(computer.status()), str(computer.get_config()), str(computer.get_tools()), str(list(computer.history))]
    host = computer.owner.host
    said += [repr(host.sign_ins.known("files")), repr(vars(host.sign_ins.known("files"))), *states]
    await computer.sign_out("files")
    captured = capfd.readouterr()
    secrets = scene.provider.secrets()
    assert not found(secrets, "\n".join(said))
    assert not found(secrets, logged(caplog))
    assert not found(secrets, captured.out + captured.err)


async def test_what_a_provider_says_beside_a_refusal_is_not_repeated(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK quotes the body of a failed request in its error."""
    caplog.set_level(logging.DEBUG)
    scene.provider.repeats = True
    computer = await scene.meet()
    with pytest.raises(SignInFailed) as caught:
        await computer.sign_in("files")
    said = "\n".join([str(caught.value), computer.status()["files"].reason, logged(caplog)])
    assert "Token exchange failed (400)" in said
    assert "you sent" not in said
    assert not found(scene.provider.secrets(), said)


async def test_files_of_the_computer_hold_tokens_in_one_place_only(scene: Scene, tmp_path: Path) -> None:
    computer = await scene.meet()
    files = files_in(tmp_path)
    holding = {path.suffix for path, text in files.items() if found(scene.provider.secrets(), text)}
    assert holding == {".tokens"}
    codes = {value for form in scene.provider.seen("token") for name, value in form.items() if "code" in name}
    assert codes
    assert not any(code in text for code in codes for text in files.values())
    await computer.sign_out("files")
    assert not any(found(scene.provider.secrets(), text) for text in files_in(tmp_path).values())
