"""`engine/` on real sockets: HTTP and websockets in, limits on what peers make the Server hold."""
