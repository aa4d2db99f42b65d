"""Subcommands for the operator of a Server."""
