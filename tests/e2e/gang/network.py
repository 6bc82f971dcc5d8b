"""Hosts of a small network, for tests: each a network namespace, joined by a link of its own to the one that the test moves
into. Nothing outlives the process but the namespaces' names, which close() removes."""

import contextlib
import ctypes
import os
import pathlib
import subprocess

CLONE_NEWNET = 0x40000000


class Unavailable(Exception):
    """This machine, or this user, may not make such a network. Says why."""


def run(*argv):
    try:
        subprocess.run(list(map(str, argv)), check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise Unavailable(f"network namespaces need the program {argv[0]}") from error
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{' '.join(map(str, argv))}: {error.stderr.strip()}") from error


def ip(*arguments):
    run("ip", *arguments)


class Network:
    """Host i has the address 10.213.i.2 and reaches the test, and the other hosts through it, at 10.213.i.1."""

    def __init__(self, num_hosts, folder):
        """Moves this thread, and threads and processes that it starts from now on, into a namespace of its own. Threads that
        run already, such as gRPC's once a channel was made, stay where they are. Raises Unavailable."""
        if os.geteuid() != 0:
            raise Unavailable("network namespaces need root")
        self._names_file = pathlib.Path(folder) / "hosts"  # there is no name server
        self._names_file.write_text("".join(f"10.213.{host}.{end} host{host}-{end}\n"
                                            for host in range(num_hosts) for end in (1, 2)))
        self._names = [f"stemma-{os.getpid()}-{host}" for host in range(num_hosts)]
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self):
        for name in self._names:
            ip("netns", "add", name)
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
            raise Unavailable(f"unshare: {os.strerror(ctypes.get_errno())}")
        ip("link", "set", "lo", "up")
        try:
            pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        except OSError as error:
            raise Unavailable(f"packets cannot be forwarded: {error}") from error
        for host, name in enumerate(self._names):
            ip("link", "add", self._link(host), "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("addr", "add", f"{self.gateway(host)}/30", "dev", self._link(host))
            ip("-n", name, "addr", "add", f"10.213.{host}.2/30", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
            self.connect(host)
            ip("-n", name, "route", "add", "default", "via", self.gateway(host))
            run(*self.command(host, "true"))

    def gateway(self, host):
        return f"10.213.{host}.1"

    def command(self, host, *argv):
        """What runs argv on the host."""
        names = 'mount --bind "$0" /etc/hosts && mount --bind /dev/null /etc/resolv.conf && exec "$@"'
        return ["ip", "netns", "exec", self._names[host], "sh", "-c", names, str(self._names_file), *map(str, argv)]

    def cut(self, host):
        ip("link", "set", self._link(host), "down")

    def connect(self, host):
        ip("link", "set", self._link(host), "up")

    def close(self):
        for name in self._names:
            with contextlib.suppress(Unavailable):  # it was not made
                ip("netns", "delete", name)

    def _link(self, host):
        return f"host{host}"
