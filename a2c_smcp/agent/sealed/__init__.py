"""Requests that only their computer can read, and answers whose signatures are checked (WIRE §10)."""
