"""`python -m mooncake.http_metadata_server`: records of Mooncake's transfer engines, kept in memory.

The masters of a pool have this service, too, and replicate the records. This one is for deployments that start it by itself.
"""

from __future__ import annotations

import argparse
import hmac
import ipaddress
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping

from ._services import log
from ._services.http import Limits, Request, Response, Server, text

# Started as a module, its name is `__main__`.
_log = logging.getLogger("mooncake.http_metadata_server")

# Upstream's defaults. The variables are its own, too.
_LIMITS = {
    "MC_METADATA_MAX_BODY_BYTES": 1 << 20,
    "MC_METADATA_MAX_CONCURRENT_PUTS": 8,
    "MC_METADATA_MAX_KEYS": 65536,
    "MC_METADATA_MAX_TOTAL_BYTES": 1 << 30,
}
_TOKEN = "MC_METADATA_HTTP_TOKEN"


class KVBootstrapServer:
    """The service, with upstream's name."""

    def __init__(self, port: int, host: str = "0.0.0.0", environ: Mapping[str, str] = os.environ) -> None:
        """Binds the port. ValueError names a variable of the environment that can't be used; OSError if the port is taken."""
        self.port, self.host = port, host
        limits = {name: _positive(environ, name, default) for name, default in _LIMITS.items()}
        body = limits["MC_METADATA_MAX_BODY_BYTES"]
        # A secret that was read from a file often ends with a line break.
        given = os.fsencode(environ.get(_TOKEN, ""))
        self._token = given.strip() or None
        if given and self._token is None:
            raise ValueError(f"{_TOKEN} is blank: set a token, or remove the variable")
        self._records = _Records(limits["MC_METADATA_MAX_KEYS"], limits["MC_METADATA_MAX_TOTAL_BYTES"])
        self._server = Server(host, port, Limits(body, body * limits["MC_METADATA_MAX_CONCURRENT_PUTS"]))

    def run(self) -> None:
        """Serves on threads of its own. OSError if the port is taken after all."""
        self._server.start(self._answer)
        _log.info("HTTP Metadata Server started on %s:%d", self.host, self.port)
        if self._token is None and not _is_loopback(self.host):
            _log.warning(
                "no token is set: anyone who reaches %s:%d can read and change the records. Set %s here and for every engine, or"
                " listen on 127.0.0.1 with --host",
                self.host,
                self.port,
                _TOKEN,
            )

    def close(self) -> None:
        """Ends the service."""
        self._server.stop()

    def _answer(self, request: Request) -> Response:
        if request.path != "/metadata":
            return text(404, "404: Not Found", "text/plain")
        if not self._is_allowed(request):
            return text(401, "unauthorized")
        key = request.argument("key").strip()
        if not key:
            return text(400, "metadata key is required")
        if request.method in ("GET", "HEAD"):
            return self._records.get(key)
        if request.method == "PUT":
            return self._records.put(key, request.read_body())
        if request.method == "DELETE":
            return self._records.delete(key)
        return text(405, "Method not allowed")

    def _is_allowed(self, request: Request) -> bool:
        if self._token is None:
            return True
        scheme, _, presented = request.headers.get("Authorization", "").partition(" ")
        # The text of a header stands for its bytes.
        return scheme.lower() == "bearer" and hmac.compare_digest(presented.encode("latin-1").strip(), self._token)


class _Records:
    """The records, within bounds."""

    def __init__(self, most_keys: int, most_bytes: int) -> None:
        self._most_keys, self._most_bytes = most_keys, most_bytes
        self._guard = threading.Lock()
        self._values: dict[str, bytes] = {}
        self._bytes = 0

    def get(self, key: str) -> Response:
        with self._guard:
            value = self._values.get(key)
        return text(404, "metadata not found") if value is None else Response(200, value)

    def put(self, key: str, value: bytes) -> Response:
        with self._guard:
            old = self._values.get(key)
            if old is not None and "rpc_meta" in key:
                # An engine's address must not move to another engine unnoticed.
                if old == value:
                    return text(200, "metadata unchanged")
                return text(400, "Duplicate rpc_meta key not allowed")
            if old is None and len(self._values) >= self._most_keys:
                return text(507, "metadata key budget exhausted")
            size = self._bytes + _size(key, value) - (0 if old is None else _size(key, old))
            if size > self._most_bytes:
                return text(507, "metadata size budget exhausted")
            self._values[key], self._bytes = value, size
        return text(200, "metadata updated")

    def delete(self, key: str) -> Response:
        with self._guard:
            value = self._values.pop(key, None)
            if value is None:
                return text(404, "metadata not found")
            self._bytes -= _size(key, value)
        return text(200, "metadata deleted")


def _size(key: str, value: bytes) -> int:
    return len(key.encode(errors="surrogatepass")) + len(value)


def _positive(environ: Mapping[str, str], name: str, default: int) -> int:
    given = environ.get(name)
    if not given:
        return default
    if not (given.isascii() and given.isdigit() and int(given)):
        raise ValueError(f"{name} must be a positive integer, got {given!r}")
    return int(given)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def main() -> int:
    """Serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="mooncake_http_metadata_server", description="Records of Mooncake's transfer engines")
    parser.add_argument("--port", type=int, default=8080, help="port to listen on (default: 8080)")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (default: 0.0.0.0)")
    levels = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
    parser.add_argument("--log-level", choices=levels, default="INFO", help="level of the log (default: INFO)")
    given = parser.parse_args()
    if not 0 < given.port < 65536:
        parser.error(f"argument --port: {given.port} is no port: write a number from 1 to 65535")
    # Blocked before there are threads, which inherit it: the signal then waits for this thread.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    log.start(getattr(logging, given.log_level))
    try:
        server = KVBootstrapServer(given.port, given.host)
        server.run()
    # A name like `a..b` fails before it is looked up.
    except (OSError, UnicodeError) as error:
        parser.error(f"cannot listen on {given.host}:{given.port}: {error}; choose another with --host and --port")
    except ValueError as error:
        parser.error(str(error))
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    _log.info("Shutting down...")
    server.close()
    log.drain()
    return 0


if __name__ == "__main__":
    sys.exit(main())
