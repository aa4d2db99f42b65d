"""The client that signs in: registered before, described by a document, signing in for itself; the field `auth`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from a2c_smcp.computer import SignInFailed
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.consent import weigh
from a2c_smcp.computer.configuration.files import Configuration
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.servers import parse_server
from tests.ports import free_port
from tests.sign_in.authorization_server import AuthorizationServer, Client
from tests.sign_in.conftest import Browser, call, text_of
from tests.sign_in.guarded_server import GuardedServer
from tests.sign_in.served import served

pytestmark = pytest.mark.covers("9-sign-in")

Meet = Callable[..., Any]
SECRET = "a-secret/with?odd=characters&"
DOCUMENT = "https://client.example/a2c.json"


def pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> tuple[str, str]:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return private, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


KEYS = {"EC": pem(ec.generate_private_key(ec.SECP256R1())), "RSA": pem(rsa.generate_private_key(65537, 2048))}


def state_of(computer: Computer) -> tuple[str, str]:
    status = computer.status()["files"]
    return status.state, status.reason


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", "none"])
@pytest.mark.parametrize("way_back", ["redirect_port", "redirect_uri"])
async def test_a_client_that_was_registered_before(
    guarded: GuardedServer, browser: Browser, meet: Meet, method: str, way_back: str
) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}/callback" if way_back == "redirect_port" else f"http://localhost:{port}/back/here"
    secret = None if method == "none" else SECRET
    guarded.provider.clients["mine"] = Client("mine", secret, method, [uri])
    auth: dict[str, Any] = {"client_id": "mine", way_back: port if way_back == "redirect_port" else uri}
    if secret:
        auth |= {"client_secret": secret, "token_endpoint_auth_method": method}
    computer = await meet(guarded.mcp_url, open_url=browser, auth=auth)
    assert state_of(computer) == ("ready", "")
    assert guarded.provider.seen("register") == []
    guarded.provider.expire()
    assert text_of(await call(computer, "add", a=1, b=2)) == "3"


async def test_a_client_that_a_document_describes(guarded: GuardedServer, browser: Browser, meet: Meet) -> None:
    guarded.provider.metadata["client_id_metadata_document_supported"] = True
    computer = await meet(guarded.mcp_url, open_url=browser, auth={"client_metadata_url": DOCUMENT})
    assert state_of(computer) == ("ready", "")
    assert parse_qs(urlsplit(browser.opened[0]).query)["client_id"] == [DOCUMENT]
    assert guarded.provider.seen("register") == []


async def test_a_provider_that_reads_no_documents_registers_the_client(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    computer = await meet(guarded.mcp_url, open_url=browser, auth={"client_metadata_url": DOCUMENT})
    assert state_of(computer) == ("ready", "")
    assert len(guarded.provider.seen("register")) == 1


async def test_a_provider_that_registers_nobody_is_told(guarded: GuardedServer, browser: Browser, meet: Meet) -> None:
    guarded.provider.registers = False
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert "Registration failed: 403" in state_of(computer)[1]
    assert browser.opened == []


async def test_configured_scopes_are_asked_for_beside_those_of_the_server(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    computer = await meet(guarded.mcp_url, open_url=browser, auth={"scopes": "files:write"})
    assert guarded.provider.seen("authorize")[0]["scope"] == "files:write basic"
    assert text_of(await call(computer, "write", text="x")) == "written: x"
    assert len(browser.opened) == 1


# A client that signs in for itself


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_a_client_signs_in_for_itself_with_a_secret(guarded: GuardedServer, meet: Meet, method: str) -> None:
    guarded.provider.clients["robot"] = Client("robot", SECRET, method)
    auth = {
        "grant": "client_credentials",
        "client_id": "robot",
        "client_secret": SECRET,
        "token_endpoint_auth_method": method,
    }
    computer = await meet(guarded.mcp_url, auth=auth)
    assert state_of(computer) == ("ready", "")
    guarded.provider.expire()
    assert text_of(await call(computer, "add", a=1, b=2)) == "3"
    assert text_of(await call(computer, "write", text="x")) == "written: x"
    assert guarded.provider.seen("authorize") == []


@pytest.mark.parametrize("kind", KEYS)
async def test_a_client_signs_in_for_itself_with_a_key(guarded: GuardedServer, meet: Meet, kind: str) -> None:
    private, public = KEYS[kind]
    guarded.provider.clients["robot"] = Client("robot", public_key=public)
    auth = {"grant": "client_credentials", "client_id": "robot", "private_key": private}
    computer = await meet(guarded.mcp_url, auth=auth)
    assert state_of(computer) == ("ready", "")
    assert text_of(await call(computer, "add", a=1, b=2)) == "3"


async def test_a_wrong_secret_is_told(guarded: GuardedServer, meet: Meet) -> None:
    auth = {"grant": "client_credentials", "client_id": "robot", "client_secret": SECRET}
    computer = await meet(guarded.mcp_url, auth=auth)
    state, reason = state_of(computer)
    assert state == "auth_required"
    assert "invalid_client" in reason
    assert reason.endswith("see auth in its configuration")
    assert len(guarded.provider.seen("token")) == 1
    with pytest.raises(SignInFailed, match="invalid_client"):
        await computer.sign_in("files")


async def test_a_key_that_is_none_is_told(guarded: GuardedServer, meet: Meet) -> None:
    auth = {"grant": "client_credentials", "client_id": "robot", "private_key": "-----BEGIN nothing-----"}
    assert "its private_key is not a private key" in state_of(await meet(guarded.mcp_url, auth=auth))[1]


@pytest.mark.parametrize("grant", ["client_credentials", "authorization_code"])
async def test_secrets_of_a_client_go_to_its_own_issuer_only(
    guarded: GuardedServer, browser: Browser, meet: Meet, grant: str
) -> None:
    guarded.provider.clients["mine"] = Client("mine", SECRET, "client_secret_basic")
    auth = {"grant": grant, "client_id": "mine", "client_secret": SECRET, "issuer": "https://own.example"}
    computer = await meet(guarded.mcp_url, auth=auth, open_url=browser)
    assert "another authorization server than that of this client, https://own.example" in state_of(computer)[1]
    assert guarded.provider.seen("token") == []
    assert browser.opened == []


async def test_without_an_issuer_a_secret_stays_with_the_provider_of_the_first_sign_in(
    guarded: GuardedServer, meet: Meet
) -> None:
    guarded.provider.clients["robot"] = Client("robot", SECRET, "client_secret_basic")
    auth = {"grant": "client_credentials", "client_id": "robot", "client_secret": SECRET}
    computer = await meet(guarded.mcp_url, auth=auth)
    thief = AuthorizationServer()
    async with served(thief.app):
        guarded.authorization_servers = [thief.issuer]
        guarded.provider.revoke_all()
        assert (await call(computer, "add", a=1, b=2))["_meta"]["error_code"] == 4007
        assert f"than that of this client, {guarded.provider.issuer}" in state_of(computer)[1]
        assert thief.seen("token") == []


async def test_of_several_providers_the_configured_one_is_used(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    other = AuthorizationServer()
    async with served(other.app):
        guarded.authorization_servers = [other.issuer, guarded.provider.issuer]
        computer = await meet(guarded.mcp_url, open_url=browser, auth={"issuer": guarded.provider.issuer})
        assert state_of(computer) == ("ready", "")
        assert other.requests == []


# The configuration


async def test_values_come_from_inputs(guarded: GuardedServer, tmp_path: Path) -> None:
    guarded.provider.clients["robot"] = Client("robot", SECRET, "client_secret_basic")
    computer = Computer("mine", state_folder=tmp_path, prompt=lambda asked: SECRET)
    computer.define_inputs([{"type": "promptString", "id": "secret", "description": "s", "password": True}])
    computer.add_server(
        {
            "name": "files",
            "type": "streamable",
            "server_parameters": {"url": guarded.mcp_url},
            "auth": {"grant": "client_credentials", "client_id": "robot", "client_secret": "${input:secret}"},
        }
    )
    async with computer:
        await computer.start()
        assert state_of(computer) == ("ready", "")
        assert SECRET not in str(computer.get_config())


@pytest.mark.parametrize(
    ("auth", "fault"),
    [
        ({"grant": "password"}, "auth.grant: must be one of"),
        ({"grant": "client_credentials", "client_id": "x"}, "either a client_secret or a private_key"),
        ({"private_key": "x"}, "private_key is used with"),
        ({"client_secret": "x"}, "client_secret needs a client_id"),
        ({"redirect_port": 70000}, "auth.redirect_port: must be a port"),
        ({"redirect_uri": "https://elsewhere.example/x"}, "auth.redirect_uri: must be a URL of this machine"),
        ({"redirect_port": 1, "redirect_uri": "http://localhost:1/x"}, "exclude each other"),
        ({"client_metadata_url": "http://client.example/x"}, "auth.client_metadata_url: must be an https URL"),
        ({"issuer": "javascript:x"}, "auth.issuer: must be an http or https URL"),
        ({"scopes": ['a"b']}, "auth.scopes: must be a list of names"),
        ("yes", "auth: must be an object"),
    ],
)
def test_a_wrong_field_is_named_and_its_value_is_not_quoted(auth: Any, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_server({"name": "files", "url": "https://a.example", "auth": auth})
    assert fault in caught.value.message


def test_a_program_has_no_sign_in() -> None:
    assert "auth" in (parse_server({"name": "x", "command": "y", "auth": {}}).model_extra or {})


def test_a_change_of_auth_needs_the_consent_of_the_owner_and_shows_no_secret() -> None:
    def with_secret(secret: str) -> Configuration:
        auth = {"client_id": "x", "client_secret": secret}
        return Configuration(servers={"a": parse_server({"name": "a", "url": "https://a.example", "auth": auth})})

    weighed = weigh(with_secret("first-secret-of-all"), with_secret("second-secret-of-all"))
    [waiting] = weighed.waiting
    assert "auth" in str(waiting)
    assert "secret-of-all" not in str(waiting)
