"""The client that signs in: registered before, described by a document, signing in for itself; the field `auth`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from a2c_smcp.computer import SignInFailed
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.files import Configuration
from a2c_smcp.computer.configuration.watch import weigh
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.servers import parse_server
from tests.ports import free_port
from tests.sign_in.authorization_server import AuthorizationServer, Client
from tests.sign_in.conftest import Scene, call, reason_of, state_of, text_of
from tests.sign_in.guarded_server import GuardedServer
from tests.sign_in.served import served
from tests.stage.cases import cases

pytestmark = pytest.mark.covers("9-sign-in")

SECRET = "a-secret/with?odd=characters&"
BASIC, POST = "client_secret_basic", "client_secret_post"
BASIC, POST = "client_secret_basic", "client_secret_post"
DOCUMENT = "https://client.example/a2c.json"


def pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> tuple[str, str]:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return private, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


EC_KEY, RSA_KEY = pem(ec.generate_private_key(ec.SECP256R1())), pem(rsa.generate_private_key(65537, 2048))


@pytest.mark.parametrize("method", [BASIC, POST, "none"])
@pytest.mark.parametrize("way_back", ["redirect_port", "redirect_uri"])
async def test_a_client_that_was_registered_before(scene: Scene, method: str, way_back: str) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}/callback" if way_back == "redirect_port" else f"http://localhost:{port}/back/here"
    secret = None if method == "none" else SECRET
    scene.provider.clients["mine"] = Client("mine", secret, method, [uri])
    auth: dict[str, Any] = {"client_id": "mine", way_back: port if way_back == "redirect_port" else uri}
    if secret:
        auth |= {"client_secret": secret, "token_endpoint_auth_method": method}
    computer = await scene.ready(auth=auth)
    assert scene.provider.seen("register") == []
    scene.provider.expire()
    assert text_of(await call(computer, "add", a=1, b=2)) == "3"


@pytest.mark.parametrize("reads_documents", [True, False])
async def test_a_document_describes_the_client_or_else_it_is_registered(scene: Scene, reads_documents: bool) -> None:
    scene.provider.metadata["client_id_metadata_document_supported"] = reads_documents
    await scene.ready(auth={"client_metadata_url": DOCUMENT})
    assert (parse_qs(urlsplit(scene.opened[0]).query)["client_id"] == [DOCUMENT]) is reads_documents
    assert len(scene.provider.seen("register")) == (not reads_documents)


async def test_a_provider_that_registers_nobody_is_told(scene: Scene) -> None:
    scene.provider.registers = False
    assert "Registration failed: 403" in reason_of(await scene.meet())
    assert scene.opened == []


async def test_configured_scopes_are_asked_for_beside_those_of_the_server(scene: Scene) -> None:
    computer = await scene.meet(auth={"scopes": "files:write"})
    assert scene.provider.seen("authorize")[0]["scope"] == "files:write basic"
    assert text_of(await call(computer, "write", text="x")) == "written: x"
    assert len(scene.opened) == 1


# A client that signs in for itself


ROBOT = {"grant": "client_credentials", "client_id": "robot"}
WITH_SECRET = {**ROBOT, "client_secret": SECRET}


@cases(
    "robot, auth",
    (Client("robot", SECRET, BASIC), {**WITH_SECRET, "token_endpoint_auth_method": BASIC}),
    (Client("robot", SECRET, POST), {**WITH_SECRET, "token_endpoint_auth_method": POST}),
    (Client("robot", public_key=EC_KEY[1]), {**ROBOT, "private_key": EC_KEY[0]}),
    (Client("robot", public_key=RSA_KEY[1]), {**ROBOT, "private_key": RSA_KEY[0]}),
    ids=[BASIC, POST, "EC", "RSA"],
)
async def test_a_client_signs_in_for_itself(scene: Scene, robot: Client, auth: dict[str, Any]) -> None:
    scene.provider.clients["robot"] = robot
    computer = await scene.ready(open_url=None, auth=auth)
    scene.provider.expire()
    assert text_of(await call(computer, "add", a=1, b=2)) == "3"
    assert text_of(await call(computer, "write", text="x")) == "written: x"
    assert scene.provider.seen("authorize") == []


async def test_a_wrong_secret_is_told(scene: Scene) -> None:
    computer = await scene.meet(open_url=None, auth=WITH_SECRET)
    assert "invalid_client" in reason_of(computer)
    assert reason_of(computer).endswith("see auth in its configuration")
    assert len(scene.provider.seen("token")) == 1
    with pytest.raises(SignInFailed, match="invalid_client"):
        await computer.sign_in("files")


async def test_a_key_that_is_none_is_told(scene: Scene) -> None:
    computer = await scene.meet(open_url=None, auth={**ROBOT, "private_key": "-----BEGIN nothing-----"})
    assert "its private_key is not a private key" in reason_of(computer)


@pytest.mark.parametrize("grant", ["client_credentials", "authorization_code"])
async def test_secrets_of_a_client_go_to_its_own_issuer_only(scene: Scene, grant: str) -> None:
    scene.provider.clients["robot"] = Client("robot", SECRET, BASIC)
    computer = await scene.meet(auth={**WITH_SECRET, "grant": grant, "issuer": "https://own.example"})
    assert "another authorization server than that of this client, https://own.example" in reason_of(computer)
    assert scene.provider.seen("token") == []
    assert scene.opened == []


async def test_of_several_providers_the_configured_one_is_used(scene: Scene) -> None:
    other = AuthorizationServer()
    async with served(other.app):
        scene.server.authorization_servers = [other.issuer, scene.provider.issuer]
        await scene.ready(auth={"issuer": scene.provider.issuer})
        assert other.requests == []


# The configuration


async def test_values_come_from_inputs(guarded: GuardedServer, tmp_path: Path) -> None:
    guarded.provider.clients["robot"] = Client("robot", SECRET, BASIC)
    computer = Computer("mine", state_folder=tmp_path, prompt=lambda asked: SECRET)
    computer.define_inputs([{"type": "promptString", "id": "secret", "description": "s", "password": True}])
    auth = {**ROBOT, "client_secret": "${input:secret}", "issuer": guarded.provider.issuer}
    computer.add_server({"name": "files", "url": guarded.mcp_url, "auth": auth})
    async with computer:
        await computer.start()
        assert state_of(computer) == "ready"
        assert SECRET not in str(computer.get_config())


@cases(
    "auth, fault",
    ({"grant": "password"}, "auth.grant: must be one of"),
    ({"grant": "client_credentials", "client_id": "x"}, "either a client_secret or a private_key"),
    ({"private_key": "x"}, "private_key is used with"),
    ({"client_secret": "x"}, "client_secret needs a client_id"),
    ({"client_id": "x", "client_secret": "y"}, "client_secret and private_key need an issuer"),
    ({"grant": "client_credentials", "client_id": "x", "private_key": "y"}, "need an issuer, the only"),
    ({"redirect_port": 70000}, "auth.redirect_port: must be a port"),
    ({"redirect_uri": "https://elsewhere.example/x"}, "auth.redirect_uri: must be a URL of this machine"),
    ({"redirect_port": 1, "redirect_uri": "http://localhost:1/x"}, "exclude each other"),
    ({"client_metadata_url": "http://client.example/x"}, "auth.client_metadata_url: must be an https URL"),
    ({"issuer": "javascript:x"}, "auth.issuer: must be an http or https URL"),
    ({"scopes": ['a"b']}, "auth.scopes: must be a list of names"),
    ("yes", "auth: must be an object"),
)
def test_a_wrong_field_is_named_and_its_value_is_not_quoted(auth: Any, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_server({"name": "files", "url": "https://a.example", "auth": auth})
    assert fault in caught.value.message


def test_a_program_has_no_sign_in() -> None:
    assert "auth" in (parse_server({"name": "x", "command": "y", "auth": {}}).model_extra or {})


def test_a_change_of_auth_needs_the_consent_of_the_owner_and_shows_no_secret() -> None:
    def with_secret(secret: str) -> Configuration:
        auth = {"client_id": "x", "client_secret": secret, "issuer": "https://auth.example"}
        return Configuration(servers={"a": parse_server({"name": "a", "url": "https://a.example", "auth": auth})})

    weighed = weigh(with_secret("first-secret-of-all"), with_secret("second-secret-of-all"))
    [waiting] = weighed.waiting
    assert "auth" in str(waiting)
    assert "secret-of-all" not in str(waiting)
