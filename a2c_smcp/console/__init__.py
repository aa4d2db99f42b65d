"""Web pages for the owner of a computer and the operator of a Server."""
