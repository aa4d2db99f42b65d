"""Shared pieces of tests: programs, clients and servers that several folders use."""
