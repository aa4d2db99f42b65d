"""The operator's interface: who is connected, which calls run, which keys there are, and what happens, over HTTP."""
