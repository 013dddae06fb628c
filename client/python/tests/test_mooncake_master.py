"""The command line of `mooncake_master`: what becomes of each flag, and the process that it starts."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import MIB
from services import Service, ask, check_guide, script

from cluster import LOOPBACK, free_ports, until
from mooncake._services.config_file import read_config
from mooncake._services.executables import named
from mooncake._services.flags import Effect, FlagError, Given, parse
from mooncake._services.master import Command, Host, command
from mooncake._services.master_flags import TABLE
from mooncake.store import MooncakeDistributedStore


def address_of(host: str) -> str:
    if host == "nowhere":
        raise OSError("no such name")
    return {"localhost": LOOPBACK}.get(host, host)


def interface(name: str) -> str:
    if name != "eth0":
        raise OSError("no such device")
    return "10.0.0.7"


HOST = Host("host", address_of, interface, lambda: "10.0.0.9")


def translated(*arguments: str, host: Host = HOST, **environ: str) -> Command:
    given = parse(TABLE, arguments, environ)
    read_config(TABLE, given)
    return command(given, environ, host)


def flags(*arguments: str, **environ: str) -> dict[str, str]:
    """Flags of mc-master with their values, "" for those without."""
    result: dict[str, str] = {}
    last = ""
    for word in translated(*arguments, **environ).arguments:
        if word.startswith("--"):
            last = word.removeprefix("--")
            result[last] = ""
        else:
            result[last] = word
    return result


def refusal(*arguments: str, host: Host = HOST, **environ: str) -> str:
    with pytest.raises(FlagError) as error:
        translated(*arguments, host=host, **environ)
    return str(error.value)


# The syntax.


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rpc_port", "7"],
        ["--rpc_port=7"],
        ["-rpc_port", "7"],
        ["-rpc_port=7"],
        ["--rpc-port=7"],
        ["--rpc_port=0x7"],
        ["--rpc_port=5", "--rpc_port=7"],
        ["--port=5", "--rpc_port=7"],
        ["--port=7"],
        ["--rpc_port=0", "--port", "7"],
    ],
)
def test_a_number_has_many_spellings(arguments: list[str]) -> None:
    assert flags(*arguments)["listen"] == "0.0.0.0:7"


@pytest.mark.parametrize("text", ["--{}", "-{}", "--{}=true", "--{}=1", "--{}=T", "--{}=yes"])
def test_true(text: str) -> None:
    assert flags(text.format("enable_http_metadata_server"))["metadata-listen"] == "0.0.0.0:8080"


@pytest.mark.parametrize("text", ["--no{}", "-no{}", "--{}=false", "--{}=0", "--{}=N"])
def test_false(text: str) -> None:
    assert "metadata-listen" not in flags("--enable_http_metadata_server", text.format("enable_http_metadata_server"))


def test_a_bool_takes_no_word_behind_it() -> None:
    started = translated("--enable_http_metadata_server", "false")
    assert "--metadata-listen" in started.arguments
    assert started.warnings == ["'false' belongs to no flag, and is ignored"]


def test_empty_values() -> None:
    assert flags("--etcd_endpoints=", "--root_fs_dir=", "--rpc_interface=", "--peers=")["single"] == ""
    assert "illegal value ''" in refusal("--rpc_port=")
    assert "illegal value ''" in refusal("--enable_ha=")


def test_two_dashes_end_the_flags() -> None:
    assert translated("--", "--nonsense").warnings == ["'--nonsense' belongs to no flag, and is ignored"]


def test_flags_from_files_and_variables(tmp_path: Path) -> None:
    file = tmp_path / "flags"
    file.write_text("# ports\n--rpc_port=7\n\n-enable_http_metadata_server\n--metrics-port=8\n")
    assert flags(f"--flagfile={file}")["http-listen"] == "0.0.0.0:8"
    assert flags("--flagfile", str(file), "--rpc_port=9")["listen"] == "0.0.0.0:9"
    assert flags("--fromenv=rpc_port", FLAGS_rpc_port="7")["listen"] == "0.0.0.0:7"
    assert flags("--tryfromenv=rpc_port,port", FLAGS_port="7")["listen"] == "0.0.0.0:7"
    assert flags("--unknown=3", "--undefok=unknown")["listen"] == "0.0.0.0:50051"
    assert "FLAGS_rpc_port is not set" in refusal("--fromenv=rpc_port")
    assert "can't be read" in refusal("--flagfile=/nowhere")
    file.write_text(f"--flagfile={file}\n")
    assert "does one name itself" in refusal(f"--flagfile={file}")
    assert "does one name itself" in refusal("--fromenv=fromenv", FLAGS_fromenv="fromenv")
    file.write_text("rpc_port=7\n")
    assert "line 1: 'rpc_port=7' is no flag" in refusal(f"--flagfile={file}")


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--nonsense", "unknown command line flag 'nonsense'"),
        ("--rpc_port", "flag '--rpc_port' is missing its argument"),
        ("--noenable_ha=true", "boolean value specified for bool flag 'enable_ha'"),
        ("--norpc_port", "boolean value specified for int32 flag 'rpc_port'"),
        ("--rpc_port=x", "illegal value 'x' specified for int32 flag 'rpc_port'"),
        ("--rpc_port=3000000000", "write a number between"),
        ("--rpc_port=70000", "--rpc_port=70000 is no port"),
        ("--metrics_port=0", "--metrics_port=0"),
        ("--http_metadata_server_port=-1 --enable_http_metadata_server", "is no port"),
        ("--quota_bytes=-1", "illegal value '-1' specified for uint64 flag 'quota_bytes'"),
        ("--eviction_ratio=much", "illegal value 'much' specified for double flag"),
        ("--enable_ha=maybe", "illegal value 'maybe' specified for bool flag 'enable_ha'"),
        ("--rpc_address=nowhere", "--rpc_address=nowhere is no address"),
        ("--metrics_host=nowhere", "--metrics_host=nowhere is no address"),
        ("--rpc_interface=wlan7", "--rpc_interface=wlan7"),
        ("--default_kv_lease_ttl=soon", "illegal value 'soon' specified for flag 'default_kv_lease_ttl'"),
        ("--enable_cxl", "--enable_cxl is refused"),
        ("--enable_multi_tenants=true", "mcctl config set tenants"),
        ("--noallow_evict_soft_pinned_objects", "with_hard_pin"),
        ("--enable_ha", "--peers a,b,c or MC_PEERS"),
        ("--single --peers=a,b,c", "exclude each other"),
        ("--cluster_size=3", "--cluster_size=3 without --peers"),
        ("--single --cluster_size=3", "--cluster_size=3 without --peers"),
        ("--ephemeral", "--ephemeral without --peers"),
        ("--peers=h:1,h:2", "--raft_listen"),
    ],
)
def test_mistakes(argument: str, words: str) -> None:
    assert words in refusal(*argument.split())


# Translation of flags.


def test_without_flags() -> None:
    assert flags() == {
        "single": "",
        "listen": "0.0.0.0:50051",
        "http-listen": "0.0.0.0:9003",
        "raft-listen": "0.0.0.0:0",
        "data-dir": "mc-data/mooncake_master-50051",
        "advertise": "10.0.0.9",
        "mooncake-metrics": "",
        "metrics-log": "10s",
    }


def test_the_command_of_the_operator_example() -> None:
    given = "--rpc_address 10.1.2.3 --rpc_port 50051 --http_metadata_server_host 10.1.2.3 --http_metadata_server_port 8080"
    started = flags(*given.split(), "--enable_http_metadata_server", "--metrics_port", "9003")
    assert started["listen"] == "10.1.2.3:50051"
    assert started["advertise"] == "10.1.2.3"
    assert started["metadata-listen"] == "10.1.2.3:8080"
    assert started["http-listen"] == "0.0.0.0:9003"


def test_addresses() -> None:
    assert flags("--rpc_address=localhost")["listen"] == "127.0.0.1:50051"
    assert flags("--rpc_interface=eth0", "--rpc_address=1.2.3.4")["listen"] == "10.0.0.7:50051"
    assert flags("--metrics_host=::")["http-listen"] == "[::]:9003"
    assert flags("--rpc_address=[::1]")["listen"] == "[::1]:50051"
    assert flags(POD_IP="10.9.9.9")["advertise"] == "10.9.9.9"
    assert "advertise" not in flags("--peers=a,b,c")


@pytest.mark.parametrize(
    ("given", "lease", "warned"),
    [("10000", "10000ms", False), ("7s", "7000ms", False), ("500", "5000ms", True), ("1h", "60000ms", True), ("0", "5000ms", True)],
)
def test_leases(given: str, lease: str, warned: bool) -> None:
    started = translated(f"--default_kv_lease_ttl={given}")
    assert started.arguments[started.arguments.index("--read-lease") + 1] == lease
    assert bool(started.warnings) == warned


def test_the_time_of_a_silent_store() -> None:
    assert "store-ttl" not in flags()
    assert flags("--client_ttl=30")["store-ttl"] == "30000ms"
    assert flags("--client_active_ttl_sec=30", "--client_suspicion_ttl_sec=20")["store-ttl"] == "50000ms"
    assert flags("--client_active_ttl_sec=30")["store-ttl"] == "50000ms"
    assert flags("--client_suspicion_ttl_sec=5")["store-ttl"] == "15000ms"
    assert flags("--client_ttl=1")["store-ttl"] == "5000ms"


def test_log_levels() -> None:
    assert flags("-v=1")["log"] == "debug,openraft=off"
    assert flags("--minloglevel=2")["log"] == "error,openraft=off"
    assert flags("--enable_metric_reporting=false")["metrics-log"] == "0s"


def test_a_flag_without_effect_says_why() -> None:
    assert translated("--rpc_thread_num=8", "--logtostderr", "--etcd_endpoints=").warnings == [
        "--rpc_thread_num has no effect: a master uses as many threads as the machine has processors"
    ]


@pytest.mark.parametrize("flag", [flag for flag in TABLE.values() if flag.effect is Effect.REFUSED], ids=lambda flag: flag.name)
def test_a_refused_flag_may_have_its_default(flag: Any) -> None:
    assert flags(f"--{flag.name}={flag.default}")["listen"] == "0.0.0.0:50051"


def test_variables_take_the_place_of_defaults_and_not_of_flags() -> None:
    assert "data-dir" not in flags(MC_DATA_DIR="/d")
    assert "listen" not in flags(MC_LISTEN="0.0.0.0:1")
    assert flags("--port=7", MC_LISTEN="0.0.0.0:1")["listen"] == "0.0.0.0:7"
    assert flags("--data_dir=/e", MC_DATA_DIR="/d")["data-dir"] == "/e"
    assert "single" not in flags(MC_PEERS="a,b,c")
    assert "metrics-log" not in flags(MC_METRICS_LOG="1m")
    assert flags("--enable_metric_reporting", MC_METRICS_LOG="1m")["metrics-log"] == "10s"
    assert "metadata-listen" not in flags("--enable_http_metadata_server", MC_METADATA_LISTEN="0.0.0.0:1")
    metadata = flags("--enable_http_metadata_server", "--http_metadata_server_port=7", MC_METADATA_LISTEN="0.0.0.0:1")
    assert metadata["metadata-listen"] == "0.0.0.0:7"
    assert flags("--enable_http_metadata_server=false", MC_METADATA_LISTEN="0.0.0.0:1")["metadata-listen"] == "none"
    assert "metadata-listen" not in flags("--enable_http_metadata_server=false")
    assert "mooncake-metrics" not in flags(MC_MOONCAKE_METRICS="false")
    assert "single" in flags(MC_SINGLE="1", RBG_ROLE_INDEX="1")
    assert "single" not in flags(MC_SINGLE="false")
    assert "exclude each other" in refusal("--peers=a,b,c", MC_SINGLE="true")


def test_no_default_wins_over_a_file() -> None:
    assert flags(MC_CONFIG="mc.toml") == {}
    assert flags("--noenable_http_metadata_server", MC_CONFIG="mc.toml") == {"metadata-listen": "none"}
    given = "--port=7 --metrics_port=8 --enable_http_metadata_server --data_dir=/d --enable_metric_reporting --cluster_size=3"
    assert flags(*given.split(), MC_CONFIG="mc.toml") == {
        "cluster-size": "3",
        "listen": "0.0.0.0:7",
        "http-listen": "0.0.0.0:8",
        "metadata-listen": "0.0.0.0:8080",
        "data-dir": "/d",
        "metrics-log": "10s",
    }


@pytest.mark.parametrize("variable", ["MC_CLUSTER_SIZE=3", "MC_EPHEMERAL=true"])
def test_a_variable_for_several_masters_needs_peers(variable: str) -> None:
    name, _, value = variable.partition("=")
    assert "--peers a,b,c or MC_PEERS" in refusal(**{name: value})
    assert "single" not in flags(**{name: value, "MC_PEERS": "a,b,c"})


# Several masters.


def test_the_port_for_the_other_masters() -> None:
    assert flags("--peers=a,b,c")["raft-listen"] == "0.0.0.0:50055"
    assert flags("--peers=a,b,c", "--rpc_port=7")["raft-listen"] == "0.0.0.0:50055"
    assert flags("--peers=a:9,b:9,c:9")["raft-listen"] == "0.0.0.0:9"
    assert flags("--peers=h:50055,h:60055", "--rpc_port=60051")["raft-listen"] == "0.0.0.0:60055"
    assert flags("--peers=h:1,h:2", "--raft_listen=0.0.0.0:2")["raft-listen"] == "0.0.0.0:2"
    assert flags(MC_PEERS="a:9,b:9")["raft-listen"] == "0.0.0.0:9"


def test_high_availability_needs_peers_and_no_etcd() -> None:
    started = translated("--enable_ha=true", "--etcd_endpoints=http://e:2379", "--peers=a,b,c")
    assert started.arguments[:2] == ["--peers", "a,b,c"]
    assert started.warnings == ["--etcd_endpoints has no effect: masters elect their leader among themselves: see `--peers`"]


def pod(name: str) -> Host:
    return Host(name, address_of, interface, lambda: None)


def test_a_later_pod_has_to_know_the_others() -> None:
    assert "pod 1 of its role" in refusal(RBG_ROLE_INDEX="1")
    assert "the pod master-2" in refusal(host=pod("master-2"), KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert "the pod master-2" in refusal(host=pod("node-7"), KUBERNETES_SERVICE_HOST="10.0.0.1", POD_NAME="master-2")
    assert "the pod master-2" in refusal("--pod_name=master-2", KUBERNETES_SERVICE_HOST="10.0.0.1")


def test_a_first_pod_and_a_host_are_alone_by_themselves() -> None:
    for host, environ in [("master-2", {}), ("master-0", {"KUBERNETES_SERVICE_HOST": "h"}), ("m-5", {"RBG_ROLE_INDEX": "0"})]:
        assert "--single" in translated(host=pod(host), **environ).arguments
    assert "--single" in translated("--single", RBG_ROLE_INDEX="1").arguments
    assert "--peers" in translated("--peers=a,b,c", RBG_ROLE_INDEX="1").arguments


# Files of settings.


YAML = """# ports
rpc_port: 7  # clients
rpc_address: "1.2.3.4"
client_live_ttl_sec: 60
enable_ha: false
root_fs_dir: ""
"""
JSON = '{"rpc_port": 7, "rpc_address": "1.2.3.4", "client_live_ttl_sec": 60, "enable_ha": false}'


@pytest.mark.parametrize(("name", "content"), [("master.yaml", YAML), ("master.json", JSON)])
def test_settings_from_a_file(tmp_path: Path, name: str, content: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    started = flags(f"--config_path={file}")
    assert (started["listen"], started["store-ttl"]) == ("1.2.3.4:7", "60000ms")
    assert flags(f"--config_path={file}", "--rpc_port=9")["listen"] == "1.2.3.4:9"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("c.yaml", "rpc_port: 7\nnested:\n  rpc_port: 8\n", "line 3"),
        ("c.yaml", "rpc_port=7\n", "line 1"),
        ("c.yaml", "nonsense: 7\n", "unknown setting 'nonsense'"),
        ("c.yaml", "rpc_port: seven\n", "illegal value 'seven'"),
        ("c.yaml", "enable_cxl: true\n", "enable_cxl is refused"),
        ("c.yaml", "flagfile: /f\n", "'flagfile' is no setting"),
        ("c.yaml", "config_path: /f\n", "'config_path' is no setting"),
        ("c.json", '{"help": true}', "'help' is no setting"),
        ("c.yaml", "port: 7\npeers: [a, b, c]\n", "line 2: '[a, b, c]' is no plain value"),
        ("c.yaml", "peers: |\n  a,b,c\n", "line 1: '|' is no plain value"),
        ("c.json", "[1]", "in place of a JSON object"),
        ("c.json", '{"rpc_port": [7]}', "'rpc_port' is [7]"),
        ("c.json", "{", "can't be read"),
        ("c.json", "[" * 100_000, "can't be read"),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, name: str, content: str, words: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    error = refusal(f"--config_path={file}")
    assert words in error
    assert str(file) in error


def test_a_file_that_is_missing() -> None:
    assert "can't be read" in refusal("--config_path=/nowhere.yaml")


# The table.


def test_the_guide_has_the_table() -> None:
    check_guide("mooncake_master", TABLE)


def test_each_flag_of_upstream_is_in_the_table() -> None:
    # Counted in `mooncake_master --help` of 0.3.13.post1 and 0.3.14.
    upstream = [flag for flag in TABLE.values() if flag.effect is not Effect.OURS]
    assert len([flag for flag in upstream if flag.versions != "0.3.14"]) == 134
    assert len([flag for flag in upstream if flag.versions != "0.3.13"]) == 130
    assert all(flag.note for flag in TABLE.values())
    for flag in TABLE.values():
        Given({flag.name: flag.read(flag.default)})


# The process.


@pytest.fixture
def ports() -> list[int]:
    return free_ports(3)


def test_it_starts_under_its_name_and_ends_with_the_code_of_the_master(tmp_path: Path, ports: list[int]) -> None:
    rpc, metrics, metadata = ports
    given = ["--port", str(rpc), "--metrics_port", str(metrics), "--enable_http_metadata_server", f"--http_metadata_server_port={metadata}"]
    service = Service(tmp_path, [*script("mooncake_master"), *given, "--disk_reserve=64mb"])
    try:
        service.wait_until_listening(metadata)
        service.wait_until_listening(rpc)
        # A probe of upstream's guide looks for this name.
        assert Path(f"/proc/{service.process.pid}/comm").read_text().strip() == "mooncake_master"
        assert (tmp_path / f"mc-data/mooncake_master-{rpc}").is_dir()
        until("it leads", lambda: ask(metrics, "GET", "/readyz")[0] == 200)
        store = MooncakeDistributedStore()
        assert store.setup("localhost", "", 64 * MIB, 16 * MIB, "tcp", "", f"{LOOPBACK}:{rpc}") == 0
        assert store.put("key", b"value") == 0
        store.close()
    finally:
        code = service.end(signal.SIGTERM)
    assert code == 0, service.text


def test_three_masters_survive_the_loss_of_one(tmp_path: Path) -> None:
    numbers = free_ports(12)
    rpc, raft, metrics, metadata = numbers[:3], numbers[3:6], numbers[6:9], numbers[9:]
    peers = ",".join(f"{LOOPBACK}:{port}" for port in raft)
    masters = [
        Service(
            tmp_path,
            [
                *script("mooncake_master"),
                f"--rpc_port={rpc[i]}",
                f"--raft_listen={LOOPBACK}:{raft[i]}",
                f"--metrics_port={metrics[i]}",
                f"--http_metadata_server_port={metadata[i]}",
                "--enable_http_metadata_server=true",
                "--enable_ha=true",
                "--disk_reserve=64mb",
            ],
            MC_PEERS=peers,
            RBG_ROLE_INDEX=str(i),
        )
        for i in range(3)
    ]
    store = MooncakeDistributedStore()
    try:
        for i, master in enumerate(masters):
            master.wait_until_listening(metadata[i])
            master.wait_until_listening(metrics[i])
        addresses = ",".join(f"{LOOPBACK}:{port}" for port in rpc)
        until("there is a leader", lambda: any(ask(port, "GET", "/role")[1] == b"leader" for port in metrics))
        assert store.setup("localhost", "", 64 * MIB, 16 * MIB, "tcp", "", addresses) == 0
        assert store.put("before", b"value") == 0
        leader = next(i for i in range(3) if ask(metrics[i], "GET", "/role")[1] == b"leader")
        masters[leader].end(signal.SIGKILL)
        until("puts go on", lambda: store.put("after", b"value") == 0)
        assert store.get("before") == b"value"
    finally:
        store.close()
        for master in masters:
            master.end(signal.SIGKILL)


def test_a_mistake_ends_it_with_an_error(tmp_path: Path) -> None:
    for arguments, words in [
        (["--nonsense"], "unknown command line flag"),
        (["--enable_cxl"], "is refused"),
        (["--rpc_address=a..b"], "--rpc_address=a..b is no address"),
    ]:
        service = Service(tmp_path, [*script("mooncake_master"), *arguments])
        assert service.code() == 1
        assert words in service.text
    service = Service(tmp_path, script("mooncake_master"), RBG_ROLE_INDEX="2")
    assert service.code() == 1
    assert "MC_PEERS" in service.text


def test_a_host_without_a_place_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    assert named("/usr/bin/mc-master", "mooncake_master") == "/usr/bin/mc-master"


def test_help_and_version(tmp_path: Path) -> None:
    for argument, words in [("--help", "--rpc_port"), ("-helpshort", "--rpc_port"), ("--version", "mc-master 0")]:
        service = Service(tmp_path, [*script("mooncake_master"), argument])
        assert service.code() == 0
        assert words in service.text
