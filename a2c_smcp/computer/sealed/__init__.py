"""Requests that only this computer can read, and answers that it signs (WIRE §10)."""
