"""Addresses that no other process of this machine is given: one for servers that come back to their port, and one where nobody
listens; and channels to them."""

import contextlib
import os
import socket

import grpc

# A loopback address by this process's id. Whoever asks for a free port of 127.0.0.1 may get one that a server has just left there.
HOST = f"127.{1 + (os.getpid() >> 16)}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"


@contextlib.contextmanager
def refused_address():
    """The address of a port that is taken and not listened on: it refuses connections."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        yield f"{HOST}:{taken.getsockname()[1]}"


def free_address():
    """An address for a server of this process."""
    with refused_address() as address:
        return address


def channel_to(address, options=(), credentials=None, **more):
    """A channel to a server of this machine; without credentials in plaintext. A proxy of the environment would not reach HOST,
    which few no_proxy name."""
    options = [*options, ("grpc.enable_http_proxy", 0)]
    if credentials is None:
        return grpc.insecure_channel(address, options=options, **more)
    return grpc.secure_channel(address, credentials, options=options, **more)
