"""Authentication by JSON Web Token (RFC 7519). It needs the extra `server`."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from a2c_smcp.devices.transcript import is_fingerprint
from a2c_smcp.protocol.names import fault_in
from a2c_smcp.server.auth.authentication import AuthenticationProvider, Principal, changes_of_keys, credentials

LEEWAY = 10.0
"""Seconds by which the clocks of the issuer and of this server may differ."""

MAX_SUBJECT = 256
MIN_RSA_BITS = 2048

logger = logging.getLogger(__name__)

_PublicKey: TypeAlias = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey

# With the bytes that a secret must have (RFC 7518 §3.2).
_SECRET_ALGORITHMS = {"HS256": 32, "HS384": 48, "HS512": 64}
_CURVES = {"secp256r1": "ES256", "secp256k1": "ES256K", "secp384r1": "ES384", "secp521r1": "ES512"}
_RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_PUBLIC_ALGORITHMS = (*_RSA_ALGORITHMS, *_CURVES.values(), "EdDSA")


class _UnknownKey(jwt.InvalidTokenError):
    """No key has the `kid` of the token."""


class _BadClaim(jwt.InvalidTokenError):
    """A claim is signed, and has a value that cannot be used."""


_REFUSALS = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class _Key:
    """A key, and the algorithms that it may be used with. `id` identifies it and does not reveal it."""

    id: str
    key: _PublicKey | str
    algorithms: tuple[str, ...]
    kid: str | None = None


class JWTAuthenticationProvider(AuthenticationProvider):
    """Admits tokens signed with one secret (HS*), the key of a PEM file, or one of a JSON Web Key Set, chosen by `kid`.

    `sub` is the principal's id; `offices`, `roles` and `names` are lists or words, and absent if any is allowed. With
    `cnf.jkt` (RFC 7800, RFC 9449) the token is bound to the device with this fingerprint.
    Raises `ValueError` for keys and algorithms that cannot be used.
    """

    def __init__(
        self,
        *,
        algorithms: str | Iterable[str],
        secret: str | None = None,
        key_file: Path | str | None = None,
        jwks_file: Path | str | None = None,
        issuer: str | Iterable[str] | None = None,
        audience: str | Iterable[str] | None = None,
        leeway: float = LEEWAY,
        require_exp: bool = True,
        field: str = "token",
        offices_claim: str = "offices",
        roles_claim: str = "roles",
        names_claim: str = "names",
    ) -> None:
        if sum(source is not None for source in (secret, key_file, jwks_file)) != 1:
            raise ValueError("JWT needs exactly one of secret, key_file and jwks_file: give one of them")
        if not 0 <= leeway < float("inf"):
            raise ValueError("the JWT leeway must be zero or more seconds")
        self._algorithms = _allowed(_several(algorithms), _PUBLIC_ALGORITHMS if secret is None else _SECRET_ALGORITHMS)
        self._secret = secret
        self._key_file = None if key_file is None else Path(key_file)
        self._jwks_file = None if jwks_file is None else Path(jwks_file)
        self._issuers = None if issuer is None else _several(issuer)
        self._audiences = None if audience is None else _several(audience)
        self._leeway, self._field = leeway, field
        self._required = ["sub", "exp"] if require_exp else ["sub"]
        self._claims = {"offices": offices_claim, "roles": roles_claim, "names": names_claim}
        self._keys = self._load()

    async def authenticate(
        self, sio: Any, environ: dict[str, Any], auth: object, headers: Mapping[str, str]
    ) -> bool | Principal:
        for token in credentials(auth, headers, self._field):
            try:
                return self._principal(token)
            except _REFUSALS as error:  # its message may quote the token
                logger.info("a token is refused: %s", type(error).__name__)
        return False

    def valid(self, principal: Principal) -> bool:
        return any(key.id == principal.credential for key in self._keys)

    def reload(self) -> None:
        if (file := self._key_file or self._jwks_file) is None:
            super().reload()
            return
        before = self._keys
        try:
            self._keys = self._load()
        except ValueError as error:
            self.trouble = f"the JWT keys are not reloaded, the earlier ones stay: {error}"
            logger.error("%s", self.trouble)  # noqa: TRY400
        else:
            self.trouble = ""
            changes = changes_of_keys(*({key.id: key for key in keys} for keys in (before, self._keys)))
            logger.info("%s: read again, %s", file, changes)

    def _load(self) -> tuple[_Key, ...]:
        if self._key_file is not None:
            return (_read_pem(self._key_file, self._algorithms),)
        if self._jwks_file is not None:
            return _read_set(self._jwks_file, self._algorithms)
        assert self._secret is not None
        return (_check_secret(self._secret, self._algorithms),)

    def _principal(self, token: str) -> Principal:
        key = self._pick(token)
        claims = jwt.decode(
            token,
            key.key,
            algorithms=list(key.algorithms),
            issuer=self._issuers,
            audience=self._audiences,
            leeway=self._leeway,
            options={"require": self._required, "verify_aud": self._audiences is not None},
        )
        if fault_in(claims["sub"], MAX_SUBJECT):
            raise _BadClaim("sub")
        scope = {name: _words(claims, claim) for name, claim in self._claims.items()}
        expires = int(claims["exp"]) + self._leeway if "exp" in claims else None
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        return Principal(
            claims["sub"], **scope, expires=expires, credential=key.id, device=_device(claims), token=digest
        )

    def _pick(self, token: str) -> _Key:
        if self._jwks_file is None:
            return self._keys[0]
        kid = jwt.get_unverified_header(token).get("kid")
        candidates = self._keys if kid is None else [key for key in self._keys if key.kid == kid]
        if len(candidates) != 1:
            raise _UnknownKey
        return candidates[0]


def _several(one_or_more: str | Iterable[str]) -> list[str]:
    return [one_or_more] if isinstance(one_or_more, str) else list(one_or_more)


def _allowed(algorithms: list[str], sound: Iterable[str]) -> tuple[str, ...]:
    """The accepted algorithms. All must fit the kind of key: a public key is never taken for a secret."""
    if not algorithms:
        raise ValueError(f"say which JWT algorithms are accepted, out of {', '.join(sound)}")
    if wrong := [name for name in algorithms if name not in sound]:
        raise ValueError(
            f"JWT algorithm {wrong[0]!r} cannot be used with this kind of key, use some of {', '.join(sound)}"
        )
    return tuple(algorithms)


def _check_secret(secret: str, algorithms: tuple[str, ...]) -> _Key:
    shortest = max(_SECRET_ALGORITHMS[name] for name in algorithms)
    if len(secret.encode()) < shortest:
        raise ValueError(
            f"the JWT secret must have at least {shortest} bytes for {', '.join(algorithms)}: "
            f"make one with `openssl rand -base64 {shortest}`"
        )
    try:
        jwt.get_algorithm_by_name(algorithms[0]).prepare_key(secret)
    except jwt.InvalidKeyError:
        raise ValueError("the JWT secret is a public key: give it as key_file or jwks_file") from None
    return _Key("secret", secret, algorithms)


def _read_pem(path: Path, algorithms: tuple[str, ...]) -> _Key:
    content = _read(path)
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(
            f"{path}: holds no public key in PEM format, make one with `openssl pkey -in PRIVATE.pem -pubout`"
        ) from None
    usable = _fitting(key)
    if wrong := [name for name in algorithms if name not in usable]:
        raise ValueError(f"{path}: this key is not for {wrong[0]}, use {' or '.join(usable) or 'another key'}")
    return _key(key, algorithms, str(path))


def _read_set(path: Path, algorithms: tuple[str, ...]) -> tuple[_Key, ...]:
    content = _read(path)
    try:
        entries = list(json.loads(content)["keys"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(
            f'{path}: is not a JSON Web Key Set, which looks like {{"keys": [{{"kty": "RSA", …}}]}}'
        ) from None
    keys: list[_Key] = []
    for number, entry in enumerate(entries, 1):
        key = _from_jwk(entry, algorithms, f"{path}: key {number}")
        if key is None:
            logger.warning("%s: key %d is left out, it verifies no %s", path, number, " or ".join(algorithms))
        elif any(key.kid == other.kid for other in keys):
            raise ValueError(f"{path}: key {number} has no kid of its own, give each key another one")
        else:
            keys.append(key)
    if not keys:
        raise ValueError(f"{path}: holds no public key for {' or '.join(algorithms)}, add one or change the algorithms")
    return tuple(keys)


def _from_jwk(entry: object, algorithms: tuple[str, ...], where: str) -> _Key | None:
    """The key of an entry; `None` if it cannot be used here (RFC 7517 §5: ignore keys that are not understood)."""
    if not isinstance(entry, dict) or entry.get("kty") == "oct" or entry.get("use", "sig") != "sig":
        return None
    if "d" in entry:
        raise ValueError(f"{where} is private, keep only its public part here")
    try:
        key = jwt.PyJWK(entry).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, UnsupportedAlgorithm):
        return None
    declared = entry.get("alg")
    usable = tuple(name for name in algorithms if name in _fitting(key) and declared in (None, name))
    return _key(key, usable, where, entry.get("kid")) if usable else None


def _key(key: Any, algorithms: tuple[str, ...], where: str, kid: str | None = None) -> _Key:
    if isinstance(key, RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        raise ValueError(f"{where}: RSA keys must have at least {MIN_RSA_BITS} bits, make a longer one")
    public = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return _Key(hashlib.sha256(public).hexdigest(), key, algorithms, kid)


def _fitting(key: object) -> tuple[str, ...]:
    """The algorithms that this kind of key can verify."""
    if isinstance(key, RSAPublicKey):
        return _RSA_ALGORITHMS
    if isinstance(key, EllipticCurvePublicKey):
        return tuple(name for curve, name in _CURVES.items() if curve == key.curve.name)
    return ("EdDSA",) if isinstance(key, Ed25519PublicKey | Ed448PublicKey) else ()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None


def _device(claims: Mapping[str, Any]) -> str | None:
    """A token that is bound in a way that cannot be checked here is refused."""
    if "cnf" not in claims:
        return None
    confirmation = claims["cnf"]
    if not isinstance(confirmation, dict) or set(confirmation) != {"jkt"} or not is_fingerprint(confirmation["jkt"]):
        raise _BadClaim("cnf")
    return str(confirmation["jkt"])


def _words(claims: Mapping[str, Any], claim: str) -> frozenset[str] | None:
    if claim not in claims:
        return None
    words = claims[claim]
    if isinstance(words, str):
        return frozenset(words.split())
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        return frozenset(words)
    raise _BadClaim(claim)
