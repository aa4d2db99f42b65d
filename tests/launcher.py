"""Starts a run of `zygote` from a command line: `python -I -S launcher.py SOCKET SCRIPT WORD…`.

It has the streams of this process, gets its signals, and is killed with it; its exit code becomes that of this process.
An empty script is `a2c-smcp`. It imports only what is quick to import.
"""

import _signal
import _socket
import marshal
import os
import sys

FORWARDED = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)

connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
connection.connect(sys.argv[1])
request = {"script": sys.argv[2], "words": sys.argv[3:], "env": dict(os.environ), "cwd": os.getcwd()}  # noqa: PTH109
streams = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, b"".join(n.to_bytes(4, sys.byteorder) for n in range(3)))
connection.sendmsg([marshal.dumps({**request, "session": False, "leash": True})], [streams])
child = int(connection.recv(32))
for number in FORWARDED:
    _signal.signal(number, lambda number, _: os.kill(child, number))
code = int(connection.recv(32))
if code < 0:
    if -code in FORWARDED:
        _signal.signal(-code, _signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
