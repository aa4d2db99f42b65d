"""The rules: who may send what to whom, decided by pure functions without await, socket, clock, chance or log."""
