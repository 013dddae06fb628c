"""Mooncake's configuration, from a JSON file or from the environment."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ._sizes import parse_size as _parse_segment_size

DEFAULT_GLOBAL_SEGMENT_SIZE = 3_355_443_200
DEFAULT_LOCAL_BUFFER_SIZE = 1 << 30

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Protocol names of this package and of upstream. The choice only says whether to use RDMA.
_PROTOCOLS = {"tcp", "rdma", "efa", "nvmeof", "nvlink", "nvlink_intra", "musa", "hip", "barex", "cxl", "ascend"}
_PROTOCOLS |= {"ub", "ubshmem", "maca", "sunrise_link", "rpc_only"}
_TRUE = frozenset({"true", "1", "yes", "on", "enable"})
_FALSE = frozenset({"false", "0", "no", "off", "disable", ""})

# Fields and the variables that set them when there is no file.
_VARIABLES = {
    "local_hostname": "MOONCAKE_LOCAL_HOSTNAME",
    "metadata_server": "MOONCAKE_TE_META_DATA_SERVER",
    "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
    "protocol": "MOONCAKE_PROTOCOL",
    "device_name": "MOONCAKE_DEVICE",
    "master_server_address": "MOONCAKE_MASTER",
    "enable_ssd_offload": "MOONCAKE_OFFLOAD_ENABLED",
    "ssd_offload_path": "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
    "tenant_id": "MOONCAKE_TENANT_ID",
    "enable_client_http_server": "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",
    "client_http_port": "MOONCAKE_CLIENT_HTTP_PORT",
}


@dataclass
class MooncakeConfig:
    """Arguments of `MooncakeDistributedStore.setup`, with upstream's names and defaults."""

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str | None
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300

    def __post_init__(self) -> None:
        if not isinstance(self.protocol, str) or not self.protocol.strip():
            raise ValueError(f"Invalid protocol: {self.protocol!r} is not the name of one, such as 'tcp' or 'rdma'")
        self.protocol = self.protocol.strip().lower()
        if self.protocol not in _PROTOCOLS:
            logger.warning("Unrecognised protocol %r: the store uses shared memory and TCP", self.protocol)
        for field in ("local_hostname", "metadata_server", "master_server_address"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"Mooncake's configuration needs text for {field!r}, and has {value!r}")
        for field in ("global_segment_size", "local_buffer_size"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field!r} of Mooncake's configuration is negative: {getattr(self, field)}")

    @staticmethod
    def from_file(file_path: str) -> MooncakeConfig:
        """Configuration of the JSON file at `file_path`. ValueError names a missing or malformed field."""
        fields = json.loads(Path(file_path).read_text(encoding="utf-8"))
        if not isinstance(fields, dict):
            raise ValueError(f"{file_path} holds {type(fields).__name__} in place of a JSON object")
        for field in ("local_hostname", "metadata_server", "master_server_address"):
            if field not in fields:
                raise ValueError(f"Missing required config field: {field}")
        return _from_fields(fields)

    @staticmethod
    def load_from_env() -> MooncakeConfig:
        """Configuration of the file named by MOONCAKE_CONFIG_PATH, or else of the variables MOONCAKE_*."""
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path is not None:
            return MooncakeConfig.from_file(path)
        if not os.environ.get("MOONCAKE_MASTER"):
            raise ValueError("Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor 'MOONCAKE_MASTER' is set.")
        fields: dict[str, Any] = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE"}
        fields.update({field: os.environ[name] for field, name in _VARIABLES.items() if name in os.environ})
        return _from_fields(fields)


def override(config: MooncakeConfig, fields: Mapping[str, Any]) -> MooncakeConfig:
    """`config` with other values of some fields, which may be text. ValueError names one that can't be used."""
    return _from_fields({**asdict(config), **fields})


def _from_fields(fields: Mapping[str, Any]) -> MooncakeConfig:
    def read(name: str, default: Any, convert: Callable[[Any], T]) -> T:
        try:
            return convert(fields.get(name, default))
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{name!r} of Mooncake's configuration: {error}") from None

    return MooncakeConfig(
        local_hostname=fields["local_hostname"],
        metadata_server=fields["metadata_server"],
        global_segment_size=read("global_segment_size", DEFAULT_GLOBAL_SEGMENT_SIZE, _parse_segment_size),
        local_buffer_size=read("local_buffer_size", DEFAULT_LOCAL_BUFFER_SIZE, _parse_segment_size),
        protocol=fields.get("protocol", "tcp"),
        device_name=read("device_name", "", _text),
        master_server_address=fields["master_server_address"],
        enable_ssd_offload=read("enable_ssd_offload", False, _parse_bool),
        ssd_offload_path=read("ssd_offload_path", "", _text),
        tenant_id=read("tenant_id", "default", lambda value: "default" if value is None else _text(value)),
        enable_client_http_server=read("enable_client_http_server", False, _parse_bool),
        client_http_port=read("client_http_port", 9300, _port),
    )


def _text(value: object) -> str:
    if isinstance(value, list | dict):
        raise TypeError(f"{value!r} is no text")
    return "" if value is None else str(value)


def _port(value: Any) -> int:
    port = int(value)
    if not 0 < port < 65536:
        raise ValueError(f"{value!r} is no port: write a number from 1 to 65535")
    return port


def _parse_bool(value: object) -> bool:
    if value is None or isinstance(value, (bool, int, float)):
        return bool(value)
    word = str(value).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"{value!r} is neither true nor false")
