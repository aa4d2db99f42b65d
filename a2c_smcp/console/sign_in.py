"""The pages on which people sign in their MCP clients, and the endpoints of OAuth behind them.

A person proves who they are with an API key or a one-time link, sees who asks for what, and allows or denies it. There
is no cookie: each form carries what was shown, sealed by the Server, and only pages of ours may send it. A request is
decided once, in whichever tab. What clients and people may do is decided in `server/auth/`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qs, urlsplit

import msgspec

from a2c_smcp.audit.observers import Facts, Observed, known
from a2c_smcp.console.html import (
    SAFETY,
    Child,
    Html,
    Request,
    Response,
    as_page,
    read_form,
    send_response,
    static_file,
    tag,
)
from a2c_smcp.console.pages import Translations, View, chosen_language, hidden, notice_page, words_in
from a2c_smcp.errors import BadRequest, NotAuthenticated, NotAuthorised, SMCPError
from a2c_smcp.server.app import SMCPApp
from a2c_smcp.server.auth import authorization
from a2c_smcp.server.auth.authentication import Handshake, agent_name
from a2c_smcp.server.auth.authorization import SCOPE, Client, GrantHolder, OAuthError, answer_to, digest
from a2c_smcp.server.auth.clients import Clients
from a2c_smcp.server.auth.grants import is_link
from a2c_smcp.server.transport.admission import Refusals
from a2c_smcp.web import Receive, Scope, Send, header

SIGN_IN_PATH = "/sign-in"
_RESOURCES = "/.well-known/oauth-protected-resource/mcp"
_METADATA = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")
PREFIXES = (SIGN_IN_PATH, _RESOURCES, *_METADATA)
"""The paths at which the application has to be mounted."""

_BRAND = "A2C Server"
_AUTHORIZE, _TOKEN, _REGISTER, _REVOKE, _LINKS = (
    f"{SIGN_IN_PATH}/{name}" for name in ("authorize", "token", "register", "revoke", "links")
)
_LARGEST = 64 * 1024
_CORS = [("access-control-allow-origin", "*")]
_PREFLIGHT = [*_CORS, ("access-control-allow-methods", "GET, POST"), ("access-control-allow-headers", "*")]
_SAFETY = [
    (name, value.replace("; form-action 'self'", "")) for name, value in SAFETY if name != "cross-origin-opener-policy"
]
"""As on all pages, but a form may end at a client, in the window that the client has opened."""
_STATUS = {"invalid_client": 401, "temporarily_unavailable": 429}

CHINESE: Translations = {
    "Sign in a client": "登录客户端",
    "Allow this client?": "允许此客户端？",
    "Client": "客户端",
    "Office": "房间",
    "Computers": "计算机",
    "Principal": "主体",
    "Goes back to": "返回到",
    "unverified name": "名称未经验证",
    "no name": "无名称",
    "none now": "目前没有",
    "a program on this computer": "这台计算机上的程序",
    "API key or one-time link": "API 密钥或一次性链接",
    "The owner of a computer gets a link from a2c-smcp key link. It works once, for ten minutes.": (
        "计算机的主人可用 a2c-smcp key link 获得链接。链接只能使用一次，十分钟内有效。"
    ),
    "Go on only if you have started this yourself.": "仅当这是您自己发起的操作时才继续。",
    "It may list and call the tools of these computers, and read their resources, as their owners permit.": (
        "在主人许可的范围内，它可以列出并调用这些计算机的工具，读取其资源。"
    ),
    "This holds until it is revoked, or was not used for 90 days.": "此授权在被撤销或 90 天未使用之前一直有效。",
    "Allow": "允许",
    "Deny": "拒绝",
    "This was decided already": "此请求已有决定",
    "Each request is decided once. Start again in your client.": "每个请求只能决定一次。请在客户端中重新开始。",
    "This has expired": "已过期",
    "Start again in your client.": "请在客户端中重新开始。",
    "This client cannot sign in": "此客户端无法登录",
    "Paste this page's address on the page that your client has opened.": "请将此页面的地址粘贴到客户端打开的页面中。",
    "Not valid for this office: the key or link is wrong, or the link was used already or has expired.": (
        "对此房间无效：密钥或链接有误，或者链接已使用过或已过期。"
    ),
}


class ClientSignedIn(Observed):
    """A person has signed in an MCP client. `domain` is what it has proved, its name what it says of itself."""

    office_id: str
    principal: str
    client: str
    domain: str
    address: str | None

    def facts(self) -> Facts:
        about = {"office": self.office_id, "principal": self.principal, "client": self.client}
        return known("signed in", **about, domain=self.domain or None, address=self.address)


class Identified(NamedTuple):
    """Who a person is, and the link that is used up when they allow something."""

    person: GrantHolder
    link: str = ""


Identify: TypeAlias = Callable[[str, str, Scope], Awaitable[Identified]]
"""Who has typed this, for this office: the way in of a person. Raises `SMCPError`."""


class _Shown(msgspec.Struct, frozen=True):
    """The sealed content of a form. With a `person`, they are who they say, and are asked for consent."""

    request: authorization.CodeRequest
    client: Client
    person: GrantHolder | None = None
    link: str = ""


class SignInPages:
    """An ASGI application, for a Server with the setting `sign_in`. `Admission` decides who a person is."""

    def __init__(self, app: SMCPApp, identify: Identify | None = None) -> None:
        assert app.grants, "this Server has no setting sign_in"
        self._app, self._grants = app, app.grants
        self._url, self._texts = app.grants.settings.public_url, app.grants.settings.page_text
        self._clients = Clients(app.grants)
        self._registrations = Refusals()
        self._identify = identify or self._identify_by_key_or_link
        self._forms: Mapping[str, Callable[[Mapping[str, str]], Awaitable[dict[str, Any]]]] = {
            _TOKEN: self._token,
            _REVOKE: self._revoke,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        try:
            response = await self._respond(path, scope, receive)
        except SMCPError as error:
            response = self._unavailable(scope, error) if path == _AUTHORIZE else _refused(error)
        await send_response(response, send, safety=_SAFETY)

    async def _respond(self, path: str, scope: Scope, receive: Receive) -> Response:
        """Raises `SMCPError`."""
        method = scope["method"]
        if method == "OPTIONS":
            return Response(204, headers=[*_PREFLIGHT])
        match method, path:
            case "GET", _ if path in _METADATA:
                return _json(self._metadata())
            case "GET", _ if path.startswith(f"{_RESOURCES}/"):
                return _json(self._resource(path.removeprefix(f"{_RESOURCES}/")))
            case "GET", _ if path.startswith(f"{SIGN_IN_PATH}/static/"):
                return static_file(path.rpartition("/")[2])
            case "GET", "/sign-in":
                text = "Paste this page's address on the page that your client has opened."
                return self._notice(self._view(scope), "Sign in a client", text, status=200)
            case "GET", _ if path == _AUTHORIZE:
                return await self._ask(scope)
            case "POST", _ if path == _AUTHORIZE:
                return await self._answer(scope, await read_form(receive))
            case "POST", _ if path == _REGISTER:
                return await self._register(scope, await _body(receive))
            case "POST", _ if path == _LINKS:
                return await self._new_link(scope, await _body(receive))
            case "POST", _ if path in self._forms:
                work = self._forms[path](_once(await read_form(receive)))
                return _json(await self._app.sessions.slowed(work, _address(scope) or ""))
        return Response(404, "there is no such page", "text/plain")

    # What clients read

    def _metadata(self) -> dict[str, Any]:
        """RFC 8414. Clients are public: PKCE, exact redirects and metadata documents identify them."""
        return {
            "issuer": self._url,
            "authorization_endpoint": f"{self._url}{_AUTHORIZE}",
            "token_endpoint": f"{self._url}{_TOKEN}",
            "registration_endpoint": f"{self._url}{_REGISTER}",
            "revocation_endpoint": f"{self._url}{_REVOKE}",
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "token_endpoint_auth_methods_supported": ["none"],
            "revocation_endpoint_auth_methods_supported": ["none"],
            "code_challenge_methods_supported": ["S256"],
            "scopes_supported": [SCOPE],
            "authorization_response_iss_parameter_supported": True,
            "client_id_metadata_document_supported": self._grants.settings.reads_documents,
        }

    def _resource(self, name: str) -> dict[str, Any]:
        """RFC 9728, of one office."""
        office = authorization.office_of(f"{self._url}/mcp/{name}", self._url)
        return {
            "resource": authorization.resource_of(office, self._url),
            "authorization_servers": [self._url],
            "scopes_supported": [SCOPE],
            "bearer_methods_supported": ["header"],
            "resource_name": f"Office {office}",
        }

    # What clients send

    async def _register(self, scope: Scope, metadata: object) -> Response:
        if self._registrations.delay(_address(scope) or "", time.monotonic()):
            raise OAuthError("temporarily_unavailable", "too many registrations, try again in a minute")
        client = await self._clients.register(metadata)
        about = {
            "client_id": client.id,
            "client_id_issued_at": int(time.time()),
            "redirect_uris": client.redirects,
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
            "scope": SCOPE,
        }
        return _json(about | ({"client_name": client.name} if client.name else {}), 201)

    async def _token(self, form: Mapping[str, str]) -> dict[str, Any]:
        kind, name = form.get("grant_type"), form.get("client_id", "")
        if not name.startswith("https://"):
            await self._clients.find(name)
        office = authorization.office_of(form["resource"], self._url) if form.get("resource") else None
        match kind:
            case "authorization_code":
                tokens = await self._grants.exchange(form, office)
            case "refresh_token":
                tokens = await self._grants.refreshed(form, office)
            case _:
                raise OAuthError("unsupported_grant_type", "grant_type: authorization_code and refresh_token are known")
        await self._clients.keep(name)
        lasts = int(authorization.ACCESS_LASTS)
        about = {"access_token": tokens.access, "token_type": "Bearer", "expires_in": lasts, "scope": SCOPE}
        return about | {"refresh_token": tokens.refresh}

    async def _revoke(self, form: Mapping[str, str]) -> dict[str, Any]:
        await self._grants.revoke_token(form.get("token", ""), form.get("client_id", ""))
        return {}

    # What people decide

    async def _ask(self, scope: Scope) -> Response:
        """The page for a request of a client; one that is wrong is shown, and told to a client on this machine."""
        view, query = self._view(scope), parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        name, redirect = (query.get(field, [""])[-1] for field in ("client_id", "redirect_uri"))
        try:
            given = _once(query)
            client = await self._app.sessions.slowed(self._clients.find(name), _address(scope) or "")
            if not authorization.may_return_to(client, redirect):
                raise OAuthError("invalid_request", "redirect_uri: is not one of this client")
        except SMCPError as error:
            return self._notice(view, "This client cannot sign in", error.message)
        try:
            request = authorization.request_of(given, client, self._url)
        except OAuthError as error:
            if not authorization.is_loopback_redirect(redirect):  # anybody registers: no link of ours leads to them
                return self._notice(view, "This client cannot sign in", error.message)
            facts = {"error": error.error, "error_description": error.message}
            return _leads(answer_to(redirect, given.get("state"), self._url, **facts))
        if await self._grants.is_decided(request):
            return self._decided(view)
        return await self._sign_in_page(view, _Shown(request, client))

    async def _answer(self, scope: Scope, form: Mapping[str, list[str]]) -> Response:
        """A decision, or the key or link before it."""
        view = self._view(scope)
        self._check_page_of_ours(scope)
        content = await self._grants.unsealed(form.get("shown", [""])[0])
        if content is None:
            return self._notice(view, "This has expired", "Start again in your client.")
        shown = msgspec.convert(content, _Shown)
        request, decision = shown.request, form.get("decision", [""])[0]
        if await self._grants.is_decided(request):
            return self._decided(view)
        if decision == "deny":
            if shown.person and not await self._grants.decide(request):  # nothing is kept for an unknown sender
                return self._decided(view)
            return _leads(answer_to(request.redirect, request.state, self._url, error="access_denied"))
        if shown.person is None:
            try:
                who = await self._identify(form.get("credential", [""])[0].strip(), request.office, scope)
            except (NotAuthenticated, NotAuthorised):
                return await self._sign_in_page(view, shown, is_wrong=True)
            return await self._consent_page(view, msgspec.structs.replace(shown, person=who.person, link=who.link))
        if decision != "allow" or not await self._grants.decide(request, shown.link):
            return self._decided(view)
        code = await self._grants.new_code(request, shown.client, shown.person)
        client, person = shown.client, shown.person
        seen = ClientSignedIn(request.office, person.id, client.name, client.domain, _address(scope))
        self._app.observation.report(seen)
        return _leads(answer_to(request.redirect, request.state, self._url, code=code))

    async def _identify_by_key_or_link(self, credential: str, office: str, scope: Scope) -> Identified:
        """Failures are rated as those of a CONNECT, and reported like them."""
        return await self._app.sessions.slowed(self._identified(credential, office, scope), _address(scope) or "")

    async def _identified(self, credential: str, office: str, scope: Scope) -> Identified:
        address, (_, has_place, code) = _address(scope), credential.rpartition("#")
        shown = code if has_place and is_link(code) else credential
        handshake = Handshake({"authorization": f"Bearer {shown}"}, "", address, scope["scheme"], _AUTHORIZE)
        with self._app.hub.admission.refusing(handshake):
            if is_link(shown) or not (shown.isascii() and shown.isprintable()):  # no header can hold it: it is no key
                link = await self._grants.link(shown)
                if link is None or link.office != office:
                    raise NotAuthenticated("the link is unknown, was used, has expired, or is for another office")
                return Identified(link.person, digest(shown))
        principal = await self._app.hub.admit(handshake)
        with self._app.hub.admission.refusing(handshake, principal):
            principal.check("agent", agent_name(principal), office)
        return Identified(GrantHolder.of(principal))

    async def _new_link(self, scope: Scope, body: object) -> Response:
        """A link for the holder of a key: it opens what the key opens, in one office."""
        principal = await self._app.authenticate(scope)
        office = str(body.get("office", "")) if isinstance(body, dict) else ""
        authorization.office_of(authorization.resource_of(office, self._url), self._url)
        principal.check("agent", agent_name(principal), office)
        return _json({"link": await self._grants.new_link(GrantHolder.of(principal), office)})

    def _check_page_of_ours(self, scope: Scope) -> None:
        """Raises `BadRequest` unless a form was sent by a page of this very address."""
        origin = header(scope, b"origin").lower()
        same = (self._url.lower(), f"{scope['scheme']}://{header(scope, b'host').lower()}")
        if origin not in same or header(scope, b"sec-fetch-site") not in ("", "same-origin"):
            raise BadRequest("only the page of this Server may send this")

    # Pages

    def _view(self, scope: Scope) -> View:
        request = Request.of(scope, SIGN_IN_PATH)
        language = chosen_language(request.preference("language"), request.header("accept-language"))
        translated = words_in(language, CHINESE)

        def words(english: str, /, **values: object) -> str:
            return self._texts[english] if english in self._texts else translated(english, **values)

        return View(words, language, "auto", SIGN_IN_PATH, "/authorize")

    async def _sign_in_page(self, view: View, shown: _Shown, *, is_wrong: bool = False) -> Response:
        words = view.words
        wrong = "Not valid for this office: the key or link is wrong, or the link was used already or has expired."
        field = tag("input", type="password", name="credential", autocomplete="off", required=True, autofocus=True)
        help_text = "The owner of a computer gets a link from a2c-smcp key link. It works once, for ten minutes."
        return await self._form(
            view,
            shown,
            "Sign in a client",
            tag("p", words(wrong), class_="note bad", role="alert") if is_wrong else None,
            _facts(view, shown),
            tag("p", words("Go on only if you have started this yourself."), class_="note"),
            tag("label", words("API key or one-time link"), field, class_="field"),
            tag("p", words(help_text), class_="help"),
            tag("button", words("Go on"), type="submit", class_="main"),
            status=403 if is_wrong else 200,
        )

    async def _consent_page(self, view: View, shown: _Shown) -> Response:
        words = view.words
        may = "It may list and call the tools of these computers, and read their resources, as their owners permit."
        office = await self._app.hub.directory.office(shown.request.office)
        return await self._form(
            view,
            shown,
            "Allow this client?",
            _facts(view, shown, [*office.computers]),
            tag("p", words(may)),
            tag("p", words("This holds until it is revoked, or was not used for 90 days.")),
            tag("button", words("Allow"), type="submit", name="decision", value="allow", class_="main"),
        )

    async def _form(self, view: View, shown: _Shown, title: str, *children: Child, status: int = 200) -> Response:
        sealed = await self._grants.sealed(msgspec.to_builtins(shown))
        deny = tag("button", view.words("Deny"), type="submit", name="decision", value="deny", formnovalidate=True)
        form = tag("form", hidden("shown", sealed), *children, " ", deny, method="post", action=_AUTHORIZE)
        return as_page(notice_page(view, _BRAND, title, form, has_script=False), status)

    def _notice(self, view: View, title: str, text: str, *, status: int = 400) -> Response:
        page = notice_page(view, _BRAND, title, tag("p", view.words(text)), has_script=False)
        return as_page(page, status)

    def _unavailable(self, scope: Scope, error: SMCPError) -> Response:
        return self._notice(self._view(scope), "This client cannot sign in", error.message, status=error.code)

    def _decided(self, view: View) -> Response:
        text = "Each request is decided once. Start again in your client."
        return self._notice(view, "This was decided already", text, status=409)


def _facts(view: View, shown: _Shown, computers: list[str] | None = None) -> Html:
    """Who asks for what. A name is the client's own claim; only a domain is proved."""
    words, client, redirect = view.words, shown.client, shown.request.redirect
    scheme = redirect.partition(":")[0]
    back = urlsplit(redirect).hostname if scheme == "https" else f"{scheme}:"
    if authorization.is_loopback_redirect(redirect):
        back = words("a program on this computer")
    unknown = tag("span", words("unverified name"), class_="state warn")
    proved = tag("strong", client.domain) if client.domain else unknown
    rows: list[tuple[str, Child]] = [
        ("Client", (proved, " ", client.name or words("no name"))),
        ("Goes back to", back),
        ("Office", tag("strong", shown.request.office)),
    ]
    if shown.person:
        rows += [("Principal", shown.person.id), ("Computers", ", ".join(computers or ()) or words("none now"))]
    return tag("dl", *(tag("div", tag("dt", words(name)), tag("dd", value)) for name, value in rows), class_="values")


