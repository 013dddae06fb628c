"""What `setup` was asked for, read from its arguments and the environment. No input and output here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, SupportsIndex

from .._addresses import InvalidAddress, parse_masters, split_host_port
from .._sizes import parse_size

_log = logging.getLogger(__name__)

MIN_SEGMENT = 1 << 20
_TRANSPORTS = ("auto", "shm", "tcp", "rdma")
_DICT_SIZE = "16mb"
_DEFAULT_MASTER = "127.0.0.1:50051"
# LMCache runs puts under a limit of one second, and then uses the buffer for something else.
_DICT_PUT_SECONDS = 0.9
_PUT_SECONDS = 10.0

# Spellings that engines use, and the name of the argument.
_ALIASES = {
    "master_server_address": "master_server_addr",
    "device_name": "rdma_devices",
}

_NO_EFFECT = {
    "enable_ssd_offload": "stores keep objects in memory",
    "enable_client_http_server": "metrics are served by the masters and the stores, and `stats()` has this client's",
    "enable_egm_store_pool": "segments are ordinary memory of the host",
    "enable_ssd_prefetch": "stores keep objects in memory",
}


class InvalidSettings(ValueError):
    """An argument of `setup` can't be used. The text names it and says what would do."""


@dataclass(frozen=True)
class Settings:
    """Arguments of `setup`, in this project's terms."""

    host: str
    """Name of this host among the stores."""
    port: int | None
    """Port that came with the name. It belongs to the engine: nothing here binds it."""
    masters: str
    segment: int
    """Bytes that the embedded store adds to the pool. 0: none."""
    cache: int
    local_buffer: int
    """Bytes of upstream's local buffer. 0: this process serves memory, and `put` is refused."""
    transports: str
    """Choice of transports: "auto", "shm", "tcp" or "rdma"."""
    rdma: bool
    """Whether RDMA was asked for. It is used where it is there."""
    rdma_devices: str
    tenant: str
    put_seconds: float


def from_arguments(
    environ: Mapping[str, str],
    local_hostname: str,
    metadata_server: str,
    global_segment_size: str | SupportsIndex,
    local_buffer_size: str | SupportsIndex,
    protocol: str = "tcp",
    rdma_devices: str = "",
    master_server_addr: str = "",
    engine: object = None,
    enable_ssd_offload: bool = False,
    ssd_offload_path: str = "",
    tenant_id: str = "default",
    enable_client_http_server: bool = False,
    client_http_port: int = 9300,
    enable_embedded_master: bool = False,
) -> Settings:
    """Settings of a positional or keyword call. TypeError names an argument that is unknown, missing or of another type.

    `metadata_server` and `engine` are accepted and not needed: the masters know the stores, and clients open their own
    connections. `ssd_offload_path` and `client_http_port` belong to options without effect.
    """
    texts = {"local_hostname": local_hostname, "protocol": protocol, "rdma_devices": rdma_devices}
    texts |= {"master_server_addr": master_server_addr, "tenant_id": tenant_id}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"setup(): {name} is text, not {type(text).__name__}")
    del metadata_server, engine, ssd_offload_path, client_http_port
    _warn_without_effect({"enable_ssd_offload": enable_ssd_offload, "enable_client_http_server": enable_client_http_server})
    return _settings(
        environ,
        local_hostname=local_hostname,
        segment=global_segment_size,
        local_buffer=local_buffer_size,
        protocol=protocol,
        rdma_devices=rdma_devices,
        masters=master_server_addr,
        tenant=tenant_id,
        embedded_master=enable_embedded_master,
        default_put_seconds=_PUT_SECONDS,
    )


# For the TypeError that names an unknown argument: engines know the method.
from_arguments.__qualname__ = "setup"


