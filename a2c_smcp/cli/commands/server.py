"""`a2c-smcp server`: run the Server, the signalling hub between agents and computers."""

from __future__ import annotations

import ipaddress
import logging
import ssl
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from a2c_smcp.cli import logs
from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.cli.options import (
    SHORTEST_KEY,
    WITHDRAW_AFTER,
    WITHDRAW_HELP,
    AuditOptions,
    server_variable,
    takes_options,
    unused_variables,
)
from a2c_smcp.cli.serving.mounts import DEFAULT_IDLE, MCPOptions, OperatorOptions, SignInOptions, operator_options
from a2c_smcp.cli.serving.node import (
    REDIS_HELP,
    ListenAddress,
    NodeIdentity,
    WorkerSettings,
    check_node_url,
    check_url,
    serve,
    serve_as_worker,
)
from a2c_smcp.cli.serving.workers import check_worker_urls, supervise
from a2c_smcp.device_events import Sealing
from a2c_smcp.errors import ConfigError, SMCPError
from a2c_smcp.loops import run_program
from a2c_smcp.protocol.names import accept
from a2c_smcp.server.auth.api_keys import DefaultAuthenticationProvider, new_key
from a2c_smcp.server.auth.authentication import AuthenticationProvider, checked_origin
from a2c_smcp.server.auth.jwt import JWTAuthenticationProvider
from a2c_smcp.server.cluster.memory import check_name, new_name
from a2c_smcp.server.settings import Limits, Network, Settings
from a2c_smcp.web import is_loopback

logger = logging.getLogger(__name__)

_HERE = "where clients do"
_OF_KEYS = "Correct that; `a2c-smcp key --help` describes keys and the files that hold them."
_OF_TOKENS = "Correct that; `a2c-smcp server --help` describes the options for tokens."
_AS_LISTENED = "where it listens, on this machine"
_OPTIONS: list[str] = []


def _option(panel: str, variable: str, text: str, **more: Any) -> Any:
    flag = f"--{variable.lower().replace('_', '-')}"
    _OPTIONS.append(flag)
    return typer.Option(
        flag,
        envvar=server_variable(flag),
        help=text,
        rich_help_panel=panel,
        show_envvar=False,
        **more,
    )


