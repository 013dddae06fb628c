"""`python -m mooncake.mooncake_store_service`: lends memory to an mc pool, and answers a REST API over its objects."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote

from ._services import log
from ._services.http import Limits, Request, Response, Server, as_json, text
from ._services.store import StartFailed, block_signals, open_store, start_health_server, wait_for_end
from .mooncake_config import MooncakeConfig, override
from .store import MooncakeDistributedStore

# Started as a module, its name is `__main__`.
_log = logging.getLogger("mooncake.mooncake_store_service")

_BODY = 100 << 20
_MOST_GRACE_SECONDS = 3600
_NO_FILES = "segments are memory that this service allocates, and are not mapped from files: use /api/mount with a size"
_NO_DISK = "this service has no segment on disk: the pool keeps objects in memory"


class MooncakeStoreService:
    """The REST API over a store."""

    def __init__(self, store: MooncakeDistributedStore, config: MooncakeConfig) -> None:
        self._store, self._config = store, config
        self._exact: dict[tuple[str, str], Callable[[Request], Response]] = {
            ("PUT", "/api/put"): self._put,
            ("DELETE", "/api/remove_all"): self._remove_all,
            ("POST", "/api/mount"): self._mount,
            ("POST", "/api/unmount"): self._unmount,
            ("POST", "/api/mount_shm"): self._mount_shm,
            ("POST", "/api/unmount_shm"): self._unmount_shm,
            ("POST", "/api/unmount_local_disk"): self._unmount_local_disk,
            ("POST", "/api/reconfigure"): self._reconfigure,
        }
        self._of_a_key: dict[tuple[str, str], Callable[[str], Response]] = {
            ("GET", "/api/get"): self._get,
            ("GET", "/api/exist"): self._exist,
            ("DELETE", "/api/remove"): self._remove,
        }

    def answer(self, request: Request) -> Response:
        """Answers a request, with upstream's status codes."""
        try:
            return self._answer(request)
        except _BadBody as error:
            return _error(500, str(error))

    def _answer(self, request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        if handler := self._exact.get((method, request.path)):
            return handler(request)
        folder, _, escaped = request.path.rpartition("/")
        if (of_a_key := self._of_a_key.get((method, folder))) and escaped:
            try:
                return of_a_key(unquote(escaped, errors="strict"))
            except UnicodeDecodeError as error:
                return _error(400, f"the key {escaped[:100]!r} is no UTF-8: {error}")
        allowed = {known for known, path in self._exact if path == request.path}
        allowed |= {known for known, path in self._of_a_key if path == folder and escaped}
        if allowed:
            return Response(405, b"405: Method Not Allowed", "text/plain", {"Allow": ",".join(sorted(allowed))})
        return text(404, "404: Not Found", "text/plain")

    def _put(self, request: Request) -> Response:
        fields = _fields(request)
        key, value = fields.get("key"), fields.get("value")
        if not key or value is None:
            return _error(400, "Missing key or value")
        if not isinstance(key, str) or not isinstance(value, str):
            return _error(500, f"key and value are text, not {type(key).__name__} and {type(value).__name__}")
        code = self._store.put(key, value.encode())
        if code == 0:
            return _success()
        reason = ": local_buffer_size is 0, so this service only lends memory" if self._config.local_buffer_size == 0 else f", ret={code}"
        return _error(500, f"PUT operation failed{reason}")

    def _get(self, key: str) -> Response:
        # A value that is gone in between reads as empty, and no value in the pool is empty.
        exists = self._store.is_exist(key)
        value = self._store.get(key) if exists > 0 else b""
        if value:
            return Response(200, value, "application/octet-stream")
        if exists > 0:
            exists = self._store.is_exist(key)
        if exists < 0:
            return _error(500, "Exist check failed")
        return _error(500, "GET operation failed") if exists else _error(404, "Key not found")

    def _exist(self, key: str) -> Response:
        exists = self._store.is_exist(key)
        return _error(500, "Exist check failed") if exists < 0 else as_json(200, {"exists": exists > 0})

    def _remove(self, key: str) -> Response:
        code = self._store.remove(key)
        return _success() if code == 0 else _error(500, f"Remove operation failed, ret={code}")

    def _remove_all(self, request: Request) -> Response:
        count = self._store.remove_all()
        if count < 0:
            return _error(500, f"RemoveAll operation failed, ret={count}")
        return as_json(200, {"status": f"success removed {count} keys"})

    def _mount(self, request: Request) -> Response:
        size = _fields(request).get("size")
        if type(size) is not int or size <= 0:
            return _error(400, f"Invalid size, must be a positive integer: {size!r}"[:200])
        result = self._store.allocate_and_mount_segment(size)
        if result["ret"] != 0:
            return _error(500, f"Allocate and mount failed, ret={result['ret']}")
        return as_json(200, {"status": "success", "segment_ids": result["segment_ids"], "allocated_size": result["allocated_size"]})

    def _unmount(self, request: Request) -> Response:
        segments = _segment_ids(_fields(request))
        if not segments:
            return _error(400, "Missing segment_ids")
        code = self._store.unmount_and_free_segment(segments)
        return _success() if code == 0 else _error(500, f"Unmount and free failed, ret={code}")

    def _mount_shm(self, request: Request) -> Response:
        fields = _fields(request)
        name = fields.get("name")
        bare = name.removeprefix("/") if isinstance(name, str) else ""
        if not bare or "/" in bare or bare in (".", "..") or fields.get("size") is None:
            return _error(400, "Missing or invalid name or size")
        return _error(501, _NO_FILES)

    def _unmount_shm(self, request: Request) -> Response:
        return _error(501, _NO_FILES) if _segment_ids(_fields(request)) else _error(400, "Missing segment_ids")

    def _unmount_local_disk(self, request: Request) -> Response:
        try:
            fields = json.loads(request.read_body())
        except (ValueError, RecursionError):
            return _error(400, "Malformed JSON body")
        if not isinstance(fields, dict):
            return _error(400, "Request body must be a JSON object")
        seconds = fields.get("grace_period_seconds", 0)
        if type(seconds) is not int or not 0 <= seconds <= _MOST_GRACE_SECONDS:
            return _error(400, f"Invalid grace_period_seconds, must be a non-negative integer no greater than {_MOST_GRACE_SECONDS}")
        return _error(501, _NO_DISK)

    def _reconfigure(self, request: Request) -> Response:
        fields = _fields(request)
        mode = str(fields.get("mode", "")).lower()
        if mode == "prefill":
            return as_json(200, {"status": "success", "mode": mode})
        if mode != "decode":
            return _error(400, "Invalid mode. Use 'decode' or 'prefill'")
        if not fields.get("path") or fields.get("size") is None:
            return _error(400, "Missing path or size for decode mode")
        return _error(501, _NO_FILES)


class _BadBody(ValueError):
    """The body is no JSON object, or has a field of another type. Upstream answers 500."""


def _fields(request: Request) -> dict[str, Any]:
    body = request.read_body()
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _BadBody(f"the body is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise _BadBody(f"the body is a JSON {type(fields).__name__}, and not an object")
    return fields


def _segment_ids(fields: dict[str, Any]) -> list[str]:
    segments = fields.get("segment_ids")
    if segments is None:
        return []
    if isinstance(segments, str):
        return [segments]
    if not isinstance(segments, list) or not all(isinstance(segment, str) for segment in segments):
        raise _BadBody(f"segment_ids is a list of text, not {json.dumps(segments)[:100]}")
    return segments


def _success() -> Response:
    return as_json(200, {"status": "success"})


def _error(status: int, reason: str) -> Response:
    return as_json(status, {"error": reason})


def main() -> int:
    """Serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="mooncake_store_service", description="Mooncake Store Service with REST API, over an mc pool")
    parser.add_argument("--config", help="JSON file with the settings (default: MOONCAKE_CONFIG_PATH, or else the variables MOONCAKE_*)")
    parser.add_argument("-D", "--define", action="append", default=[], metavar="KEY=VALUE", help="override a setting: -Dtenant_id=a")
    parser.add_argument("--port", type=int, default=8080, help="port of the REST API (default: 8080)")
    parser.add_argument("--max-wait-time", type=float, default=60.0, help="seconds to look for the masters (default: 60)")
    given = parser.parse_args()
    if not 0 < given.port < 65536:
        parser.error(f"argument --port: {given.port} is no port: write a number from 1 to 65535")
    if not (given.max_wait_time >= 0 and math.isfinite(given.max_wait_time)):
        parser.error(f"argument --max-wait-time: {given.max_wait_time} is no number of seconds")
    block_signals()
    log.start()
    try:
        return _serve(_read_config(given.config, given.define), given.port, given.max_wait_time)
    except StartFailed as error:
        _log.error("%s", error)
        return 1
    finally:
        log.drain()


def _read_config(path: str | None, defined: list[str]) -> MooncakeConfig:
    source = path or os.environ.get("MOONCAKE_CONFIG_PATH")
    try:
        config = MooncakeConfig.from_file(path) if path else MooncakeConfig.load_from_env()
        fields = {}
        for item in defined:
            key, equals, value = item.partition("=")
            if equals:
                fields[key.strip()] = value
            else:
                _log.warning("Ignoring invalid CLI config: %s", item)
        for key in fields.keys() - asdict(config).keys():
            _log.warning("-D%s=%s is ignored: there is no such setting, but %s", key, fields.pop(key), ", ".join(asdict(config)))
        return override(config, fields)
    except (OSError, ValueError, TypeError) as error:
        where = f"of {source}" if source else "of the variables MOONCAKE_*"
        raise StartFailed(f"the configuration {where} can't be used: {error}") from None


def _serve(config: MooncakeConfig, port: int, seconds: float) -> int:
    # Bound before the store is opened: a port that is taken is an error at once. Connections are accepted when the store is ready.
    try:
        server = Server("0.0.0.0", port, Limits(body=_BODY, bodies=4 * _BODY))
    except OSError as error:
        raise _port_taken(port, error) from None
    store = open_store(
        {
            "local_hostname": config.local_hostname,
            "metadata_server": config.metadata_server,
            "global_segment_size": config.global_segment_size,
            "local_buffer_size": config.local_buffer_size,
            "protocol": config.protocol,
            "rdma_devices": config.device_name,
            "master_server_addr": config.master_server_address,
            "enable_ssd_offload": config.enable_ssd_offload,
            "ssd_offload_path": config.ssd_offload_path,
            "tenant_id": config.tenant_id,
        },
        seconds,
    )
    if store is None:
        return 0
    try:
        _log.info("Store service started successfully on %s", store.get_hostname())
        health = start_health_server(store, config.client_http_port) if config.enable_client_http_server else None
        try:
            server.start(MooncakeStoreService(store, config).answer)
        except OSError as error:
            raise _port_taken(port, error) from None
        _log.info("REST API started on port %d", port)
        _log.info("Mooncake Store Service is running")
        wait_for_end()
        server.stop()
        if health is not None:
            health.stop()
    finally:
        store.close()
        _log.info("Mooncake service stopped")
    return 0


def _port_taken(port: int, error: OSError) -> StartFailed:
    return StartFailed(f"cannot listen on port {port}: {error}; choose another with --port")


def sync_main() -> int:
    """Entry point of `mc_store_rest_server`, with upstream's name."""
    return main()


if __name__ == "__main__":
    sys.exit(main())
