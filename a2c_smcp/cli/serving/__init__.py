"""The processes of `a2c-smcp server`: one, or several workers on one port, with the store they share."""
