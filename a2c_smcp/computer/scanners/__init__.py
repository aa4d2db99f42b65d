"""Scanners: the owner's own checks before and after each tool call, which may refuse it or replace what passes."""
