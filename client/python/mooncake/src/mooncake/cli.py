"""`mooncake_master`: a master of an mc pool, started with Mooncake's flags."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from typing import NoReturn

from ._addresses import source_of
from ._services.config_file import read_config
from ._services.executables import find, named
from ._services.flags import FlagError, parse, print_help
from ._services.master import Command, Host, command
from ._services.master_flags import TABLE

_PROGRAM = "mooncake_master"
_SIOCGIFADDR = 0x8915
# Documentation addresses, which nobody has: the kernel chooses its default route for them.
_ELSEWHERE = ("203.0.113.1", "2001:db8::1")


def main() -> NoReturn:
    """Becomes mc-master, so that signals reach it and its exit code is the service's."""
    try:
        started = _command()
    except FlagError as error:
        sys.exit(f"{_PROGRAM}: {error}")
    path = find("mc-master")
    if path is None:
        sys.exit(f"{_PROGRAM}: mc-master is neither beside {sys.executable} nor on PATH: pip install mc-kvcache-server")
    for warning in started.warnings:
        print(f"{_PROGRAM}: {warning}", file=sys.stderr)
    sys.stderr.flush()
    try:
        os.execv(named(path, _PROGRAM), ["mc-master", *started.arguments])
    except OSError as error:
        sys.exit(f"{_PROGRAM}: {path} can't be started: {error}")


def _command() -> Command:
    given = parse(TABLE, sys.argv[1:], os.environ)
    if given.wants_help:
        print_help(_PROGRAM, TABLE)
        sys.exit(0)
    if given.wants_version:
        return Command(["--version"], [])
    read_config(TABLE, given)
    return command(given, os.environ, Host(socket.gethostname(), _address_of, _address_of_interface, _address_for_others))


def _address_of(host: str) -> str:
    addresses = [str(address[0]) for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)]
    # A name of both families stands for its IPv4 address, as upstream's.
    return next((address for address in addresses if ":" not in address), addresses[0])


def _address_of_interface(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    return socket.inet_ntoa(answer[20:24])


def _address_for_others() -> str | None:
    for address in _ELSEWHERE:
        try:
            return source_of((address, 9))
        except OSError:
            continue
    return None


if __name__ == "__main__":
    main()
