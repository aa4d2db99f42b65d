"""`a2c-smcp server`: run the Server, the signalling hub between agents and computers."""

from __future__ import annotations

import ipaddress
import logging
import ssl
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from a2c_smcp.cli import logs
from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.cli.options import E2E, SHORTEST_KEY, audit_settings, server_variable, unused_variables
from a2c_smcp.cli.serving.mcp import DEFAULT_IDLE, MCPOptions, check_processes
from a2c_smcp.cli.serving.node import (
    ListenAddress,
    NodeIdentity,
    WorkerSettings,
    check_node_url,
    serve,
    serve_as_worker,
)
from a2c_smcp.cli.serving.operators import OperatorOptions, operator_options
from a2c_smcp.cli.serving.stores import REDIS_HELP, check_url
from a2c_smcp.cli.serving.workers import check_worker_urls, supervise
from a2c_smcp.errors import ConfigError, SMCPError
from a2c_smcp.http.loopback import is_loopback
from a2c_smcp.loops import run_program
from a2c_smcp.protocol import version
from a2c_smcp.server.auth.admission import checked_origin
from a2c_smcp.server.auth.api_keys import DefaultAuthenticationProvider, new_key
from a2c_smcp.server.auth.authentication import AuthenticationProvider
from a2c_smcp.server.auth.jwt import JWTAuthenticationProvider
from a2c_smcp.server.directory.nodes import check_name, new_name
from a2c_smcp.server.settings import Limits, Network, Settings

__all__ = ["server"]

logger = logging.getLogger(__name__)

_HERE = "where clients do"
_OF_KEYS = "Correct that; `a2c-smcp key --help` describes keys and the files that hold them."
_OF_TOKENS = "Correct that; `a2c-smcp server --help` describes the options for tokens."
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


