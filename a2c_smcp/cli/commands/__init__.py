"""The subcommands of `a2c-smcp`, one file each. A file has a function, or a typer group, of the subcommand's name."""
