"""Golden files: what can be seen of this package from outside. `python -m tests.golden` writes them anew.

They are made at public doors only (programs, the network, `/metrics`, audit files, exported spans), and so they outlast
changes inside the package.
"""
