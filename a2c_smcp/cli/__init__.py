"""The `a2c-smcp` command. Each subcommand is a file of its own."""

import io
import os
import sys

from a2c_smcp import __version__

__all__ = ["main"]


def main() -> None:
    """Runs the command line; says how to get it where its extra is not installed."""
    # Open the null device for each standard stream that is closed: the next file or socket would take its place.
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
            os.set_inheritable(getattr(sys, name).fileno(), True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a code page that lacks a character shows its number
            stream.reconfigure(errors="backslashreplace")
    if sys.argv[1:] == ["--version"]:  # without the second that importing everything takes
        sys.stdout.write(f"a2c-smcp {__version__}\n")
        return
    try:
        from a2c_smcp.cli.app import build_for, carry_out

        app = build_for(sys.argv[1:])
    except ModuleNotFoundError as error:
        from a2c_smcp.installation import install_command

        sys.exit(f"{error.name} is not installed. Install a2c-smcp with its extras: {install_command('all')}")
    except KeyboardInterrupt:
        sys.exit(1)
    carry_out(app, sys.argv[1:])
