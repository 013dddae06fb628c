"""`mooncake_client`: lends memory to an mc pool, and introduces itself to the dummy clients of its host."""

from __future__ import annotations

import logging
import os
import sys

from mc import __version__

from ._addresses import split_host_port
from ._introduction import Introduction, Reception
from ._services import log
from ._services.client_flags import TABLE
from ._services.flags import FlagError, Given, log_level, parse, print_help, without_effect
from ._services.store import StartFailed, block_signals, open_store, start_health_server, wait_for_end
from .store.settings import InvalidSettings, from_mapping

# Started as a module, its name is `__main__`.
_log = logging.getLogger("mooncake.mooncake_client")

_PROGRAM = "mooncake_client"
_ANY = frozenset({"0.0.0.0", "::"})
# As long as upstream looks for a master.
_START_SECONDS = 90.0


def main() -> int:
    """Serves until SIGTERM or SIGINT."""
    try:
        given = parse(TABLE, sys.argv[1:], os.environ)
        if given.wants_help:
            print_help(_PROGRAM, TABLE)
            return 0
        if given.wants_version:
            print(f"{_PROGRAM} of mc {__version__}")
            return 0
        ports = {name: _port(given, name) for name in ("port", "http_port")}
    except FlagError as error:
        sys.exit(f"{_PROGRAM}: {error}")
    block_signals()
    log.start(log_level(given))
    try:
        return _serve(given, ports["port"], ports["http_port"])
    except StartFailed as error:
        _log.error("%s", error)
        return 1
    finally:
        log.drain()


def _serve(given: Given, port: int, http_port: int) -> int:
    for line in without_effect(TABLE, given):
        _log.info("%s", line)
    for word in given.words:
        _log.warning("%r belongs to no flag, and is ignored", word)
    host = split_host_port(given.text("host", TABLE["host"].default))[0]
    try:
        reception = Reception(host, port)
    # A name like `a..b` fails before it is looked up.
    except (OSError, UnicodeError) as error:
        raise _port_taken(host, port, error) from None
    config = {
        "local_hostname": "localhost" if host in _ANY else host,
        "global_segment_size": given.text("global_segment_size", TABLE["global_segment_size"].default),
        "local_buffer_size": given.text("local_buffer_size", TABLE["local_buffer_size"].default),
        "protocol": given.text("protocol", TABLE["protocol"].default),
        "rdma_devices": given.text("device_names"),
        "master_server_addr": given.text("master_server_address"),
        "tenant_id": given.text("tenant_id", TABLE["tenant_id"].default),
    }
    try:
        masters = from_mapping(os.environ, config).masters
    except InvalidSettings as error:
        raise StartFailed(str(error)) from None
    store = open_store(config, _START_SECONDS)
    if store is None:
        return 0
    try:
        health = start_health_server(store, http_port) if given.is_true("enable_http_server") else None
        hostname = store.get_hostname()
        devices, tenant, protocol = config["rdma_devices"], config["tenant_id"], config["protocol"]
        try:
            reception.start(Introduction(masters, hostname, tenant, protocol, devices))
        except OSError as error:
            raise _port_taken(host, port, error) from None
        _log.info("Starting real client service on %s:%d: %s in the pool of %s", host, port, hostname, masters)
        wait_for_end()
        reception.stop()
        if health is not None:
            health.stop()
    finally:
        store.close()
    return 0


def _port_taken(host: str, port: int, error: Exception) -> StartFailed:
    return StartFailed(f"cannot listen on {host}:{port}: {error}; choose another with --host and --port")


def _port(given: Given, name: str) -> int:
    port = given.number(name, int(TABLE[name].default))
    if not 0 < port <= 65535:
        raise FlagError(f"--{name}={port} is no port: write a number from 1 to 65535")
    return port


if __name__ == "__main__":
    sys.exit(main())
