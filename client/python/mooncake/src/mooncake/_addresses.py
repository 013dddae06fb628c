"""Addresses as engines spell them, and those that others reach this host at."""

from __future__ import annotations

import ipaddress
import os
import random
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

MASTER_PORT = 50051
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1", ""})
_RESOLVE_SECONDS = 3.0


class InvalidAddress(ValueError):
    """The address can't be used. The text says why, and what to set."""


def split_host_port(text: str) -> tuple[str, int | None]:
    """Host and port of `host`, `host:port`, `[ipv6]:port`, `[ipv6]` or a bare IPv6 address."""
    text = text.strip()
    if _is_ipv6(text):
        return text, None
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, int(rest[1:]) if rest.startswith(":") and rest[1:].isdigit() else None
    host, colon, port = text.rpartition(":")
    if colon and port.isdigit():
        return host, int(port)
    return text, None


def join_host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if _is_ipv6(host) else f"{host}:{port}"


def is_local(host: str) -> bool:
    """Whether only this host can use the name."""
    return host in _LOCAL_NAMES


def parse_masters(text: str) -> str:
    """Comma-separated addresses of the masters in `text`: one or several `host[:port]`, or `etcd://a;b;c`.

    An etcd address names the hosts of a cluster that this pool does not have. The masters often run on the same hosts,
    so they are tried at the masters' own port.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        return ",".join(_master(part) for part in text.split(",") if part.strip())
    if scheme != "etcd":
        raise InvalidAddress(f"cannot find masters by {text!r}: set MC_MASTERS to their addresses, such as a:50051,b:50051")
    hosts = [split_host_port(part)[0] for part in rest.replace(",", ";").split(";") if part.strip()]
    return ",".join(join_host_port(host, MASTER_PORT) for host in hosts)


def _master(text: str) -> str:
    host, port = split_host_port(text)
    return join_host_port(host, MASTER_PORT if port is None else port)


class NoRoute(Exception):
    """No remote master can be reached from this host. The text says what was tried."""


def route_to(masters: str) -> str | None:
    """Address of this host that the first remote master sees, or None if all masters are on this host.

    Masters without an address or a route at the moment are passed over. NoRoute if that leaves none, or if a name server
    does not answer for three seconds.
    """
    routes: list[str] = []
    remote: list[str] = []

    def search() -> None:
        for master in masters.split(","):
            host, port = split_host_port(master)
            for address in _resolve(host, port or MASTER_PORT):
                if ipaddress.ip_address(address[0].partition("%")[0]).is_loopback:
                    continue
                remote.append(address[0])
                try:
                    routes.append(source_of(address))
                except OSError:
                    continue
                return

    # `getaddrinfo` has no deadline of its own.
    thread = threading.Thread(target=search, daemon=True, name="mooncake-resolve")
    thread.start()
    thread.join(_RESOLVE_SECONDS)
    if routes:
        return routes[0]
    if remote or thread.is_alive():
        raise NoRoute(
            f"this host has no route to the masters {masters}: others could not reach its memory either."
            " Set the local host name to an address that they reach"
        )
    return None


def _resolve(host: str, port: int) -> list[tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return []
    return [(str(address[0]), port) for *_, address in found]


def source_of(address: tuple[str, int]) -> str:
    """The address of this host that packets to `address` have. OSError without a route."""
    family = socket.AF_INET6 if _is_ipv6(address[0]) else socket.AF_INET
    # Connecting a datagram socket sends nothing: it only asks the kernel for the route.
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def bind_alone(listener: socket.socket, address: tuple[Any, ...]) -> None:
    """Binds a listener that `listen_alone` will start. OSError if the port is taken, be it by one that does not listen yet.

    SO_REUSEADDR makes the port of a process that just ended free, and lets two sockets share a port until one of them listens. So it
    is set while the port is bound, and not while it is held. Two that bind at the same moment may still share it: then the second to
    listen fails.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)


def listen_alone(listener: socket.socket, backlog: int) -> None:
    """Accepts connections at the port of `bind_alone`. OSError if another listener has it."""
    # The kernel looks at the port again here, and finds connections of a process that just ended.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.listen(backlog)


def data_ports(environ: Mapping[str, str] = os.environ) -> Iterator[int]:
    """Ports for the data plane of an embedded store: upstream's range, from a random place on.

    Ranks that start together on one host so seldom try the same port.
    """
    first = int(environ.get("MC_STORE_CLIENT_MIN_PORT") or 12300)
    last = int(environ.get("MC_STORE_CLIENT_MAX_PORT") or 14300)
    ports = list(range(first, last + 1))
    start = random.randrange(len(ports)) if ports else 0
    yield from ports[start:]
    yield from ports[:start]


def is_free(host: str, port: int) -> bool:
    """Whether a listener could be bound to the port at this moment."""
    family = socket.AF_INET6 if _is_ipv6(host) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the store's own listener does, so that a port of a process that just ended counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text.partition("%")[0]).version == 6
    except ValueError:
        return False
