"""From the command line of `mooncake_master` to that of `mc-master`. No input and output here, but for names and interfaces."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .._addresses import join_host_port, split_host_port
from .flags import FlagError, Given, log_level, without_effect
from .master_flags import TABLE

RAFT_PORT = 50055
# The default port for the other masters is so far from the one for clients.
_RAFT_OFFSET = 4
_ANY = frozenset({"0.0.0.0", "::"})
_UNITS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")
_ORDINAL = re.compile(r"-(\d+)$")
# As mc-master reads a variable.
_TRUE = frozenset({"1", "true", "yes", "on"})
_LEVELS = {logging.DEBUG: "debug", logging.WARNING: "warn", logging.ERROR: "error"}


@dataclass(frozen=True)
class Command:
    """What to start."""

    arguments: list[str]
    """Arguments of mc-master."""
    warnings: list[str]
    """Lines for the log."""


@dataclass(frozen=True)
class Host:
    """The host that the master runs on."""

    name: str
    address_of: Callable[[str], str]
    """An IP address of a host name. OSError if there is none, UnicodeError if it can't be one."""
    address_of_interface: Callable[[str], str]
    """The IPv4 address of a network interface. OSError if there is none, UnicodeError if it can't be one."""
    address_for_others: Callable[[], str | None]
    """The address that others see this host at, as far as it is known."""


def command(given: Given, environ: Mapping[str, str], host: Host) -> Command:
    """The command for these flags. FlagError if there is none.

    A flag of mc-master is passed for what was given, and for Mooncake's defaults that differ. A variable MC_* takes the place of a
    default, and never that of a flag. With a file (MC_CONFIG) nothing is passed but what was given: a default would win over the file.
    """
    return _Translation(given, environ, host).command()


