"""The Server as an ASGI application: the one place where its parts are chosen and joined."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from a2c_smcp.audit.file import AuditFile
from a2c_smcp.errors import ConfigError, NotFound, SMCPError, Unavailable
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.server.admin.api import AdminAccess, AdminKeyRefused
from a2c_smcp.server.auth.api_keys import OperatorKeys
from a2c_smcp.server.auth.authentication import AllowAll, Handshake, Principal
from a2c_smcp.server.auth.grants import AccessGrants, KeptInFile, SignedIn, SignIn
from a2c_smcp.server.cluster.memory import SharedDirectory, as_shared
from a2c_smcp.server.cluster.proxy import NODE_HEADER, NOT_RUN_HEADER, ProxiedRequest, Proxy
from a2c_smcp.server.http_requests import (
    CONSOLE_PATH,
    CREDENTIALS,
    EXTENSION,
    FRONT_PAGE,
    NO_SUCH_PAGE,
    Headers,
    HttpRequest,
    HttpResponse,
    MountedRequest,
    Mounts,
    check_credentials,
    check_host,
    check_new_session,
    check_origin,
    json_response,
    refusal_response,
    scope_of,
    text_response,
)
from a2c_smcp.server.hub import Hub
from a2c_smcp.server.observation.happened import Observation
from a2c_smcp.server.observation.recording import CallMetrics, ServerAudit, record_call
from a2c_smcp.server.settings import Settings
from a2c_smcp.server.transport import asgi, sessions
from a2c_smcp.server.transport.admission import ArrivingBytes, client_address
from a2c_smcp.server.transport.session_channel import SessionChannel
from a2c_smcp.server.transport.sessions import Sessions
from a2c_smcp.telemetry import tracing
from a2c_smcp.telemetry.metrics import CONTENT_TYPE, count_refusal, merged, server_metrics
from a2c_smcp.web import ASGIApp, Receive, Scope, Send, header

if TYPE_CHECKING:
    from a2c_smcp.server.admin.operations import Operations


logger = logging.getLogger(__name__)

_ONLY = (
    "one that is revoked is refused until all processes are started again, with --redis for as long as the file has it"
)
_NOT_RELOADED = "the keys could not be read again, and the earlier ones stay in force: the log says why"
_LAST_READ_TIME = 0.5
_POLL_INTERVAL = 0.02


def create_app(settings: Settings | None = None) -> SMCPApp:
    """A Server as an ASGI application: any ASGI server can serve it, and other applications can mount it.

    Without settings it admits every client, and keeps its offices in memory. Raises `ConfigError` for settings that do
    not go together, and for an audit file that cannot be used.
    """
    return SMCPApp(settings or Settings())


class SMCPApp:
    """Serves `/socket.io/`, `/healthz`, `/readyz`, what is mounted and, if asked for, `/metrics` and `/admin/api/`.

    It is an ASGI application; the program's own web server calls `respond` and `upgrade`.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._shared = as_shared(settings.directory)
        self.metrics = server_metrics(self._shared.node if self._shared else None)
        self.metrics.watch("a2c_ready", lambda: self._readiness()["status"] == "ready")
        self.metrics.watch("a2c_workers", lambda: settings.workers.count if settings.workers else 1)
        auth = self._auth = settings.auth or AllowAll()
        self.grants: AccessGrants | None = None
        self._signed_in: SignedIn | None = None
        if settings.sign_in:
            auth = self._sign_in(settings.sign_in)
        operators = _operators(settings)
        self.hub = Hub(
            AdminKeyRefused(auth, operators) if operators else auth,
            directory=settings.directory,
            limits=settings.limits,
            require_version=settings.require_version,
            legacy_notices=settings.legacy_notices,
            metrics=self.metrics,
            origins=settings.origins,
            freezes_file=settings.freezes,
        )
        self.metrics.watch("a2c_keys_failing", lambda: bool(self._trouble))
        self.observation = self.hub.observation
        if settings.metrics:
            self.observation.record(CallMetrics(self.metrics))
            self.metrics.before_reading(self.observation.settle)
        _trace_calls(self.observation)
        self.proxy = Proxy(self._shared, settings.limits) if self._shared else None
        self.sessions = Sessions(self.hub, settings.limits, self.metrics, self._shared.node if self._shared else None)
        self._audit: ServerAudit | None = None
        if settings.audit:
            file = AuditFile(settings.audit)
            self._audit = ServerAudit(file, self.hub.connections, with_arguments=settings.audit_arguments)
            self.metrics.watch("a2c_audit_failing", lambda: bool(file.trouble))
            self.metrics.watch("a2c_audit_lost_total", lambda: file.lost)
            self.metrics.watch("a2c_audit_gone_total", lambda: file.gone)
            self.observation.record(self._audit)
            self.observation.at_once = True
        self._arriving = ArrivingBytes(settings.limits.arriving_bytes)
        self._origins = frozenset(settings.cors_origins)
        self._mounts = Mounts()
        self.operations: Operations | None = None
        self.admin_access: AdminAccess | None = None
        if operators:
            self._serve_operators(operators)
        self._starting: asyncio.Task[None] | None = None
        self._is_started = False
        self._is_draining = False

    @property
    def is_shared(self) -> bool:
        """True if this Server is one of several nodes."""
        return self._shared is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await asgi.serve_websocket(self, self.proxy, self.settings.limits, scope, receive, send)
        else:
            await asgi.serve_http(self, self.settings.limits, self._arriving, scope, receive, send)

    def gather_audit(self) -> Callable[[], None] | None:
        """Hold entries of the audit file back, and return the function that writes them; `None` without an audit file.

        A web server that calls it before each write to a socket saves a system call for each entry.
        """
        if self._audit is None:
            return None
        self.observation.at_once = False
        return self.observation.settle

    def mount(self, app: ASGIApp, *prefixes: str, has_cors: bool = True) -> None:
        """Serves an ASGI application at these paths, such as `/mcp`, and below. Its lifespan is that of the Server.

        Host names of its requests are checked as all others, and origins if it `has_cors`; without, no page of another
        origin may read its responses. It authenticates requests with `authenticate`.
        """
        self._mounts.add(prefixes, app, has_cors=has_cors)

    def _sign_in(self, settings: SignIn) -> SignedIn:
        """Raises `ConfigError`."""
        if self.settings.auth is None:
            raise ConfigError("to sign in, people need keys or tokens of this Server: give it some")
        is_in_store = self._shared is not None and settings.file is None
        kept = self._shared if self._shared and is_in_store else KeptInFile(settings.file)
        self.grants = AccessGrants(settings, kept, self._end_grant)
        self._signed_in = SignedIn(self._auth, self.grants)
        return self._signed_in

    async def _end_grant(self, credential: str) -> None:
        self.hub.auth.withhold(credential)
        self.hub.recheck()
        if self._shared:
            await self._shared.withhold(credential)

    @property
    def _trouble(self) -> str:
        """The reason why keys could not be read again; empty if they could."""
        return self._auth.trouble or (self.admin_access.keys.trouble if self.admin_access else "")

    def _serve_operators(self, keys: OperatorKeys) -> None:
        from a2c_smcp.server.admin.api import ADMIN_PATH, AdminAPI
        from a2c_smcp.server.admin.operations import Operations

        self.operations = Operations(self.hub, self.settings.auth, keys, self.grants)
        self.admin_access = AdminAccess(keys, self.sessions.slowed, self.hub.refuse_handshake)
        self.mount(AdminAPI(self.operations, self.admin_access), ADMIN_PATH, has_cors=False)
        if why := self.operations.unwritable:
            logger.warning("keys cannot be changed here: their file cannot be written: %s (%s)", why, _ONLY)

    async def start(self) -> None:
        """Starts mounted applications, and joins the nodes of a shared directory, once. The first request does so too.

        Raises `Unavailable`, and may be called again then.
        """
        await self._mounts.start()
        if self._shared is None or self._is_started:
            return
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start(self._shared))
        await asyncio.shield(self._starting)

    async def reload(self) -> None:
        """Reads the credentials again, and disconnects clients that they no longer admit."""
        self.hub.reload()

    async def drain(self) -> None:
        """Wait for calls in flight, refuse the rest, then ends mounted applications and closes every session.

        If there are other nodes, clients without a call in flight are sent there at once.
        """
        self._is_draining = True
        calls = asyncio.ensure_future(self.hub.drain())
        try:
            while self._shared and not calls.done():
                for channel in self.sessions:
                    if not (channel.unread or (channel.connection and self.hub.is_engaged(channel.connection))):
                        channel.close()
                await asyncio.wait([calls], timeout=_POLL_INTERVAL)
            await calls
        except asyncio.CancelledError:
            await cancel_and_wait(calls)  # which answers those that are left
            raise
        await self._wait_until_read()
        await self.end_mounts()
        if self.proxy:
            self.proxy.drain()
        for channel in self.sessions:
            channel.close()

    async def end_calls(self) -> None:
        """Refuses the calls in flight, such as after a second signal, and gives clients a moment to read that."""
        self.hub.end_calls()
        await self._wait_until_read()

    async def end_mounts(self) -> None:
        """Ends mounted applications, and the responses that they have begun."""
        await self._mounts.stop()

    async def close(self) -> None:
        """Ends every session and everything that runs for this Server."""
        await self.end_mounts()
        await self.sessions.close()
        if self._starting:
            await cancel_and_wait(self._starting)
        if self.proxy:
            await self.proxy.close()
        await self.hub.close()
        if self._audit:
            self.observation.drop(self._audit)
            self._audit.close()

    # Requests

    def is_mounted(self, path: str) -> bool:
        return self._mounts.find(path) is not None

    async def respond(self, request: HttpRequest) -> HttpResponse | MountedRequest:
        """Answers a request that is no websocket, or names the mounted application that does."""
        try:
            if request.path != "/socket.io":
                app = self._mounts.find(request.path)
                return await (self._mounted(request, app) if app else self._status_page(request))
            request, elsewhere = await self._admit(request)
            if self.proxy and elsewhere:
                return await self.proxy.respond(elsewhere, request)
            headers = check_origin(request, self._origins)
            return await sessions.respond(request, self.sessions, headers)
        except SMCPError as error:
            return self._refused(request, error)

    async def upgrade(self, request: HttpRequest) -> HttpResponse | SessionChannel | ProxiedRequest:
        """A refusal, the session that a websocket belongs to, or the request for the node that has its session."""
        try:
            if request.path != "/socket.io":
                raise NotFound("this server has websockets at /socket.io/")
            request, elsewhere = await self._admit(request)
            if self.proxy and elsewhere:
                return await self.proxy.proxied(elsewhere, request)
            check_origin(request, self._origins)
            return sessions.open_websocket(request, self.sessions)
        except SMCPError as error:
            return self._refused(request, error)

    async def authenticate(self, scope: Scope) -> Principal:
        """Return the sender of a request to a mounted app. Raises `NotAuthenticated`, late after many wrong keys."""
        client = scope["client"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        query, address = scope["query_string"].decode("latin-1"), client[0] if client else None
        principal = await self.sessions.admit(Handshake(headers, query, address, scope["scheme"], scope["path"]))
        scope["extensions"][EXTENSION]["trust"](principal.id)
        return principal

    @property
    def sign_in_url(self) -> str | None:
        """Where people sign in their MCP clients; `None` if they cannot."""
        return self.settings.sign_in.public_url if self.settings.sign_in else None

    def credentials_of(self, scope: Scope, principal: Principal, office: str) -> dict[str, str]:
        """The headers with which a bridge in this process connects for the sender of a request.

        An access token is not accepted there, so a pass takes its place.
        """
        shown = {name.decode(): header(scope, name) for name in CREDENTIALS if header(scope, name)}
        if self._signed_in and self._signed_in.is_of_grant(principal):
            return {"authorization": f"Bearer {self._signed_in.pass_for(principal, office)}"}
        return shown

    def visit(self, principal: Principal, end: Callable[[], None]) -> AbstractContextManager[None]:
        """Encloses the rest of a request after `authenticate`. `end` is called if its sender is no longer admitted."""
        return self.hub.visit(principal, end)

    async def _mounted(self, request: HttpRequest, app: ASGIApp) -> HttpResponse | MountedRequest:
        """The request for a mounted application, or the answer to what a web page may ask. Raises `SMCPError`."""
        await self.start()
        client = client_address(request, self.settings.trusted_proxies)
        request, is_from_node = replace(request, client=client), False
        if self.proxy:
            request, is_from_node = await self.proxy.as_made(request)
        check_credentials(request)
        headers: Headers = ()
        if not is_from_node:  # else the other node has checked them, and adds the headers
            check_host(request, self.settings.trusted_hosts)
            headers = check_origin(request, self._origins) if self._mounts.has_cors(app) else ()
        if headers and request.method == "OPTIONS" and request.header(b"access-control-request-method"):
            return text_response(200, b"OK", headers)
        if self._is_draining:
            raise Unavailable("the server is shutting down")
        scope = scope_of(request)
        scope["extensions"] = {EXTENSION: {"trust": request.body.trust, "is_from_node": is_from_node}}
        return MountedRequest(app, scope, headers)

    async def _admit(self, request: HttpRequest) -> tuple[HttpRequest, str | None]:
        """The request of a client that may be served, and the other node that has its session. Raises `SMCPError`."""
        await self.start()
        request = replace(request, client=client_address(request, self.settings.trusted_proxies))
        elsewhere = None
        if self.proxy:
            request, elsewhere = await self.proxy.find(request)
        check_host(request, self.settings.trusted_hosts)
        if elsewhere:
            self.metrics.count("a2c_passed_on_total")
        elif request.parameter("sid") is None and request.method != "OPTIONS":
            check_new_session(request, self.settings.require_version, is_draining=self._is_draining)
        return request, elsewhere

    def _refused(self, request: HttpRequest, error: SMCPError) -> HttpResponse:
        if request.path == "/socket.io":
            client = client_address(request, self.settings.trusted_proxies)
            self.hub.refuse_handshake(client[0] if client else None, error)
        else:
            count_refusal(self.metrics, error)
        refusal = refusal_response(error)
        not_run = [(NOT_RUN_HEADER, b"1")] if self.proxy and request.header(NODE_HEADER) else []
        return refusal._replace(headers=[*refusal.headers, *not_run])

    async def _status_page(self, request: HttpRequest) -> HttpResponse:
        """Answers the pages for operators. Raises `NotFound`."""
        is_from_node = self.proxy is not None and await self.proxy.is_from_node(request)
        if not is_from_node:
            check_host(request, self.settings.trusted_hosts)
        match request.path:
            case "" if "text/html" in request.header(b"accept"):
                console = HttpResponse(303, ((b"location", f"{CONSOLE_PATH}/".encode()),), b"")
                return console if self.is_mounted(CONSOLE_PATH) else FRONT_PAGE
            case "" if request.method in ("GET", "HEAD"):
                return json_response(200, self._about())
            case "/healthz":
                return json_response(200, self._health())
            case "/readyz":
                readiness = self._readiness()
                return json_response(200 if readiness["status"] == "ready" else 503, readiness)
            case "/metrics" if self.settings.metrics:
                text = self.metrics.render() if is_from_node else await self._all_metrics()
                return HttpResponse(200, ((b"content-type", CONTENT_TYPE.encode()),), text.encode())
        raise NotFound(f"{NO_SUCH_PAGE}, for MCP clients /mcp/<office>" if self.is_mounted("/mcp") else NO_SUCH_PAGE)

    async def _all_metrics(self) -> str:
        """The metrics of this process and of the workers that share its port: a scrape reaches any one of them."""
        own, workers = self.metrics.render(), self.settings.workers
        if not (self.proxy and workers):
            return own
        try:
            pages = await self.proxy.pages("/metrics", workers.has)
        except Unavailable:
            return own
        down = "".join(f'a2c_node_up{{node="{node}"}} 0\n' for node, page in pages.items() if page is None)
        return merged([own, *(page.decode() for page in pages.values() if page), f"# HELP a2c_node_up\n{down}"])

    def _about(self) -> dict[str, str]:
        """Tells programs what this is, and where to go on."""
        mounted = {"mcp": "/mcp/<office>", "console": f"{CONSOLE_PATH}/"}
        more = {name: path for name, path in mounted.items() if self.is_mounted(path.partition("<")[0].rstrip("/"))}
        return {"server": "a2c-smcp", "socket.io": "/socket.io/", "health": "/healthz", "ready": "/readyz", **more}

    def _health(self) -> dict[str, str]:
        """The faults, beside the status. This page asks for no key: the log names files and entries."""
        audit = self._audit.file.trouble if self._audit else ""
        keys = _NOT_RELOADED if self._trouble else ""
        return {"status": "ok", **({"audit": audit} if audit else {}), **({"keys": keys} if keys else {})}

    def _readiness(self) -> dict[str, str]:
        """Return if new clients may come here, and which of several nodes this is."""
        if self._is_draining:
            status = "draining"
        else:
            status = "ready" if self._shared is None or self._shared.is_ready else "degraded"
        if self._shared is None:
            return {"status": status}
        refusal = {"reason": self._shared.refusal} if self._shared.refusal else {}
        return {"status": status, "node": self._shared.node, **refusal}

    # The end

    async def _wait_until_read(self) -> None:
        """Gives clients a moment to read the last packets: a polling client has to fetch them."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + _LAST_READ_TIME
        while clock() < deadline:
            await asyncio.sleep(_POLL_INTERVAL)
            if not any(channel.unread for channel in self.sessions):
                return

    async def _start(self, directory: SharedDirectory) -> None:
        await directory.start()
        self._is_started = True

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            try:
                await (self.close if message["type"] == "lifespan.shutdown" else self.start)()
            except SMCPError as error:
                await send({"type": f"{message['type']}.failed", "message": str(error)})
                return
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return


def _operators(settings: Settings) -> OperatorKeys | None:
    has_keys = settings.admin_key or settings.admin_keys_file
    return OperatorKeys(settings.admin_key, settings.admin_keys_file) if has_keys else None


def _trace_calls(observation: Observation) -> None:
    """Makes spans of calls from the moment on that there is a tracer provider.

    A program may set one after it has made its Server. It is looked for whenever a client connects or joins, so that
    without one a call costs nothing.
    """

    def look(_: object = None) -> None:
        if tracing.is_on():
            observation.remove(look)
            observation.add(record_call, often=True)

    observation.add(look)
    look()
