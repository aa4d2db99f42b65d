"""Admission by JSON Web Token: real keys, real tokens, and the forgeries that have worked elsewhere."""

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from a2c_smcp.errors import NotAuthenticated
from a2c_smcp.server.auth.authentication import AuthenticationProvider, Principal
from a2c_smcp.server.auth.jwt import LEEWAY, JWTAuthenticationProvider
from tests.stage.keys import enter

pytestmark = pytest.mark.covers("auth-jwt", "auth-fails-closed")

SECRET = "correct horse battery staple correct horse battery staple correct horse"
RSA, RSA_2 = (rsa.generate_private_key(65537, 2048) for _ in range(2))
P256, P384 = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP384R1())
ED = ed25519.Ed25519PrivateKey.generate()


Provider = JWTAuthenticationProvider


def pem(private: Any) -> bytes:
    return private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(private: Any, algorithm: str, **more: object) -> dict[str, Any]:
    return {**jwt.get_algorithm_by_name(algorithm).to_jwk(private.public_key(), as_dict=True), **more}


def pem_file(folder: Path, private: Any) -> Path:
    path = folder / "key.pem"
    path.write_bytes(pem(private))
    return path


def set_file(folder: Path, *keys: object) -> Path:
    path = folder / "jwks.json"
    path.write_text(json.dumps({"keys": keys}))
    return path