class _Translation:
    def __init__(self, given: Given, environ: Mapping[str, str], host: Host) -> None:
        self.given, self.environ, self.host = given, environ, host
        self.has_file = bool(environ.get("MC_CONFIG"))
        self.warnings = [*without_effect(TABLE, given), *(f"{word!r} belongs to no flag, and is ignored" for word in given.words)]

    def command(self) -> Command:
        port = self.port("rpc_port", 0) or self.port("port", 50051)
        address = self.address()
        peers = self.given.text("peers") or self.environ.get("MC_PEERS", "")
        arguments = self.formation(peers)
        if "--single" in arguments:
            self.check_single()
        arguments += self.listen("listen", {"rpc_port", "port", "rpc_address", "rpc_interface"}, address, port)
        arguments += self.http()
        arguments += self.raft(peers, address, port)
        arguments += self.option("data-dir", f"mc-data/mooncake_master-{port}")
        arguments += self.option("advertise", self.advertised(peers, address))
        arguments += self.option("disk-reserve", "")
        arguments += ["--ephemeral"] if self.given.is_true("ephemeral") else []
        arguments += self.durations()
        arguments += self.metrics()
        arguments += self.log()
        return Command(arguments, self.warnings)

    def formation(self, peers: str) -> list[str]:
        """Flags that say which cluster this master belongs to."""
        if self.given.is_true("single", default=self.is_true("MC_SINGLE")):
            if peers:
                raise FlagError(f"--single and the masters {peers} exclude each other: leave one of --single and --peers (MC_PEERS) out")
            return ["--single"]
        size = self.given.number("cluster_size", 0)
        if self.given.text("peers"):
            return ["--peers", peers, *(["--cluster-size", str(size)] if size else [])]
        if peers or self.has_file:
            return ["--cluster-size", str(size)] if size else []
        if self.given.is_true("enable_ha"):
            raise FlagError(
                "--enable_ha without --peers: masters elect their leader among themselves, and have to know each other. Name all of"
                " them with --peers a,b,c or MC_PEERS; etcd is not needed"
            )
        if (pod := self.later_pod()) is not None:
            raise FlagError(
                f"this is {pod}, and no other masters are known: each pod would form a cluster of its own, all behind one name. Name all"
                " masters with --peers a,b,c or MC_PEERS, or give --single if this master is meant to be alone"
            )
        # The variable is false if it is set.
        return [] if self.environ.get("MC_SINGLE") else ["--single"]

    def check_single(self) -> None:
        """Refuses what a cluster of one can't have."""
        size = self.given.text("cluster_size", self.environ.get("MC_CLUSTER_SIZE", ""))
        if size not in ("", "0", "1"):
            raise FlagError(
                f"--cluster_size={size} without --peers: masters have to know each other, and this one would be alone. Name all of them"
                " with --peers a,b,c or MC_PEERS"
            )
        if self.given.is_true("ephemeral", default=self.is_true("MC_EPHEMERAL")):
            raise FlagError(
                "--ephemeral without --peers: no other master has the data of a cluster of one. Name all masters with --peers a,b,c or"
                " MC_PEERS, or leave the flag out"
            )

    def is_true(self, variable: str) -> bool:
        return self.environ.get(variable, "").lower() in _TRUE

    def later_pod(self) -> str | None:
        """The pod that this is, if it is not the first of its role."""
        index = self.environ.get("RBG_ROLE_INDEX", "")
        if index.isdecimal():
            return f"pod {index} of its role (RBG_ROLE_INDEX)" if int(index) else None
        if not self.environ.get("KUBERNETES_SERVICE_HOST"):
            return None
        name = self.given.text("pod_name") or self.environ.get("POD_NAME") or self.host.name
        ordinal = _ORDINAL.search(name.partition(".")[0])
        return f"the pod {name}" if ordinal and int(ordinal[1]) else None

    def http(self) -> list[str]:
        metrics = self.resolved("metrics_host", self.given.text("metrics_host", "0.0.0.0"))
        arguments = self.listen("http-listen", {"metrics_host", "metrics_port"}, metrics, self.port("metrics_port", 9003))
        has_own = self.has_file or bool(self.environ.get("MC_METADATA_LISTEN"))
        if self.given.is_true("enable_http_metadata_server"):
            names = {"http_metadata_server_host", "http_metadata_server_port"}
            host = self.resolved("http_metadata_server_host", self.given.text("http_metadata_server_host", "0.0.0.0"))
            if names & self.given.values.keys() or not self.environ.get("MC_METADATA_LISTEN"):
                arguments += ["--metadata-listen", join_host_port(host, self.port("http_metadata_server_port", 8080))]
        elif "enable_http_metadata_server" in self.given.values and has_own:
            arguments += ["--metadata-listen", "none"]
        return arguments

    def raft(self, peers: str, address: str, port: int) -> list[str]:
        """Where the other masters reach this one: at the port that the list of peers has for it.

        A cluster of one has no others, and takes a free port: any fixed one may be taken on a host that runs several services.
        """
        given = self.given.text("raft_listen")
        if given or self.has_file or self.environ.get("MC_RAFT_LISTEN"):
            return ["--raft-listen", given] if given else []
        raft = port + _RAFT_OFFSET if peers else 0
        listed = {split_host_port(peer)[1] or RAFT_PORT for peer in peers.split(",") if peer.strip()}
        if len(listed) == 1:
            raft = listed.pop()
        elif listed and raft not in listed:
            raise FlagError(
                f"--peers names the ports {', '.join(map(str, sorted(listed)))}, and none of them is {raft}, four above this master's"
                " port: say which one is its own with --raft_listen IP:PORT"
            )
        return ["--raft-listen", join_host_port(address, raft)]

    def advertised(self, peers: str, address: str) -> str:
        """The host of a cluster of one. Clients and stores go on at the address that a master names, so it has to be one for all."""
        if peers or self.has_file:
            # The list of peers has it, or the file.
            return ""
        return address if address not in _ANY else self.environ.get("POD_IP") or self.host.address_for_others() or ""

    def durations(self) -> list[str]:
        arguments = []
        if "default_kv_lease_ttl" in self.given.values:
            lease = self.milliseconds("default_kv_lease_ttl")
            arguments += ["--read-lease", self.within("default_kv_lease_ttl", lease, 5000, 60_000)]
        named = [name for name in ("client_active_ttl_sec", "client_ttl") if name in self.given.values]
        if named or "client_suspicion_ttl_sec" in self.given.values:
            active = self.given.number(named[0], 10) if named else 10
            # 0.3.13, which has `--client_ttl` alone, knows no suspicion.
            suspicion = 0 if named == ["client_ttl"] else 20
            seconds = active + self.given.number("client_suspicion_ttl_sec", suspicion)
            arguments += ["--store-ttl", self.within(named[0] if named else "client_suspicion_ttl_sec", seconds * 1000, 5000, None)]
        return arguments

    def milliseconds(self, name: str) -> int:
        text = self.given.text(name)
        match = _DURATION.fullmatch(text.strip().lower())
        if match is None or match[2] not in _UNITS:
            raise FlagError(f"illegal value {text!r} specified for flag '{name}': write milliseconds, or a number with ms, s, m or h")
        return int(match[1]) * _UNITS[match[2]]

    def within(self, name: str, value: int, low: int, high: int | None) -> str:
        used = max(value, low) if high is None else min(max(value, low), high)
        if used != value:
            self.warnings.append(f"--{name}: {value} ms are out of the bounds of this pool, and {used} ms are used")
        return f"{used}ms"

    def log(self) -> list[str]:
        level = _LEVELS.get(log_level(self.given))
        return ["--log", f"{level},openraft=off"] if level else []

    def metrics(self) -> list[str]:
        # Tools for Mooncake look for its names at `/metrics`.
        names = [] if self.has_file or self.environ.get("MC_MOONCAKE_METRICS") else ["--mooncake-metrics"]
        if "enable_metric_reporting" in self.given.values:
            return [*names, "--metrics-log", "10s" if self.given.is_true("enable_metric_reporting") else "0s"]
        return [*names, *self.option("metrics-log", "10s")]

    def address(self) -> str:
        interface = self.given.text("rpc_interface")
        if not interface:
            return self.resolved("rpc_address", self.given.text("rpc_address", "0.0.0.0"))
        try:
            return self.host.address_of_interface(interface)
        except (OSError, UnicodeError) as error:
            raise FlagError(f"--rpc_interface={interface}: this host has no such interface with an IPv4 address ({error})") from None

    def resolved(self, name: str, host: str) -> str:
        try:
            return self.host.address_of(host.removeprefix("[").removesuffix("]"))
        except (OSError, UnicodeError) as error:
            raise FlagError(f"--{name}={host} is no address of this host ({error}): write an IP address, such as 0.0.0.0") from None

    def port(self, name: str, default: int) -> int:
        port = self.given.number(name, default)
        if not 0 <= port <= 65535:
            raise FlagError(f"--{name}={port} is no port: write a number from 1 to 65535")
        if not port and name != "rpc_port":
            raise FlagError(f"--{name}=0: others have to know the port; write a number from 1 to 65535")
        return port

    def listen(self, flag: str, names: set[str], host: str, port: int) -> list[str]:
        """The listener's flag, unless a file or a variable MC_* has it and no flag of Mooncake's was given."""
        if names & self.given.values.keys() or not (self.has_file or self.environ.get(f"MC_{flag.replace('-', '_').upper()}")):
            return [f"--{flag}", join_host_port(host, port)]
        return []

    def option(self, flag: str, default: str) -> list[str]:
        name = flag.replace("-", "_")
        value = self.given.text(name)
        if not value and not self.has_file and not self.environ.get(f"MC_{name.upper()}"):
            value = default
        return [f"--{flag}", value] if value else []