def _address(scope: Scope) -> str | None:
    return scope["client"][0] if scope.get("client") else None


def _leads(address: str) -> Response:
    return Response(303, headers=[("location", address)])


def _json(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(status, json.dumps(body), "application/json", headers=[*_CORS])


def _refused(error: SMCPError) -> Response:
    """An error in the way of OAuth (RFC 6749 §5.2)."""
    name = error.error if isinstance(error, OAuthError) else "temporarily_unavailable" if error.code >= 500 else ""
    body = {"error": name or "invalid_request", "error_description": error.message}
    status = _STATUS.get(name) if isinstance(error, OAuthError) else error.code
    return _json(body, status or 400)


def _once(fields: Mapping[str, list[str]]) -> dict[str, str]:
    """The fields of a request. Raises `OAuthError` for one that comes twice: two readers could take different ones."""
    if twice := next((name for name, values in fields.items() if len(values) > 1), None):
        raise OAuthError("invalid_target" if twice == "resource" else "invalid_request", f"{twice[:40]}: comes twice")
    return {name: values[0] for name, values in fields.items()}


async def _body(receive: Receive) -> object:
    body, has_more = b"", True
    while has_more:
        message = await receive()
        if message["type"] != "http.request" or len(body) > _LARGEST:
            raise BadRequest("the body is incomplete, or too large")
        body, has_more = body + message.get("body", b""), message.get("more_body", False)
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise OAuthError("invalid_client_metadata", "the body must be JSON") from None
