"""NIXL transfer: the fence of the forward, the deadline, the handshake, checksum and digest."""
