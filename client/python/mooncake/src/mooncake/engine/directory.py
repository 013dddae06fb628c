"""Where engines find each other: a name has the address in it, or a metadata server has it."""

from __future__ import annotations

import http.client
import ipaddress
import json
import logging
import os
import socket
import urllib.error
import urllib.parse
import urllib.request
from typing import Protocol

from mooncake._addresses import is_local, split_host_port

_log = logging.getLogger(__name__)
ANY = "0.0.0.0"
LOOPBACK = "127.0.0.1"
_LAST_PORT = 65_535
_TIMEOUT_SECONDS = 5.0
_LEAVE_SECONDS = 1.0
_LONGEST_REASON = 1_000
_NOT_FOUND = 404
_TAKEN = 400


class NoPeer(Exception):
    """There is no address under the name. The text says why."""


class Directory(Protocol):
    """Addresses of engines by name."""

    def address_of(self, host: str) -> str:
        """The address to listen on as `host`, which others reach."""

    def announce(self, name: str, host: str, port: int) -> None:
        """Tell others where `name` listens."""

    def withdraw(self, name: str, host: str, port: int) -> None:
        """Take `announce` back, if nobody else has announced the name since."""

    def find(self, name: str) -> tuple[str, int]:
        """Host and port of `name`, or NoPeer."""

    def forget(self, name: str) -> None:
        """Drop a cached address, so that the next `find` asks again."""


def directory(metadata_server: str) -> Directory:
    """The directory behind an argument of `initialize`. ValueError if there is none."""
    if metadata_server == "P2PHANDSHAKE":
        return Names()
    if urllib.parse.urlsplit(metadata_server).scheme in ("http", "https"):
        return MetadataServer(metadata_server)
    raise ValueError(
        f"{metadata_server!r} is no metadata server that this engine can use: give P2PHANDSHAKE, or the address of a"
        " master such as http://a:8080/metadata"
    )


class Names:
    """P2PHANDSHAKE: a name is `host:port`, but for the own one, which is what `initialize` got."""

    def __init__(self) -> None:
        self._own: dict[str, tuple[str, int]] = {}

    def address_of(self, host: str) -> str:
        """The host; all addresses if its name leads nowhere else than to this host, as Debian's host names do."""
        return host if _is_reachable(host) or is_local(host) else ANY

    def announce(self, name: str, host: str, port: int) -> None:
        """Keep the own address."""
        self._own[name] = LOOPBACK if host == ANY else host, port

    def withdraw(self, name: str, host: str, port: int) -> None:
        """Nothing."""

    def find(self, name: str) -> tuple[str, int]:
        """The parts of the name."""
        if name in self._own:
            return self._own[name]
        host, port = split_host_port(name)
        if not host or port is None:
            raise NoPeer(f"{name!r} is no address of an engine: give host:port, with the port of its get_rpc_port()")
        return _checked(name, host, port)

    def forget(self, name: str) -> None:
        """Nothing."""


class MetadataServer:
    """An HTTP service of records, such as `/metadata` of each master."""

    def __init__(self, url: str) -> None:
        self._url = url
        cluster = os.environ.get("MC_METADATA_CLUSTER_ID", "")
        self._prefix = f"mooncake/{cluster.rstrip('/') + '/' if cluster else ''}rpc_meta/"
        self._found: dict[str, tuple[str, int]] = {}
        # A proxy of the environment is for other places than these.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def address_of(self, host: str) -> str:
        """The host; the address of this machine on the way to the server if nobody else can use the host's name."""
        return host if _is_reachable(host) else self._route()

    def announce(self, name: str, host: str, port: int) -> None:
        """Put the record. `PermissionError` if the name has another one."""
        record = {"ip_or_host_name": host, "rpc_port": port}
        try:
            self._ask("PUT", name, json.dumps(record).encode())
        except urllib.error.HTTPError as error:
            if error.code != _TAKEN:
                raise
            raise PermissionError(f"{name!r} is the name of another engine") from None

    def withdraw(self, name: str, host: str, port: int) -> None:
        """Delete the record, if it is that one and the server answers soon."""
        try:
            if json.loads(self._ask("GET", name, timeout=_LEAVE_SECONDS)) == {"ip_or_host_name": host, "rpc_port": port}:
                self._ask("DELETE", name, timeout=_LEAVE_SECONDS)
        except (OSError, http.client.HTTPException, ValueError) as error:
            _log.info("the record of %s stays at %s: %s", name, self._url, error)

    def find(self, name: str) -> tuple[str, int]:
        """The record's address, which is kept."""
        found = self._found.get(name)
        if found is None:
            try:
                record = json.loads(self._ask("GET", name))
                found = _checked(name, str(record["ip_or_host_name"]), int(record["rpc_port"]))
            except urllib.error.HTTPError as error:
                why = "it has no such engine" if error.code == _NOT_FOUND else str(error)
                raise NoPeer(f"{self._url} does not know {name!r}: {why}") from None
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
                raise NoPeer(f"{self._url} does not tell the address of {name!r}: {error}") from None
            self._found[name] = found
        return found

    def forget(self, name: str) -> None:
        """Drop what is kept."""
        self._found.pop(name, None)

    def _route(self) -> str:
        """Address of this host on the way to the server."""
        server = urllib.parse.urlsplit(self._url)
        family, kind, protocol, _, address = socket.getaddrinfo(server.hostname, server.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as route:
            route.connect(address)
            return str(route.getsockname()[0])

    def _ask(self, method: str, name: str, body: bytes | None = None, timeout: float = _TIMEOUT_SECONDS) -> bytes:
        url = f"{self._url}?{urllib.parse.urlencode({'key': self._prefix + name})}"
        request = urllib.request.Request(url, data=body, method=method)
        token = os.environ.get("MC_METADATA_HTTP_TOKEN")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with self._opener.open(request, timeout=timeout) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            # The body has the server's reason.
            error.msg += f": {error.read(_LONGEST_REASON).decode(errors='replace').strip()}"
            raise


def _is_reachable(host: str) -> bool:
    """Whether other machines can reach this one at an address of `host`."""
    try:
        addresses = {ipaddress.ip_address(address[4][0]) for address in socket.getaddrinfo(host, None)}
    except (OSError, ValueError):
        return False
    return any(not (address.is_loopback or address.is_unspecified) for address in addresses)


def _checked(name: str, host: str, port: int) -> tuple[str, int]:
    if not 0 < port <= _LAST_PORT:
        raise NoPeer(f"{name!r} has the port {port}, and ports are 1 to {_LAST_PORT}")
    return host, port
