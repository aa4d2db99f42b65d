"""`python -m a2c_smcp` is the `a2c-smcp` command."""

from a2c_smcp.cli import main

main()
