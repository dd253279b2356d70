"""Ports for servers that a test starts in other processes."""

import socket

_reserved: list[socket.socket] = []


def reserve_port() -> int:
    """Return a port of this machine that no other program gets before the server of the test binds it.

    The socket that holds it does not listen. With these options, the kernel lets a server with one of them bind the
    same port, as gRPC and `http.server` do, and gives the port to nobody who asks for any free one.
    """
    holder = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        holder.setsockopt(socket.SOL_SOCKET, option, 1)
    holder.bind(("127.0.0.1", 0))
    _reserved.append(holder)  # until this process ends
    return holder.getsockname()[1]