_connections = partial(_option, "Connections")
_admission = partial(_option, "Authentication")
_mcp = partial(_option, "MCP clients")
_nodes = partial(_option, "Many nodes")
_logging = partial(_option, "Logs and numbers")


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Where clients connect, and what they may send."""

    host: Annotated[str, _connections("HOST", "Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, _connections("PORT", "Port to listen on; 0 takes a free one.", min=0, max=65535)] = 7000
    tls_cert: Annotated[Path | None, _connections("TLS_CERT", "Certificate chain (PEM).")] = None
    tls_key: Annotated[Path | None, _connections("TLS_KEY", "Its private key (PEM).")] = None
    cors_origin: Annotated[
        list[str] | None, _connections("CORS_ORIGIN", "Web origin that may connect from a browser; repeat for more.")
    ] = None
    max_message: Annotated[int, _connections("MAX_MESSAGE", "Largest message in bytes.", min=1024)] = (
        Limits().max_message
    )
    require_version: Annotated[
        str | None, _connections("REQUIRE_VERSION", "Only clients of this protocol version, such as 0.4.")
    ] = None
    legacy_notices: Annotated[
        bool, _connections("LEGACY_NOTICES", "Send notices also under their older names, to every client.")
    ] = False
    trusted_proxy: Annotated[
        list[str] | None,
        _connections(
            "TRUSTED_PROXY", "Network (CIDR) of proxies whose X-Forwarded-For names the client; repeat for more."
        ),
    ] = None

    def address(self) -> ListenAddress:
        return ListenAddress(host=self.host, port=self.port, tls_cert=self.tls_cert, tls_key=self.tls_key)

    def networks(self) -> tuple[Network, ...]:
        """The networks of trusted proxies. Raises `WrongUse`."""
        try:
            return tuple(ipaddress.ip_network(network) for network in self.trusted_proxy or ())
        except ValueError as error:
            raise WrongUse(f"--trusted-proxy: {error}", "Write an address or a network, such as 10.0.0.0/8.") from None

    def version(self) -> str | None:
        """The required version. Raises `WrongUse`."""
        try:
            accept(self.require_version)
        except SMCPError:
            what = f"--require-version: {self.require_version!r} is no version"
            raise WrongUse(what, "Write 0.4 or 0.4.2.") from None
        return self.require_version


@dataclass(frozen=True, kw_only=True)
class AdmissionOptions:
    """Who is admitted: keys, tokens, operators."""

    origin: Annotated[
        list[str] | None,
        _admission(
            "ORIGIN",
            "URL at which clients reach this Server; keys bound to a device hold only there. Repeat for more.",
            show_default="loopback names",
        ),
    ] = None
    api_key: Annotated[list[str] | None, _admission("API_KEY", "API key that may do anything; repeat for more.")] = None
    keys_file: Annotated[
        Path | None, _admission("KEYS_FILE", "Keys with their offices, roles and names: see `a2c-smcp key --help`.")
    ] = None
    jwt_secret: Annotated[str | None, _admission("JWT_SECRET", "Shared secret of JSON Web Tokens.")] = None
    jwt_key_file: Annotated[Path | None, _admission("JWT_KEY_FILE", "Public key of their issuer (PEM).")] = None
    jwt_jwks_file: Annotated[Path | None, _admission("JWT_JWKS_FILE", "Public keys of their issuer (JWKS).")] = None
    jwt_algorithm: Annotated[
        list[str] | None, _admission("JWT_ALGORITHM", "Algorithm to accept, such as RS256; repeat for more.")
    ] = None
    jwt_issuer: Annotated[str | None, _admission("JWT_ISSUER", "Issuer that tokens must have.")] = None
    jwt_audience: Annotated[str | None, _admission("JWT_AUDIENCE", "Audience that tokens must have.")] = None
    admin_key: Annotated[
        str | None,
        _admission("ADMIN_KEY", "Key of operators: serve their interface at /admin/api. It is no key for clients."),
    ] = None
    admin_keys_file: Annotated[
        Path | None, _admission("ADMIN_KEYS_FILE", "Admin keys of viewers and operators: see `a2c-smcp key --help`.")
    ] = None
    console: Annotated[
        bool, _admission("CONSOLE", "Serve pages for operators at /console/, who sign in with an admin key.")
    ] = False
    insecure: Annotated[bool, _admission("INSECURE", "Listen beyond this machine without authentication.")] = False

    def __post_init__(self) -> None:
        """Raises `WrongUse` for options that do not go together."""
        if self._tokens and (self.api_key or self.keys_file):
            raise WrongUse("API keys and JSON Web Tokens do not go together", "Give either, not both.")
        if not self._tokens and (self.jwt_algorithm or self.jwt_issuer or self.jwt_audience):
            raise WrongUse(
                "--jwt-algorithm, --jwt-issuer and --jwt-audience have no meaning without a key",
                "Give --jwt-secret, --jwt-key-file or --jwt-jwks-file too.",
            )

    @property
    def _tokens(self) -> dict[str, Any]:
        sources = {"secret": self.jwt_secret, "key_file": self.jwt_key_file, "jwks_file": self.jwt_jwks_file}
        return {name: value for name, value in sources.items() if value is not None}

    def provider(self) -> AuthenticationProvider | None:
        """The authentication that the options describe; `None` if anybody may connect. Raises `WrongUse`."""
        try:
            return self._of_tokens() if self._tokens else self._of_keys()
        except ValueError as error:
            raise WrongUse(str(error), _OF_TOKENS if self._tokens else _OF_KEYS) from None

    def _of_tokens(self) -> AuthenticationProvider:
        return JWTAuthenticationProvider(
            **self._tokens,
            algorithms=self.jwt_algorithm or ([] if self.jwt_secret is None else ["HS256"]),
            issuer=self.jwt_issuer,
            audience=self.jwt_audience,
        )

    def _of_keys(self) -> AuthenticationProvider | None:
        if any(0 < len(key) < SHORTEST_KEY for key in self.api_key or ()):
            raise WrongUse(
                f"An API key has fewer than {SHORTEST_KEY} characters, and can be guessed",
                f"Here is a new one that you can use: {new_key()}",
            )
        has_keys = self.api_key or self.keys_file
        return DefaultAuthenticationProvider(self.api_key or [], self.keys_file) if has_keys else None

    def origins(self) -> tuple[str, ...]:
        """Raises `WrongUse`."""
        try:
            return tuple(map(checked_origin, self.origin or ()))
        except ConfigError as error:
            raise WrongUse(f"--origin: {error.about}", "Write https://HOST, or http://127.0.0.1:PORT.") from None


@dataclass(frozen=True, kw_only=True)
class MCPClientOptions:
    """Offices as MCP servers."""

    mcp: Annotated[
        bool,
        _mcp("MCP", "Serve each office as an MCP server at /mcp/OFFICE, with the client's own key as bearer."),
    ] = False
    mcp_idle: Annotated[
        int, _mcp("MCP_IDLE", "Seconds after its last request until an MCP client leaves the office.", min=1)
    ] = DEFAULT_IDLE
    mcp_withdraw_after: Annotated[int, _mcp("MCP_WITHDRAW_AFTER", WITHDRAW_HELP, min=1)] = WITHDRAW_AFTER
    sign_in: Annotated[
        bool, _mcp("SIGN_IN", "Let people sign in their MCP clients on a page of this Server, with a key or a link.")
    ] = False
    public_url: Annotated[
        str | None,
        _mcp(
            "PUBLIC_URL",
            "URL at which MCP clients reach this Server to sign in.",
            show_default=_AS_LISTENED,
        ),
    ] = None
    client_host: Annotated[
        list[str] | None,
        _mcp("CLIENT_HOST", "Host in a private network that may describe MCP clients; repeat for more."),
    ] = None
    no_client_documents: Annotated[
        bool,
        _mcp("NO_CLIENT_DOCUMENTS", "Read nothing of MCP clients at their makers' sites: they register here instead."),
    ] = False
    card: Annotated[
        bool, _mcp("CARD", "Tell programs without a key how offices are reached, at /.well-known/mcp/server-card.json.")
    ] = False
    mcp_e2e: Annotated[
        Sealing, _mcp("MCP_E2E", "Seal calls of MCP clients from this Server on, for computers that require it.")
    ] = "off"

    def sign_in_options(self, admission: AdmissionOptions, host: str, redis: str | None) -> SignInOptions | None:
        """The options of sign-in; `None` if nobody can sign in. Raises `WrongUse`."""
        if not self.sign_in:
            if self.public_url or self.client_host:
                raise WrongUse("--public-url and --client-host have no meaning without --sign-in", "Give it too.")
            return None
        if not self.mcp:
            raise WrongUse("--sign-in has no meaning without --mcp", "Give --mcp too.")
        if admission.provider() is None:
            raise WrongUse("--sign-in has no meaning without keys or tokens", "Give --keys-file or --api-key.")
        if self.public_url is None and not is_loopback(host):
            raise WrongUse(
                "--sign-in needs the URL at which MCP clients reach this Server",
                "Give it with --public-url, such as https://hub.example.com.",
            )
        file = admission.keys_file.with_suffix(".grants.json") if admission.keys_file else None
        options = SignInOptions(
            public_url=self.public_url,
            file=file,
            is_in_store=bool(redis),
            hosts=frozenset(self.client_host or ()),
            reads_documents=not self.no_client_documents,
        )
        if self.public_url:
            options.at(self.public_url)
        return options

    def seats(self, issuer: str | None, sign_in: SignInOptions | None) -> MCPOptions:
        return MCPOptions(
            idle=self.mcp_idle,
            withdraw_after=self.mcp_withdraw_after,
            issuer=issuer,
            e2e=self.mcp_e2e,
            sign_in=sign_in,
            has_card=self.card,
        )


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """This node among many."""

    redis: Annotated[str | None, _nodes("REDIS", REDIS_HELP)] = None
    node: Annotated[str | None, _nodes("NODE", "Name of this node, unlike any other's.", show_default="a new one")] = (
        None
    )
    node_url: Annotated[
        str | None,
        _nodes("NODE_URL", "Where other nodes reach this one; with --workers, from which port on.", show_default=_HERE),
    ] = None
    workers: Annotated[
        int | None, _nodes("WORKERS", "Processes on this port; without --redis they have a Valkey of their own.", min=1)
    ] = None

    def identity(self, address: ListenAddress) -> NodeIdentity | None:
        """The name and the URL of this node; `None` for a Server alone. Raises `WrongUse`."""
        if self.redis is None and self.workers is None:
            if self.node or self.node_url:
                raise WrongUse(
                    "--node and --node-url have no meaning for a single Server", "Give --redis or --workers too."
                )
            return None
        try:
            name = check_name(new_name() if self.node is None else self.node)
        except ConfigError as error:
            raise WrongUse(f"--node: {error.about}", "Choose another.") from None
        identity = NodeIdentity(redis=self.redis or "", node=name, url=self.node_url)
        if self.redis is not None:
            check_url(self.redis)
        if self.workers:
            check_worker_urls(identity, self.workers)
        else:
            check_node_url(self.node_url, address, identity.redis)
        return identity


@dataclass(frozen=True, kw_only=True)
class ServerAuditOptions(AuditOptions):
    """The audit file of a Server."""

    audit: Annotated[
        Path | None, _logging("AUDIT", "Record who did what in this file, see `a2c-smcp audit`.", metavar="FILE")
    ] = None
    audit_arguments: Annotated[
        bool, _logging("AUDIT_ARGUMENTS", "Record the arguments of calls as they are, not as a keyed hash.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """Logs, the audit file and metrics."""

    log_level: Annotated[logs.LogLevel, _logging("LOG_LEVEL", "How much to log.")] = "info"
    log_json: Annotated[bool, _logging("LOG_JSON", "Log as JSON lines.")] = False
    audit: ServerAuditOptions
    metrics: Annotated[bool, _logging("METRICS", "Serve metrics for Prometheus at /metrics, without a key.")] = False


@takes_options
def server(
    connections: ConnectionOptions,
    admission: AdmissionOptions,
    mcp: MCPClientOptions,
    nodes: NodeOptions,
    records: RecordOptions,
) -> None:
    """Run the Server: the signalling hub between agents and computers.

    Each option can also be given in the environment, as A2C_SERVER_ and its name: A2C_SERVER_PORT, A2C_SERVER_API_KEY,
    … SIGTERM and Ctrl-C let calls in flight finish, SIGHUP reads key files again. With --redis it is one node of many,
    which share all offices; with --workers it runs several nodes in processes of their own. With --mcp any MCP client
    that has a key is an agent, at any node: give all of them --mcp.

    Examples:

    \b
    a2c-smcp server
    a2c-smcp server --port 8000 --api-key "$KEY"
    a2c-smcp server --host 0.0.0.0 --keys-file keys.json --tls-cert cert.pem --tls-key key.pem
    a2c-smcp server --jwt-jwks-file jwks.json --jwt-algorithm RS256 --jwt-issuer https://id.example
    A2C_SERVER_REDIS="$REDIS" a2c-smcp server --node north --node-url http://10.0.0.5:7000
    a2c-smcp server --workers 4
    a2c-smcp server --keys-file keys.json --mcp
    a2c-smcp server --keys-file keys.json --audit audit.jsonl
    A2C_SERVER_ADMIN_KEY="$ADMIN_KEY" a2c-smcp server --keys-file keys.json --console
    """
    worker = WorkerSettings.from_environment()
    logs.queue_stderr()
    logs.set_up(records.log_level, as_json=records.log_json)
    if mcp.card and not mcp.mcp:
        raise WrongUse("--card has no meaning without --mcp", "Give --mcp too.")
    address = connections.address()
    identity = nodes.identity(address)
    sign_in = mcp.sign_in_options(admission, address.host, nodes.redis)
    if node := worker or identity:
        logs.set_up(records.log_level, as_json=records.log_json, node=node.node)
    if not worker and (unused := unused_variables(_OPTIONS)):
        logger.warning("%s", unused)
    operators = operator_options(
        admission.admin_key,
        admission.admin_keys_file,
        admission.api_key or (),
        console=admission.console,
        host=address.host,
        is_shared=bool(node),
    )
    settings = _settings(connections, admission, records, operators)
    seats = mcp.seats(admission.jwt_issuer, sign_in) if mcp.mcp else None
    if worker:
        run_program(serve_as_worker(settings, address, worker, operators, seats))
    elif identity and nodes.workers:
        run_program(supervise(settings, address, nodes.workers, identity, has_mcp=mcp.mcp))
    else:
        run_program(serve(settings, address, identity, seats, operators))


def _settings(
    connections: ConnectionOptions, admission: AdmissionOptions, records: RecordOptions, operators: OperatorOptions
) -> Settings:
    """Raises `WrongUse`."""
    auth = admission.provider()
    if not (auth or admission.insecure or is_loopback(connections.host)):
        raise WrongUse(
            f"{connections.host} can be reached from other machines, and no key would be needed",
            "Give --api-key, --keys-file or --jwt-…, or --insecure if that is what you want.",
        )
    _check_tls(connections.tls_cert, connections.tls_key)
    return Settings(
        auth=auth,
        limits=Limits(max_message=connections.max_message),
        require_version=connections.version(),
        cors_origins=tuple(connections.cors_origin or ()),
        trusted_hosts=None if auth or admission.insecure else frozenset(),
        legacy_notices=connections.legacy_notices,
        metrics=records.metrics,
        audit=records.audit.audit,
        audit_arguments=records.audit.audit_arguments,
        trusted_proxies=connections.networks(),
        origins=admission.origins(),
        admin_key=operators.key,
        admin_keys_file=operators.file,
    )


def _check_tls(cert: Path | None, key: Path | None) -> None:
    if (cert is None) != (key is None):
        raise WrongUse("--tls-cert and --tls-key go together", "Give both, or neither.")
    if not (cert and key):
        return
    try:
        for path in (cert, key):
            path.open("rb").close()
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: "")
    except ssl.SSLError as error:
        what = f"{cert} and {key} do not go together: {error.reason or error.strerror}"
        raise WrongUse(
            what, "Give a certificate and its private key, in PEM format and without a passphrase."
        ) from None
    except OSError as error:
        raise WrongUse(f"{path}: cannot be read: {error.strerror}", "Name a file that this user may read.") from None
