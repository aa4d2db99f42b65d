"""Decisions of a computer's owner: approvals, policies, pinned tools, scanners."""
