"""`--admin-key` and `--console`: what operators are served, and the link that is printed for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.cli.options import SHORTEST_KEY
from a2c_smcp.http.loopback import is_loopback
from a2c_smcp.server.app import SMCPApp
from a2c_smcp.server.auth.api_keys import new_key

__all__ = ["OperatorOptions", "mount_console", "operator_options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """The admin key, and whether there are pages. `is_link`: nobody knows the key, the pages are opened by a link."""

    key: str | None = field(default=None, repr=False)
    has_console: bool = False
    is_link: bool = False


def operator_options(
    key: str | None, api_keys: Sequence[str], *, console: bool, host: str, is_shared: bool
) -> OperatorOptions:
    """Raises `WrongUse`. Clients are not admitted by the admin key, also if it is in a keys file."""
    if key is not None and len(key) < SHORTEST_KEY:
        raise WrongUse(
            f"The admin key has fewer than {SHORTEST_KEY} characters, and can be guessed",
            f"Here is a new one that you can use: {new_key()}",
        )
    if key is not None and key in api_keys:
        raise WrongUse(
            "--admin-key and --api-key are the same, and a client's key must not open the operator's interface",
            f"Here is another admin key that you can use: {new_key()}",
        )
    if console and key is None and (is_shared or not is_loopback(host)):
        raise WrongUse(
            "--console needs an admin key, unless one process serves this machine alone",
            f"Give --admin-key; here is one that you can use: {new_key()}",
        )
    is_link = console and key is None
    return OperatorOptions(key=new_key() if is_link else key, has_console=console, is_link=is_link)


def mount_console(app: SMCPApp, options: OperatorOptions) -> Callable[[str], str]:
    """Serves the pages. Returns a function that says where they are, of a Server that is reached at a URL."""
    from a2c_smcp.console.operator.console import CONSOLE_PATH, OperatorConsole

    assert app.operations
    assert app.admin_access
    assert options.key
    console = OperatorConsole(app.operations, app.admin_access, options.key, has_form=not options.is_link)
    app.mount(console, CONSOLE_PATH)
    return lambda place: console.link(place) if options.is_link else f"{place}{CONSOLE_PATH}/"
