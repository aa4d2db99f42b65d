"""The `a2c-smcp` command. Each subcommand is a file of its own."""

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line; says how to get it where its extra is not installed."""
    try:
        from a2c_smcp.cli.app import build

        app = build(sys.argv[1] if len(sys.argv) > 1 else None)
    except ModuleNotFoundError as error:
        sys.exit(f"a2c-smcp: {error.name} is not installed. Install a2c-smcp with its extra [all].")
    app()