def claims(**changes: object) -> dict[str, Any]:
    """A sound token's claims. `None` takes one out."""
    merged = {"sub": "alice", "exp": int(time.time()) + 600, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def b64(data: object) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def forge(header: object, payload: object, sign: Callable[[bytes], bytes] = lambda _: b"") -> str:
    """A token made by hand, for what no library will make."""
    signed = f"{b64(header)}.{b64(payload)}"
    return f"{signed}.{b64(sign(signed.encode()))}"


def hs256(key: bytes) -> Callable[[bytes], bytes]:
    return lambda signed: hmac.new(key, signed, hashlib.sha256).digest()


async def principal_of(provider: AuthenticationProvider, token: object) -> Principal:
    return await enter(provider, {"token": token})


async def refused(provider: AuthenticationProvider, token: object) -> bool:
    with pytest.raises(NotAuthenticated) as refusal:
        await principal_of(provider, token)
    return refusal.value.code == 401


def by_secret(**options: Any) -> JWTAuthenticationProvider:
    return JWTAuthenticationProvider(secret=SECRET, algorithms=["HS256"], **options)


@pytest.fixture
def hs() -> JWTAuthenticationProvider:
    return by_secret()


@pytest.fixture
def rs(tmp_path: Path) -> JWTAuthenticationProvider:
    return JWTAuthenticationProvider(key_file=pem_file(tmp_path, RSA), algorithms=["RS256"])


def signed(**changes: object) -> str:
    return jwt.encode(claims(**changes), SECRET, "HS256")


# What is admitted


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_a_token_signed_with_the_secret_is_admitted(algorithm: str) -> None:
    provider = JWTAuthenticationProvider(secret=SECRET, algorithms=algorithm)
    assert (await principal_of(provider, jwt.encode(claims(), SECRET, algorithm))).id == "alice"


@pytest.mark.parametrize(
    ("private", "algorithm"),
    [(RSA, "RS256"), (RSA, "RS512"), (RSA, "PS256"), (P256, "ES256"), (P384, "ES384"), (ED, "EdDSA")],
    ids=["RS256", "RS512", "PS256", "ES256", "ES384", "EdDSA"],
)
async def test_a_token_signed_with_the_key_of_a_file_enters(tmp_path: Path, private: Any, algorithm: str) -> None:
    token = jwt.encode(claims(), private, algorithm)
    from_pem = JWTAuthenticationProvider(key_file=pem_file(tmp_path, private), algorithms=[algorithm])
    from_set = JWTAuthenticationProvider(jwks_file=set_file(tmp_path, jwk(private, algorithm)), algorithms=[algorithm])
    assert (await principal_of(from_pem, token)).id == "alice"
    assert (await principal_of(from_set, token)).id == "alice"


async def test_a_token_is_read_wherever_a_credential_is(hs: Provider) -> None:
    token = signed()
    for headers in ({"authorization": f"Bearer {token}"}, {"x-api-key": token}, {"access_token": token}):
        assert (await enter(hs, {"token": "not a token"}, headers)).id == "alice"
    custom = by_secret(field="jwt")
    assert (await enter(custom, {"jwt": token})).id == "alice"
    assert await refused(custom, token)


@pytest.mark.covers("auth-scope")
async def test_claims_become_the_principals_scope_and_time(hs: Provider) -> None:
    exp = int(time.time()) + 600
    token = signed(exp=exp, offices=["desk", "team-*"], roles="agent computer", names=["planner"])
    assert await principal_of(hs, token) == Principal(
        "alice", frozenset({"desk", "team-*"}), frozenset({"agent", "computer"}), frozenset({"planner"}), exp + LEEWAY
    )
    assert await principal_of(hs, signed(exp=exp)) == Principal("alice", expires=exp + LEEWAY)


@pytest.mark.covers("auth-scope")
async def test_the_names_of_the_claims_are_configurable() -> None:
    provider = by_secret(offices_claim="https://example.com/offices", roles_claim="scope", names_claim="aka")
    token = signed(**{"https://example.com/offices": ["desk"], "scope": "agent", "aka": "a b", "offices": ["attic"]})
    principal = await principal_of(provider, token)
    assert (principal.offices, principal.roles, principal.names) == ({"desk"}, {"agent"}, {"a", "b"})


@pytest.mark.covers("auth-scope")
@pytest.mark.parametrize("nothing", [[], "", "  "])
async def test_an_empty_claim_allows_nothing(hs: Provider, nothing: object) -> None:
    assert (await principal_of(hs, signed(offices=nothing))).offices == frozenset()


@pytest.mark.covers("auth-scope")
@pytest.mark.parametrize("claim", ["offices", "roles", "names"])
@pytest.mark.parametrize("value", [1, True, {"desk": True}, ["desk", 1], [["desk"]], [None]])
async def test_a_claim_of_the_wrong_type_is_refused(hs: Provider, claim: str, value: object) -> None:
    assert await refused(hs, signed(**{claim: value}))


@pytest.mark.covers("auth-scope")
async def test_a_claim_of_null_is_not_an_absent_one(hs: Provider) -> None:
    assert await refused(hs, jwt.encode({**claims(), "offices": None}, SECRET, "HS256"))


# Time, issuer, audience, subject


async def test_exp_is_required_unless_configured_otherwise(hs: Provider) -> None:
    assert await refused(hs, signed(exp=None))
    lenient = by_secret(require_exp=False)
    assert await principal_of(lenient, signed(exp=None)) == Principal("alice")
    assert await refused(lenient, signed(exp=1))


async def test_an_expired_token_is_refused_once_the_leeway_is_over() -> None:
    strict, lenient = by_secret(leeway=0), by_secret(leeway=600)
    token = signed(exp=int(time.time()) - 60)
    assert await refused(strict, token)
    assert (await principal_of(lenient, token)).id == "alice"


async def test_a_token_from_the_future_is_refused(hs: Provider) -> None:
    soon = int(time.time()) + 300
    assert await refused(hs, signed(nbf=soon))
    assert await refused(hs, signed(iat=soon))
    assert (await principal_of(hs, signed(nbf=soon - 600, iat=soon - 600))).id == "alice"


@pytest.mark.parametrize("claim", ["exp", "nbf"])
@pytest.mark.parametrize("value", ["soon", [], {}, float("nan"), float("inf"), 10**400], ids=repr)
async def test_a_time_that_is_none_is_refused(hs: Provider, claim: str, value: object) -> None:
    assert await refused(hs, signed(**{claim: value}))


async def test_the_issuer_is_checked_where_one_is_configured(hs: Provider) -> None:
    provider = by_secret(issuer="https://issuer.example")
    assert (await principal_of(provider, signed(iss="https://issuer.example"))).id == "alice"
    for wrong in (None, "", "issuer", "https://issuer.example/", "https://evil.example"):
        assert await refused(provider, signed(iss=wrong))
    listed = claims(iss=["https://issuer.example"])
    assert await refused(provider, forge({"alg": "HS256"}, listed, hs256(SECRET.encode())))
    assert (await principal_of(hs, signed(iss="whoever"))).id == "alice"


async def test_the_audience_is_checked_where_one_is_configured(hs: Provider) -> None:
    provider = by_secret(audience=["smcp", "a2c"])
    for right in ("smcp", "a2c", ["other", "smcp"]):
        assert (await principal_of(provider, signed(aud=right))).id == "alice"
    for wrong in (None, "", "smc", "smcp ", ["other"], [], 1, {"smcp": 1}):
        assert await refused(provider, signed(aud=wrong))
    assert (await principal_of(hs, signed(aud="whoever"))).id == "alice"


@pytest.mark.parametrize("sub", [None, "", 1, ["alice"], " alice", "al\nice", "a" * 257, "\u202ealice"])
async def test_a_token_without_a_sound_subject_is_refused(hs: Provider, sub: object) -> None:
    assert await refused(hs, signed(sub=sub))


# Forgeries


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", "", None, 0, [], ["RS256"], {}])
async def test_an_unsigned_token_is_refused(hs: Provider, rs: Provider, alg: object) -> None:
    for provider in (hs, rs):
        assert await refused(provider, forge({"alg": alg, "typ": "JWT"}, claims()))


async def test_a_token_signed_with_the_public_key_as_if_it_were_a_secret_is_refused(tmp_path: Path) -> None:
    files = ({"key_file": pem_file(tmp_path, RSA)}, {"jwks_file": set_file(tmp_path, jwk(RSA, "RS256"))})
    providers = [JWTAuthenticationProvider(**each, algorithms=["RS256"]) for each in files]
    der = RSA.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    for secret in (pem(RSA), pem(RSA).strip(), der, json.dumps(jwk(RSA, "RS256")).encode()):
        for provider in providers:
            assert await refused(provider, forge({"alg": "HS256"}, claims(), hs256(secret)))


async def test_an_algorithm_outside_the_list_is_refused_though_the_key_would_do(rs: Provider) -> None:
    for algorithm in ("RS384", "RS512", "PS256"):
        assert await refused(rs, jwt.encode(claims(), RSA, algorithm))


async def test_a_token_signed_with_another_key_is_refused(hs: Provider, rs: Provider) -> None:
    assert await refused(hs, jwt.encode(claims(), SECRET + "!", "HS256"))
    assert await refused(rs, jwt.encode(claims(), RSA_2, "RS256"))


async def test_a_key_that_the_token_brings_along_is_not_used(tmp_path: Path, rs: Provider) -> None:
    from_set = JWTAuthenticationProvider(jwks_file=set_file(tmp_path, jwk(RSA, "RS256", kid="a")), algorithms=["RS256"])
    headers = {"jwk": jwk(RSA_2, "RS256", kid="a"), "jku": "https://evil.example/jwks.json", "kid": "a"}
    token = jwt.encode(claims(), RSA_2, "RS256", headers=headers)
    assert await refused(rs, token)
    assert await refused(from_set, token)


async def test_changed_claims_break_the_signature(hs: Provider) -> None:
    header, _, signature = signed().split(".")
    assert await refused(hs, f"{header}.{b64(claims(sub='mallory'))}.{signature}")
    assert await refused(hs, f"{header}.{b64(claims())}.")


async def test_an_extension_that_must_be_understood_is_refused(hs: Provider) -> None:
    sign = hs256(SECRET.encode())
    assert await refused(hs, forge({"alg": "HS256", "crit": ["exotic"], "exotic": 1}, claims(), sign))
    assert await refused(hs, forge({"alg": "HS256", "crit": ["b64"], "b64": False}, claims(), sign))


@pytest.mark.parametrize(
    "token",
    [
        *("", ".", "..", "a.b.c", "é.é.é", "\ud800.\ud800.\ud800", "\x00", "x" * 10_000_000, "." * 16_000),
        *(None, 1, {}, []),
        *(forge([], {}), forge("HS256", {}), forge({}, {}), forge(b"\xff", b"\xff"), forge(b"[" * 8_000, {})),
        forge({"alg": "HS256", "kid": 1}, claims(), hs256(SECRET.encode())),
        forge({"alg": "HS256"}, [], hs256(SECRET.encode())),
        forge({"alg": "HS256"}, b"not JSON", hs256(SECRET.encode())),
        forge({"alg": "HS256"}, b'{"sub":' + b"[" * 8_000, hs256(SECRET.encode())),
    ],
    ids=lambda token: repr(token)[:24].encode("ascii", "backslashreplace").decode(),
)
async def test_a_string_that_is_no_token_is_refused_without_an_error_in_the_log(
    hs: Provider, tmp_path: Path, caplog: pytest.LogCaptureFixture, token: object
) -> None:
    from_set = JWTAuthenticationProvider(jwks_file=set_file(tmp_path, jwk(RSA, "RS256")), algorithms=["RS256"])
    with caplog.at_level(logging.INFO):
        assert await refused(hs, token)
        assert await refused(from_set, token)
    assert all(record.levelno == logging.INFO for record in caplog.records)


async def test_a_sound_token_that_is_huge_is_refused(hs: Provider) -> None:
    assert await refused(hs, signed(padding="x" * 100_000))


async def test_a_refused_token_appears_in_no_log_and_no_error(hs: Provider, caplog: pytest.LogCaptureFixture) -> None:
    tokens = [signed(exp=1), signed(sub="al\nice"), jwt.encode(claims(), SECRET + "!", "HS256"), "x" * 50]
    with caplog.at_level(logging.DEBUG):
        for token in tokens:
            with pytest.raises(NotAuthenticated) as refusal:
                await principal_of(hs, token)
            assert not any(part in caplog.text + str(refusal.value) for part in token.split("."))
    assert "ExpiredSignatureError" in caplog.text


# Key sets


async def test_a_key_of_the_set_is_chosen_by_its_kid(tmp_path: Path) -> None:
    path = set_file(tmp_path, jwk(RSA, "RS256", kid="a"), jwk(P256, "ES256", kid="b", use="sig"))
    provider = JWTAuthenticationProvider(jwks_file=path, algorithms=["RS256", "ES256"])
    assert (await principal_of(provider, jwt.encode(claims(), RSA, "RS256", headers={"kid": "a"}))).id == "alice"
    assert (await principal_of(provider, jwt.encode(claims(), P256, "ES256", headers={"kid": "b"}))).id == "alice"
    for kid in ("b", "c", "", "../a"):
        assert await refused(provider, jwt.encode(claims(), RSA, "RS256", headers={"kid": kid}))
    assert await refused(provider, jwt.encode(claims(), RSA, "RS256"))


async def test_a_kid_must_be_the_only_keys_own_if_it_is_said(tmp_path: Path) -> None:
    provider = JWTAuthenticationProvider(jwks_file=set_file(tmp_path, jwk(RSA, "RS256", kid="a")), algorithms=["RS256"])
    assert (await principal_of(provider, jwt.encode(claims(), RSA, "RS256"))).id == "alice"
    assert await refused(provider, jwt.encode(claims(), RSA, "RS256", headers={"kid": "b"}))


async def test_a_key_is_used_only_with_the_algorithm_that_it_declares(tmp_path: Path) -> None:
    path = set_file(tmp_path, jwk(RSA, "RS256", kid="a", alg="PS256"))
    provider = JWTAuthenticationProvider(jwks_file=path, algorithms=["RS256", "PS256"])
    assert (await principal_of(provider, jwt.encode(claims(), RSA, "PS256"))).id == "alice"
    assert await refused(provider, jwt.encode(claims(), RSA, "RS256"))


async def test_keys_of_a_set_that_cannot_be_used_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    others = [
        jwk(RSA_2, "RS256", kid="a", use="enc"),
        {"kty": "oct", "k": b64(SECRET.encode()), "kid": "b"},
        {"kty": "quantum", "kid": "c"},
        {"kty": "RSA", "n": "!", "e": "AQAB", "kid": "d"},
        {"kty": "EC", "crv": "P-256"},
        jwk(P256, "ES256", kid="e"),
        "nonsense",
    ]
    path = set_file(tmp_path, *others, jwk(RSA, "RS256", kid="good"))
    provider = JWTAuthenticationProvider(jwks_file=path, algorithms=["RS256"])
    assert (await principal_of(provider, jwt.encode(claims(), RSA, "RS256"))).id == "alice"
    assert await refused(provider, jwt.encode(claims(), RSA_2, "RS256", headers={"kid": "a"}))
    assert await refused(provider, forge({"alg": "HS256", "kid": "b"}, claims(), hs256(SECRET.encode())))
    assert len(caplog.records) == len(others)


# Reload


async def test_a_reload_brings_new_keys_and_ends_those_that_are_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = set_file(tmp_path, jwk(RSA, "RS256", kid="a"), jwk(RSA_2, "RS256", kid="b"))
    provider = JWTAuthenticationProvider(jwks_file=path, algorithms=["RS256", "ES256"])
    old = await principal_of(provider, jwt.encode(claims(), RSA, "RS256", headers={"kid": "a"}))
    kept = await principal_of(provider, jwt.encode(claims(), RSA_2, "RS256", headers={"kid": "b"}))
    assert provider.valid(old)
    set_file(tmp_path, jwk(RSA_2, "RS256", kid="b"), jwk(P256, "ES256", kid="c"))
    with caplog.at_level(logging.INFO):
        provider.reload()
    assert f"{path}: read again, 1 key added, 1 removed" in caplog.messages
    assert not provider.valid(old)
    assert provider.valid(kept)
    assert await refused(provider, jwt.encode(claims(), RSA, "RS256", headers={"kid": "a"}))
    assert (await principal_of(provider, jwt.encode(claims(), P256, "ES256", headers={"kid": "c"}))).id == "alice"


async def test_a_reload_of_a_broken_file_keeps_the_old_key_and_says_so(
    tmp_path: Path, rs: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key.pem").write_text("torn")
    rs.reload()
    assert rs.valid(await principal_of(rs, jwt.encode(claims(), RSA, "RS256")))
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_a_reload_leaves_a_secret_as_it_is(hs: Provider) -> None:
    admitted = await principal_of(hs, signed())
    hs.reload()
    assert hs.valid(admitted)


# Construction


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithms": ["HS256"]}, "exactly one of secret, key_file and jwks_file"),
        ({"algorithms": ["HS256"], "secret": SECRET, "key_file": "k"}, "exactly one of"),
        ({"algorithms": [], "secret": SECRET}, "say which JWT algorithms are accepted"),
        ({"algorithms": ["none"], "secret": SECRET}, "'none' cannot be used"),
        (
            {"algorithms": ["RS256"], "secret": SECRET},
            "'RS256' cannot be used with this kind of key, use some of HS256",
        ),
        ({"algorithms": ["HS256", "RS256"], "secret": SECRET}, "'RS256' cannot be used"),
        ({"algorithms": ["hs256"], "secret": SECRET}, "'hs256' cannot be used"),
        ({"algorithms": ["HS256"], "secret": ""}, "at least 32 bytes"),
        ({"algorithms": ["HS256"], "secret": "x" * 31}, "openssl rand -base64 32"),
        ({"algorithms": ["HS256", "HS512"], "secret": "x" * 63}, "at least 64 bytes"),
        ({"algorithms": ["HS256"], "secret": pem(RSA).decode()}, "the JWT secret is a public key"),
        ({"algorithms": ["HS256"], "secret": SECRET, "leeway": -1}, "leeway"),
        ({"algorithms": ["HS256"], "secret": SECRET, "leeway": float("inf")}, "leeway"),
        ({"algorithms": ["HS256"], "key_file": "missing.pem"}, "'HS256' cannot be used with this kind of key"),
        ({"algorithms": ["RS256", "none"], "jwks_file": "missing.json"}, "'none' cannot be used"),
        ({"algorithms": ["RS256"], "key_file": "missing.pem"}, "missing.pem: cannot be read"),
        ({"algorithms": ["RS256"], "jwks_file": "missing.json"}, "missing.json: cannot be read"),
    ],
)
def test_a_configuration_that_is_not_safe_is_refused_at_the_start(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        JWTAuthenticationProvider(**options)
    assert SECRET not in str(refusal.value)


PRIVATE = RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
WEAK = pem(rsa.generate_private_key(65537, 1024))


@pytest.mark.parametrize(
    ("content", "algorithm", "words"),
    [
        (b"", "RS256", "holds no public key in PEM format"),
        (b"\xff", "RS256", "holds no public key in PEM format"),
        (PRIVATE, "RS256", "openssl pkey -in PRIVATE.pem -pubout"),
        (pem(P256), "RS256", "this key is not for RS256, use ES256"),
        (pem(P384), "ES256", "this key is not for ES256, use ES384"),
        (pem(RSA), "EdDSA", "this key is not for EdDSA, use RS256 or"),
        (WEAK, "RS256", "at least 2048 bits"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_key_file_that_will_not_do_is_refused(tmp_path: Path, content: bytes, algorithm: str, words: str) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as refusal:
        JWTAuthenticationProvider(key_file=path, algorithms=[algorithm])
    assert str(refusal.value).startswith(f"{path}: ")


SECRET_JWK = {"kty": "oct", "k": b64(SECRET.encode())}
PRIVATE_JWK = jwt.get_algorithm_by_name("RS256").to_jwk(RSA, as_dict=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a JSON Web Key Set"),
        (b"\xff", "is not a JSON Web Key Set"),
        (b"[]", "is not a JSON Web Key Set"),
        (b"{}", "is not a JSON Web Key Set"),
        (b'{"keys": null}', "is not a JSON Web Key Set"),
        (b"[" * 100_000, "is not a JSON Web Key Set"),
        (b'{"keys": []}', "holds no public key for RS256"),
        (b'{"keys": "RSA"}', "holds no public key for RS256"),
        (json.dumps({"keys": [SECRET_JWK]}).encode(), "holds no public key for RS256"),
        (json.dumps({"keys": [PRIVATE_JWK]}).encode(), "key 1 is private"),
        (json.dumps({"keys": [jwk(RSA, "RS256"), jwk(RSA_2, "RS256")]}).encode(), "key 2 has no kid of its own"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_key_set_that_will_not_do_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as refusal:
        JWTAuthenticationProvider(jwks_file=path, algorithms=["RS256"])
    assert str(refusal.value).startswith(f"{path}: ")
