"""A small authorization server: discovery, registration, PKCE, refresh with rotation, revocation, client credentials.

It checks what a client sends as strictly as the standards let it, and notes every request.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from base64 import b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote, urlencode, urlsplit

import jwt
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


@dataclass
class Client:
    id: str
    secret: str | None = None
    method: str = "none"
    redirect_uris: list[str] = field(default_factory=list)
    public_key: str | None = None


@dataclass
class Code:
    client: str
    redirect_uri: str
    challenge: str
    scope: str
    resource: str | None


@dataclass
class Grant:
    """A token. Those of one sign-in have the same family."""

    client: str
    scope: str
    resource: str | None
    family: str
    expires: float
    is_revoked: bool = False


class OAuthProblem(Exception):
    def __init__(self, error: str, status: int = 400) -> None:
        self.error, self.status = error, status


class AuthorizationServer:
    """`person` is what the person at the browser does. `metadata` replaces entries of the discovery document."""

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.url = ""
        self.well_known: tuple[str, ...] = (f"/.well-known/oauth-authorization-server{path}",)
        self.metadata: dict[str, Any] = {}
        self.moves = False
        self.person: Literal["agrees", "refuses", "leaves"] = "agrees"
        self.lifetime = 3600
        self.rotates = True
        self.says_iss: str | None = None
        self.scopes: list[str] | None = None
        self.registers = True
        self.token_status: int | None = None
        self.repeats = False
        self.clients: dict[str, Client] = {}
        self.codes: dict[str, Code] = {}
        self.access: dict[str, Grant] = {}
        self.refresh: dict[str, Grant] = {}
        self.used: set[str] = set()
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.problems: list[str] = []

    @property
    def issuer(self) -> str:
        return self.url + self.path

    def app(self, url: str) -> Starlette:
        self.url = url
        return Starlette(
            routes=[
                *(Route(path, self._metadata) for path in (*self.well_known, "/moved")),
                Route(f"{self.path}/register", self._register, methods=["POST"]),
                Route(f"{self.path}/authorize", self._authorize),
                Route(f"{self.path}/token", self._token, methods=["POST"]),
                Route(f"{self.path}/revoke", self._revoke, methods=["POST"]),
            ]
        )

    def seen(self, kind: str) -> list[dict[str, str]]:
        return [fields for what, fields in self.requests if what == kind]

    def secrets(self) -> set[str]:
        """Everything that must never be read anywhere but here and at the client."""
        sent = [value for _, fields in self.requests for name, value in fields.items() if name in _SECRET_FIELDS]
        made = [client.secret for client in self.clients.values() if client.secret]
        return {*self.access, *self.refresh, *self.codes, *sent, *made, *self.used}

    def expire(self) -> None:
        """All access tokens end now."""
        for grant in self.access.values():
            grant.expires = 0

    def revoke_all(self) -> None:
        for grant in (*self.access.values(), *self.refresh.values()):
            grant.is_revoked = True

    def check(self, token: str, resource: str) -> Grant | None:
        """The grant of an access token, if it is good for a resource now."""
        grant = self.access.get(token)
        if grant is None or grant.is_revoked or grant.expires < time.time():
            return None
        return grant if grant.resource in (None, resource) else None

    async def _metadata(self, request: Request) -> Response:
        self.requests.append(("metadata", {"path": request.url.path}))
        if self.moves and request.url.path != "/moved":
            return RedirectResponse("/moved", 307)
        document = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            "scopes_supported": self.scopes,
            **self.metadata,
        }
        return JSONResponse({name: value for name, value in document.items() if value is not None})

    async def _register(self, request: Request) -> Response:
        asked = await request.json()
        self.requests.append(("register", {name: str(value) for name, value in asked.items()}))
        if not self.registers:
            return JSONResponse({"error": "access_denied"}, 403)
        method = asked.get("token_endpoint_auth_method") or "client_secret_basic"
        secret = None if method == "none" else secrets.token_urlsafe(24)
        client = Client(f"client-{len(self.clients)}", secret, method, asked["redirect_uris"])
        self.clients[client.id] = client
        made = {"client_id": client.id, "client_secret": secret, "token_endpoint_auth_method": method}
        return JSONResponse({**asked, **{name: value for name, value in made.items() if value}}, 201)

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        self.requests.append(("authorize", asked))
        client = self._client_of(asked.get("client_id", ""), asked.get("redirect_uri", ""))
        if client is None or not _is_registered(asked.get("redirect_uri", ""), client):
            self.problems.append("wrong redirect_uri or client")
            return PlainTextResponse("wrong redirect_uri or client", 400)
        if asked.get("response_type") != "code" or asked.get("code_challenge_method") != "S256":
            self.problems.append("no PKCE")
            return PlainTextResponse("no PKCE", 400)
        if self.person == "leaves":
            return PlainTextResponse("Password:")
        back = {"state": asked["state"], "iss": self.says_iss or self.issuer}
        if self.person == "refuses":
            back |= {"error": "access_denied", "error_description": "not today"}
        else:
            code = secrets.token_urlsafe(24)
            self.codes[code] = Code(
                client.id, asked["redirect_uri"], asked["code_challenge"], asked.get("scope", ""), asked.get("resource")
            )
            back["code"] = code
        if self.says_iss == "":
            del back["iss"]
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(back)}", 302)

    def _client_of(self, client_id: str, redirect_uri: str) -> Client | None:
        if client_id.startswith("https://") and self.metadata.get("client_id_metadata_document_supported"):
            return Client(client_id, redirect_uris=[redirect_uri])
        return self.clients.get(client_id)

    async def _token(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        self.requests.append(("token", form))
        if self.token_status is not None:
            return PlainTextResponse("out of order", self.token_status)
        if self.repeats:
            return PlainTextResponse(f"you sent {' and '.join(form.values())}", 400)
        try:
            client = self._authenticated(request, form)
            grant, family = _GRANTS[form["grant_type"]](self, client, form)
        except OAuthProblem as problem:
            self.problems.append(problem.error)
            return JSONResponse({"error": problem.error}, problem.status)
        return JSONResponse(self._issued(grant, family, refreshable=form["grant_type"] != "client_credentials"))

    def _authenticated(self, request: Request, form: dict[str, str]) -> Client:
        header = request.headers.get("authorization", "")
        if header.startswith("Basic "):
            id_, _, secret = b64decode(header[6:]).decode().partition(":")
            return self._with_secret(unquote(id_), unquote(secret), "client_secret_basic")
        if "client_assertion" in form:
            return self._by_assertion(form)
        if "client_secret" in form:
            return self._with_secret(form["client_id"], form["client_secret"], "client_secret_post")
        client = self._client_of(form.get("client_id", ""), "")
        if client is None or client.method != "none":
            raise OAuthProblem("invalid_client", 401)
        return client

    def _with_secret(self, id_: str, secret: str, method: str) -> Client:
        client = self.clients.get(id_)
        if client is None or client.secret != secret or client.method != method:
            raise OAuthProblem("invalid_client", 401)
        return client

    def _by_assertion(self, form: dict[str, str]) -> Client:
        if form.get("client_assertion_type") != ASSERTION:
            raise OAuthProblem("invalid_client", 401)
        subject = jwt.decode(form["client_assertion"], options={"verify_signature": False})["sub"]
        client = self.clients.get(subject)
        if client is None or client.public_key is None:
            raise OAuthProblem("invalid_client", 401)
        try:
            jwt.decode(form["client_assertion"], client.public_key, algorithms=["RS256", "ES256"], audience=self.issuer)
        except jwt.PyJWTError:
            raise OAuthProblem("invalid_client", 401) from None
        return client

    def _of_code(self, client: Client, form: dict[str, str]) -> tuple[Code, str]:
        code = self.codes.pop(form["code"], None)
        self.used.add(form["code"])
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = urlsafe_b64encode(digest).decode().rstrip("=")
        if code is None or code.client != client.id or code.redirect_uri != form.get("redirect_uri"):
            raise OAuthProblem("invalid_grant")
        if code.challenge != challenge or form.get("resource") != code.resource:
            raise OAuthProblem("invalid_grant")
        return code, secrets.token_hex(4)

    def _of_refresh(self, client: Client, form: dict[str, str]) -> tuple[Grant, str]:
        grant = self.refresh.get(form["refresh_token"])
        if grant is None or grant.client != client.id or grant.is_revoked:
            raise OAuthProblem("invalid_grant")
        if form["refresh_token"] in self.used:  # stolen, or used twice: the whole family ends
            for each in (*self.access.values(), *self.refresh.values()):
                each.is_revoked = each.is_revoked or each.family == grant.family
            self.problems.append("refresh token used twice")
            raise OAuthProblem("invalid_grant")
        if self.rotates:
            self.used.add(form["refresh_token"])
        return grant, grant.family

    def _of_client(self, client: Client, form: dict[str, str]) -> tuple[Code, str]:
        return Code(client.id, "", "", form.get("scope", ""), form.get("resource")), secrets.token_hex(4)

    def _issued(self, of: Code | Grant, family: str, *, refreshable: bool) -> dict[str, Any]:
        access, refresh = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self.access[access] = Grant(of.client, of.scope, of.resource, family, time.time() + self.lifetime)
        token = {"access_token": access, "token_type": "Bearer", "expires_in": self.lifetime, "scope": of.scope}
        if refreshable and self.rotates:
            self.refresh[refresh] = Grant(of.client, of.scope, of.resource, family, 0)
            token["refresh_token"] = refresh
        return token

    async def _revoke(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        self.requests.append(("revoke", form))
        try:
            self._authenticated(request, form)
        except OAuthProblem as problem:
            return JSONResponse({"error": problem.error}, problem.status)
        if grant := self.refresh.get(form["token"]) or self.access.get(form["token"]):
            for each in (*self.access.values(), *self.refresh.values()):
                each.is_revoked = each.is_revoked or each.family == grant.family
        return Response()


_SECRET_FIELDS = ("code", "code_verifier", "refresh_token", "client_secret", "client_assertion", "state", "token")
_GRANTS = {
    "authorization_code": AuthorizationServer._of_code,
    "refresh_token": AuthorizationServer._of_refresh,
    "client_credentials": AuthorizationServer._of_client,
}


def _is_registered(redirect_uri: str, client: Client) -> bool:
    return redirect_uri in client.redirect_uris and urlsplit(redirect_uri).hostname in ("127.0.0.1", "localhost")
