"""`a2c-smcp audit`: reads audit files, which `server --audit` and `computer --audit` write."""

from a2c_smcp.cli.commands.audit.group import audit

__all__ = ["audit"]
