"""Ports for processes on this machine."""

import socket


def free_ports(count: int) -> list[int]:
    """Different loopback ports that nothing listens on at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
