"""Engine.IO v4 and Socket.IO v5 as state machines for both ends: bytes in, happenings and bytes out, no I/O."""
