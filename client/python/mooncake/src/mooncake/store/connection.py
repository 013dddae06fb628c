"""Setup, state and end of a store object."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, overload

from mc import McError

from .._introduction import NoIntroduction, ask
from . import settings as _settings
from .codes import HEALTHY, INVALID_PARAMS, NO_LEADER, NOT_SET_UP, OK, UNAVAILABLE
from .link import Link, SetupFailed, open_link

_log = logging.getLogger(__name__)


class Connection:
    """What every family of calls is built on: a link to the pool, or none."""

    # On the class, so that it is there in subclasses whose `__init__` does not call ours.
    _link: Link | None = None

    @overload
    def setup(self, config: Mapping[str, Any], /) -> int: ...

    @overload
    def setup(
        self,
        local_hostname: str,
        metadata_server: str,
        global_segment_size: int | str,
        local_buffer_size: int | str,
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
    ) -> int: ...

    def setup(self, *args: Any, **kwargs: Any) -> int:
        """Connect to the pool, and add memory to it.

        setup(local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol="tcp", rdma_devices="",
              master_server_addr="", engine=None, enable_ssd_offload=False, ssd_offload_path="", tenant_id="default",
              enable_client_http_server=False, client_http_port=9300, enable_embedded_master=False) -> int
        setup(config: dict) -> int

        Returns 0, or a negative number within ten seconds, not counted the time in which the kernel provides the memory;
        the log then says what was tried. TypeError names an argument that is unknown or of a wrong type. The environment
        variable MC_MASTERS takes the place of the masters' address, MC_LOCAL_CACHE that of the local cache's size, and
        MC_PUT_TIMEOUT is the time limit of a put in seconds: 0.9 by default after setup(config), 10 after the other form.
        """
        try:
            wanted = _read_arguments(args, kwargs)
        except _settings.InvalidSettings as error:
            _log.error("setup: %s", error)
            return INVALID_PARAMS
        return self._open(wanted)

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Connect as a client without memory of its own, beside the `mooncake_client` at `server_address` on this host.

        The service says where the masters are, and in which tenant it is. Objects move over shared memory if the other side's memory
        can be shared, so nothing else goes through it. Without the service the masters are those of MC_MASTERS or MOONCAKE_MASTER.
        `mem_pool_size` is accepted: memory is shared as it is allocated.
        """
        del mem_pool_size
        try:
            service = ask(server_address)
        except NoIntroduction as error:
            if not (os.environ.get("MC_MASTERS") or os.environ.get("MOONCAKE_MASTER")):
                _log.error("setup_dummy: %s. Start it, or set MC_MASTERS to the masters' addresses", error)
                return UNAVAILABLE
            _log.warning("setup_dummy: %s. Going on with the masters of the environment", error)
            return self.setup("localhost", "", 0, local_buffer_size)
        masters, tenant = service.masters, service.tenant_id
        return self.setup(service.hostname, "", 0, local_buffer_size, service.protocol, service.device_names, masters, tenant_id=tenant)

    def init_all(self, protocol: str, device_name: str, mount_segment_size: int, /) -> int:
        """Upstream's shorthand of `setup`: this host, and masters by MC_MASTERS, MOONCAKE_MASTER or on this host."""
        return self.setup("localhost", "", mount_segment_size, 1 << 30, protocol, device_name)

    def _open(self, wanted: _settings.Settings) -> int:
        # A second setup replaces the first.
        self.close()
        try:
            self._link = open_link(wanted)
        except SetupFailed as error:
            _log.error("setup: %s", error)
            return INVALID_PARAMS if error.invalid else UNAVAILABLE
        except (McError, ValueError, OverflowError) as error:
            _log.error("setup with the masters %s: %s", wanted.masters, error)
            return UNAVAILABLE
        return OK

    def close(self) -> int:
        """Unmount the embedded store and disconnect. Returns 0, also if there is nothing to close."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
        return OK

    def health_check(self) -> int:
        """0 with a leader, 1 before setup and after close, 2 without a leader."""
        link = self._link
        if link is None:
            return NOT_SET_UP
        return {"healthy": HEALTHY, "no-leader": NO_LEADER}.get(link.client.health, NOT_SET_UP)

    def get_hostname(self) -> str:
        """`host:port` of the embedded store, which `preferred_segment` understands. "" before setup."""
        link = self._link
        return "" if link is None else link.name

    def _local_buffer(self) -> int | None:
        """`local_buffer_size` of the setup, or None before it."""
        link = self._link
        return None if link is None else link.settings.local_buffer

    def stats(self) -> dict[str, int]:
        """Counters of this client. {} before setup."""
        link = self._link
        return {} if link is None else link.client.stats()


def _read_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _settings.Settings:
    config = args[0] if len(args) == 1 and not kwargs else None
    if not args and kwargs.keys() == {"config"}:
        config = kwargs["config"]
    if isinstance(config, Mapping):
        return _settings.from_mapping(os.environ, config)
    return _settings.from_arguments(os.environ, *args, **kwargs)
