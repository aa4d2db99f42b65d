"""The Computer's connection to a Server."""
