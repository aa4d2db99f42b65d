"""The reference pages of the documentation, printed from the code they are about. `make reference` renews them."""