def server(
    host: Annotated[str, _connections("HOST", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, _connections("PORT", "Port to listen on; 0 takes a free one.", min=0, max=65535)] = 7000,
    tls_cert: Annotated[Path | None, _connections("TLS_CERT", "Certificate chain (PEM).")] = None,
    tls_key: Annotated[Path | None, _connections("TLS_KEY", "Its private key (PEM).")] = None,
    cors_origin: Annotated[
        list[str] | None, _connections("CORS_ORIGIN", "Web origin that may connect from a browser; repeat for more.")
    ] = None,
    max_message: Annotated[
        int, _connections("MAX_MESSAGE", "Largest message in bytes.", min=1024)
    ] = Limits().max_message,
    require_version: Annotated[
        str | None, _connections("REQUIRE_VERSION", "Only clients of this protocol version, such as 0.4.")
    ] = None,
    legacy_notices: Annotated[
        bool, _connections("LEGACY_NOTICES", "Send notices also under their older names, to every client.")
    ] = False,
    trusted_proxy: Annotated[
        list[str] | None,
        _connections(
            "TRUSTED_PROXY", "Network (CIDR) of proxies whose X-Forwarded-For names the client; repeat for more."
        ),
    ] = None,
    origin: Annotated[
        list[str] | None,
        _admission(
            "ORIGIN",
            "URL at which clients reach this Server; keys bound to a device hold only there. Repeat for more.",
            show_default="loopback names",
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None, _admission("API_KEY", "API key that may do anything; repeat for more.")
    ] = None,
    keys_file: Annotated[
        Path | None, _admission("KEYS_FILE", "Keys with their offices, roles and names: see `a2c-smcp key --help`.")
    ] = None,
    jwt_secret: Annotated[str | None, _admission("JWT_SECRET", "Shared secret of JSON Web Tokens.")] = None,
    jwt_key_file: Annotated[Path | None, _admission("JWT_KEY_FILE", "Public key of their issuer (PEM).")] = None,
    jwt_jwks_file: Annotated[Path | None, _admission("JWT_JWKS_FILE", "Public keys of their issuer (JWKS).")] = None,
    jwt_algorithm: Annotated[
        list[str] | None, _admission("JWT_ALGORITHM", "Algorithm to accept, such as RS256; repeat for more.")
    ] = None,
    jwt_issuer: Annotated[str | None, _admission("JWT_ISSUER", "Issuer that tokens must have.")] = None,
    jwt_audience: Annotated[str | None, _admission("JWT_AUDIENCE", "Audience that tokens must have.")] = None,
    admin_key: Annotated[
        str | None,
        _admission("ADMIN_KEY", "Key of operators: serve their interface at /admin/api. It is no key for clients."),
    ] = None,
    console: Annotated[
        bool, _admission("CONSOLE", "Serve pages for operators at /console/, who sign in with the admin key.")
    ] = False,
    insecure: Annotated[bool, _admission("INSECURE", "Listen beyond this machine without authentication.")] = False,
    mcp: Annotated[
        bool,
        _mcp("MCP", "Serve each office as an MCP server at /mcp/OFFICE, with the client's own key as bearer."),
    ] = False,
    mcp_idle: Annotated[
        int, _mcp("MCP_IDLE", "Seconds after its last request until an MCP client leaves the office.", min=1)
    ] = DEFAULT_IDLE,
    mcp_e2e: Annotated[
        E2E, _mcp("MCP_E2E", "Seal calls of MCP clients from this Server on, for computers that require it.")
    ] = E2E.off,
    redis: Annotated[str | None, _nodes("REDIS", REDIS_HELP)] = None,
    node: Annotated[
        str | None, _nodes("NODE", "Name of this node, unlike any other's.", show_default="a new one")
    ] = None,
    node_url: Annotated[
        str | None,
        _nodes("NODE_URL", "Where other nodes reach this one; with --workers, from which port on.", show_default=_HERE),
    ] = None,
    workers: Annotated[
        int | None, _nodes("WORKERS", "Processes on this port; without --redis they have a Valkey of their own.", min=1)
    ] = None,
    log_level: Annotated[logs.LogLevel, _logging("LOG_LEVEL", "How much to log.")] = logs.LogLevel.info,
    log_json: Annotated[bool, _logging("LOG_JSON", "Log as JSON lines.")] = False,
    audit: Annotated[
        Path | None, _logging("AUDIT", "Record who did what in this file, see `a2c-smcp audit`.", metavar="FILE")
    ] = None,
    audit_arguments: Annotated[
        bool, _logging("AUDIT_ARGUMENTS", "Record the arguments of calls as they are, not as a keyed hash.")
    ] = False,
    metrics: Annotated[bool, _logging("METRICS", "Serve metrics for Prometheus at /metrics, without a key.")] = False,
) -> None:
    """Run the Server: the signalling hub between agents and computers.

    Each option can also be given in the environment, as A2C_SERVER_ and its name: A2C_SERVER_PORT, A2C_SERVER_API_KEY,
    … SIGTERM and Ctrl-C let calls in flight finish, SIGHUP reads key files again. With --redis it is one node of many,
    which share all offices; with --workers it runs several nodes in processes of their own. With --mcp any MCP client
    that has a key is an agent; one of many nodes has to get all requests below /mcp, because it has their sessions.

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
    logs.set_up(log_level, as_json=log_json)
    address = ListenAddress(host=host, port=port, tls_cert=tls_cert, tls_key=tls_key)
    check_processes(workers, with_mcp=mcp)
    identity = _identity(redis, node, node_url, address, workers)
    _name_node_in_logs(worker or identity, log_level, as_json=log_json)
    if not worker and (unused := unused_variables(_OPTIONS)):
        logger.warning("%s", unused)
    tokens = {"secret": jwt_secret, "key_file": jwt_key_file, "jwks_file": jwt_jwks_file}
    auth = _auth(api_key, keys_file, tokens, jwt_algorithm, issuer=jwt_issuer, audience=jwt_audience)
    is_shared = bool(identity or worker)
    operators = operator_options(admin_key, api_key or (), console=console, host=host, is_shared=is_shared)
    _check_exposure(host, auth, insecure=insecure)
    _check_version(require_version)
    _check_tls(tls_cert, tls_key)
    settings = Settings(
        auth=auth,
        limits=Limits(max_message=max_message),
        require_version=require_version,
        cors_origins=tuple(cors_origin or ()),
        trusted_hosts=None if auth or insecure else frozenset(),
        legacy_notices=legacy_notices,
        metrics=metrics,
        **audit_settings(audit, with_arguments=audit_arguments),
        trusted_proxies=_networks(trusted_proxy),
        origins=_origins(origin),
        admin_key=operators.key,
    )
    chosen = MCPOptions(idle=mcp_idle, issuer=jwt_issuer, e2e=mcp_e2e) if mcp else None
    _run(settings, address, identity, worker, workers, chosen, operators)


def _run(
    settings: Settings,
    address: ListenAddress,
    identity: NodeIdentity | None,
    worker: WorkerSettings | None,
    workers: int | None,
    mcp: MCPOptions | None,
    operators: OperatorOptions,
) -> None:
    """Serve as a worker, run workers, or serve."""
    if worker:
        run_program(serve_as_worker(settings, address, worker, operators))
    elif identity and workers:
        run_program(supervise(settings, address, workers, identity))
    else:
        run_program(serve(settings, address, identity, mcp, operators))


def _name_node_in_logs(node: WorkerSettings | NodeIdentity | None, level: logs.LogLevel, *, as_json: bool) -> None:
    if node:
        logs.set_up(level, as_json=as_json, node=node.node)


def _identity(
    redis: str | None, node: str | None, node_url: str | None, address: ListenAddress, workers: int | None
) -> NodeIdentity | None:
    """The name and the URL of this node; `None` for a Server alone. Raises `WrongUse`."""
    if redis is None and workers is None:
        if node or node_url:
            raise WrongUse(
                "--node and --node-url have no meaning for a single Server", "Give --redis or --workers too."
            )
        return None
    identity = NodeIdentity(redis=redis or "", node=_name(node), url=node_url)
    if redis is not None:
        check_url(redis)
    if workers:
        check_worker_urls(identity, workers)
    else:
        check_node_url(node_url, address, identity.redis)
    return identity


def _name(node: str | None) -> str:
    try:
        return check_name(new_name() if node is None else node)
    except ConfigError as error:
        raise WrongUse(f"--node: {error.about}", "Choose another.") from None


def _auth(
    api_keys: list[str] | None,
    keys_file: Path | None,
    tokens: dict[str, Any],
    algorithms: list[str] | None,
    **expected: Any,
) -> AuthenticationProvider | None:
    """The provider that the options describe, if any. Raises `WrongUse`."""
    source = {name: value for name, value in tokens.items() if value is not None}
    has_keys, has_checks = bool(api_keys or keys_file), bool(algorithms or any(expected.values()))
    if source and has_keys:
        raise WrongUse("API keys and JSON Web Tokens do not go together", "Give either, not both.")
    if has_checks and not source:
        raise WrongUse(
            "--jwt-algorithm, --jwt-issuer and --jwt-audience have no meaning without a key",
            "Give --jwt-secret, --jwt-key-file or --jwt-jwks-file too.",
        )
    try:
        return _jwt(source, algorithms, expected) if source else _keys(api_keys, keys_file)
    except ValueError as error:
        raise WrongUse(str(error), _OF_TOKENS if source else _OF_KEYS) from None


def _jwt(source: dict[str, Any], algorithms: list[str] | None, expected: dict[str, Any]) -> AuthenticationProvider:
    default = ["HS256"] if "secret" in source else []
    return JWTAuthenticationProvider(**source, algorithms=algorithms or default, **expected)


def _keys(api_keys: list[str] | None, keys_file: Path | None) -> AuthenticationProvider | None:
    if any(0 < len(key) < SHORTEST_KEY for key in api_keys or ()):
        raise WrongUse(
            f"An API key has fewer than {SHORTEST_KEY} characters, and can be guessed",
            f"Here is a new one that you can use: {new_key()}",
        )
    return DefaultAuthenticationProvider(api_keys or [], keys_file) if api_keys or keys_file else None


def _check_exposure(host: str, auth: AuthenticationProvider | None, *, insecure: bool) -> None:
    if not (auth or insecure or is_loopback(host)):
        raise WrongUse(
            f"{host} can be reached from other machines, and no key would be needed",
            "Give --api-key, --keys-file or --jwt-…, or --insecure if that is what you want.",
        )


def _networks(given: list[str] | None) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(network) for network in given or ())
    except ValueError as error:
        raise WrongUse(f"--trusted-proxy: {error}", "Write an address or a network, such as 10.0.0.0/8.") from None


def _origins(given: list[str] | None) -> tuple[str, ...]:
    try:
        return tuple(checked_origin(each) for each in given or ())
    except ConfigError as error:
        raise WrongUse(f"--origin: {error.about}", "Write https://HOST, or http://127.0.0.1:PORT.") from None


def _check_version(required: str | None) -> None:
    try:
        version.accept(required)
    except SMCPError:
        raise WrongUse(f"--require-version: {required!r} is no version", "Write 0.4 or 0.4.2.") from None


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
