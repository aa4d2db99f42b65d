"""Engine.IO v4 and Socket.IO v5 as state machines for both ends: bytes in, happenings and bytes out, no I/O.

Bytes become events in `session.py` (`Session.receive`); `server.py` and `client.py` add what differs between the roles.
"""
