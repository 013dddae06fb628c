"""Mooncake's configuration, from a JSON file or from the environment."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._sizes import parse_size as _parse_segment_size

DEFAULT_GLOBAL_SEGMENT_SIZE = 3_355_443_200
DEFAULT_LOCAL_BUFFER_SIZE = 1 << 30

logger = logging.getLogger(__name__)

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


def _from_fields(fields: Mapping[str, Any]) -> MooncakeConfig:
    return MooncakeConfig(
        local_hostname=fields["local_hostname"],
        metadata_server=fields["metadata_server"],
        global_segment_size=_parse_segment_size(fields.get("global_segment_size", DEFAULT_GLOBAL_SEGMENT_SIZE)),
        local_buffer_size=_parse_segment_size(fields.get("local_buffer_size", DEFAULT_LOCAL_BUFFER_SIZE)),
        protocol=fields.get("protocol", "tcp"),
        device_name=fields.get("device_name", ""),
        master_server_address=fields["master_server_address"],
        enable_ssd_offload=_parse_bool(fields.get("enable_ssd_offload")),
        ssd_offload_path=_text(fields.get("ssd_offload_path"), ""),
        tenant_id=_text(fields.get("tenant_id"), "default"),
        enable_client_http_server=_parse_bool(fields.get("enable_client_http_server")),
        client_http_port=int(fields.get("client_http_port", 9300)),
    )


def _text(value: object, default: str) -> str:
    return default if value is None else str(value)


def _parse_bool(value: object) -> bool:
    if value is None or isinstance(value, (bool, int, float)):
        return bool(value)
    word = str(value).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"{value!r} is neither true nor false")