def from_mapping(environ: Mapping[str, str], config: Mapping[str, Any]) -> Settings:
    """Settings of a dict: upstream's keys, and LMCache's spellings of them. Unknown keys are ignored, as upstream's."""
    known = {_ALIASES.get(key, key): value for key, value in config.items() if value is not None}
    if not known.get("local_hostname"):
        raise InvalidSettings("the configuration has no 'local_hostname': set it to this host's name or address")
    _warn_without_effect({key: _is_true(known.get(key)) for key in _NO_EFFECT})
    return _settings(
        environ,
        local_hostname=str(known["local_hostname"]),
        segment=known.get("global_segment_size", _DICT_SIZE),
        local_buffer=known.get("local_buffer_size", _DICT_SIZE),
        protocol=str(known.get("protocol", "tcp")),
        rdma_devices=str(known.get("rdma_devices", "")),
        masters=str(known.get("master_server_addr", "")),
        tenant=str(known.get("tenant_id", "default")),
        embedded_master=_is_true(known.get("enable_embedded_master")),
        default_put_seconds=_DICT_PUT_SECONDS,
    )


def _settings(
    environ: Mapping[str, str],
    *,
    local_hostname: str,
    segment: str | SupportsIndex,
    local_buffer: str | SupportsIndex,
    protocol: str,
    rdma_devices: str,
    masters: str,
    tenant: str,
    embedded_master: bool,
    default_put_seconds: float,
) -> Settings:
    if embedded_master:
        raise InvalidSettings("enable_embedded_master: this process starts no master; run `mcctl playground` for a trial")
    segment_bytes = _size("global_segment_size", segment)
    if 0 < segment_bytes < MIN_SEGMENT:
        raise InvalidSettings(f"global_segment_size is {segment_bytes} bytes: use 0 for none, or 1 MiB and more")
    buffer_bytes = _size("local_buffer_size", local_buffer)
    host, port = split_host_port(local_hostname)
    rdma = protocol.strip().lower() == "rdma"
    return Settings(
        host=host,
        port=port,
        masters=_masters(environ, masters),
        segment=segment_bytes,
        cache=_size("MC_LOCAL_CACHE", environ.get("MC_LOCAL_CACHE") or buffer_bytes),
        local_buffer=buffer_bytes,
        transports=_transports(environ, rdma),
        rdma=rdma,
        rdma_devices=rdma_devices if rdma and rdma_devices != "auto-discovery" else "",
        tenant="" if tenant == "default" else tenant,
        put_seconds=_put_seconds(environ, default_put_seconds),
    )


def _transports(environ: Mapping[str, str], rdma: bool) -> str:
    given = environ.get("MC_TRANSPORT")
    if not given:
        # Shared memory is a faster way to the same bytes, so the protocol "tcp" excludes RDMA only.
        return "auto" if rdma else "shm"
    if given not in _TRANSPORTS:
        raise InvalidSettings(f"MC_TRANSPORT is {given!r}: set it to one of {', '.join(_TRANSPORTS)}")
    return given


def _masters(environ: Mapping[str, str], argument: str) -> str:
    text = environ.get("MC_MASTERS") or argument.strip() or environ.get("MOONCAKE_MASTER") or _DEFAULT_MASTER
    try:
        masters = parse_masters(text)
    except InvalidAddress as error:
        raise InvalidSettings(str(error)) from None
    if not masters:
        raise InvalidSettings(f"{text!r} names no master: set MC_MASTERS to their addresses, such as a:50051,b:50051")
    return masters


def _put_seconds(environ: Mapping[str, str], default: float) -> float:
    """Time limit of a put: MC_PUT_TIMEOUT, or else `default`."""
    text = environ.get("MC_PUT_TIMEOUT")
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidSettings(f"MC_PUT_TIMEOUT is {text!r}: set it to a number of seconds, such as 0.9")
    return seconds


def _size(name: str, value: str | SupportsIndex) -> int:
    try:
        return parse_size(value)
    except TypeError as error:
        raise TypeError(f"setup(): {name}: {error}") from None
    except ValueError as error:
        raise InvalidSettings(f"{name}: {error}") from None


def _is_true(value: object) -> bool:
    return str(value).strip().lower() in ("true", "1", "yes", "on")


def _warn_without_effect(options: Mapping[str, bool]) -> None:
    for name in (name for name, wanted in options.items() if wanted):
        _log.warning("%s has no effect: %s", name, _NO_EFFECT[name])
