"""The reference pages of the documentation, generated from the code. `make reference` updates them."""
