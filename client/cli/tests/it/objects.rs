//! Objects on the command line, against one master and one store started in the wrong order.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// `mcctl run ...`; dies with this process, whatever happens to it.
struct Role(Child);

impl Role {
    fn start(args: &[&str]) -> Self {
        let mut command = mcctl(&[]);
        command.arg("run").args(args).arg("--exit-on-stdin-eof");
        Self(command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn mcctl(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcctl"));
    command.args(args);
    command
}

/// Free a moment ago, all at once, so that they differ.
fn addresses<const N: usize>() -> [String; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().to_string())
}

fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|why| {
        panic!(
            "standard output is not one JSON document ({why}): {}",
            String::from_utf8_lossy(&output.stdout)
        )
    })
}

fn signal(process: &Child, signal: Signal) {
    kill_process(Pid::from_child(process), signal).unwrap();
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A master and a store for `mcctl`, ready to use.
struct Pool {
    client: String,
    _master: Role,
    store: Role,
    _dir: TempDir,
}

impl Pool {
    fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let [client, raft, http, data, store_http] = addresses();
        let (of_master, of_store) = (dir.path().join("master"), dir.path().join("store"));
        let master = format!("master --single --listen {client} --raft-listen {raft} --http-listen {http}");
        let store =
            format!("store --segment 64mb --masters {client} --listen {data} --http-listen {store_http}");
        let start = |line: &str, dir: &Path| {
            Role::start(&[&line.split(' ').collect::<Vec<_>>()[..], &["--data-dir", path(dir)]].concat())
        };
        let (_master, store) = (start(&master, &of_master), start(&store, &of_store));
        let pool = Self { _master, store, client, _dir: dir };
        pool.wait("the pool is healthy", || pool.run(&["status"]).status.success());
        pool
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = mcctl(args);
        command.args(["--masters", &self.client]);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn tenants(&self) -> Value {
        document(&self.run(&["tenants", "list", "--json"]))["tenants"].clone()
    }

    /// Returns whether the default tenant, to which all objects belong, has any of these.
    fn has(&self, name: &str) -> bool {
        self.tenants()[0][name].as_u64().is_some_and(|number| number > 0)
    }

    fn wait(&self, what: &str, mut is: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is() {
            assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        }
    }
}

#[test]
fn output_that_is_lost_is_a_failure_and_a_quota_keeps_the_limit_that_is_not_given() {
    let pool = Pool::start();
    let mut put = pool.command(&["put", "a key", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(b"value").unwrap();
    assert_eq!(put.wait().unwrap().code(), Some(0));
    for args in [&["ls"][..], &["ls", "--json"], &["get", "a key", "-"], &["status"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = pool.command(args).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert_eq!(said.matches("cannot write to standard output").count(), 1, "{args:?}: {said}");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = pool.command(args).stdout(writer).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.as_str()), (Some(0), ""), "{args:?}");
    }

    let set = |args: &[&str]| {
        let output = pool.run(&[&["tenants", "set"][..], args].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let quota = |name: &str| {
        let tenants = pool.tenants();
        let tenant = tenants.as_array().unwrap().iter().find(|tenant| tenant["name"] == name).unwrap();
        (tenant["quota_bytes"].as_u64().unwrap(), tenant["quota_objects"].as_u64().unwrap())
    };
    set(&["team", "--objects", "7", "--bytes", "1mb"]);
    set(&["team", "--bytes", "2mb"]);
    assert_eq!(quota("team"), (2 << 20, 7), "the limit on objects stays");
    set(&["team", "--objects", "0"]);
    assert_eq!(quota("team"), (2 << 20, 0));
    assert!(pool.run(&["config", "set", "default-quota-objects", "9"]).status.success());
    set(&["new", "--bytes", "3mb"]);
    assert_eq!(quota("new"), (3 << 20, 9), "the default of tenants without a quota of their own");
}

#[test]
fn an_interrupted_bench_leaves_nothing_in_a_pool_that_others_use() {
    let pool = Pool::start();
    for kind in ["put", "get"] {
        let line = format!("bench {kind} --size 64kb --keys 200 --threads 4 --duration 10m");
        let mut bench =
            pool.command(&line.split(' ').collect::<Vec<_>>()).stderr(Stdio::piped()).spawn().unwrap();
        pool.wait("it puts objects", || pool.has("objects"));
        signal(&bench, Signal::INT);
        let code = bench.wait().unwrap().code();
        let mut said = String::new();
        bench.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(code, Some(130), "{kind}: {said}");
        assert!(said.contains("interrupted: "), "{kind}: {said}");
        assert!(!pool.has("objects") && !pool.has("puts_in_flight"), "{kind}: {}", pool.tenants());
    }
}

#[test]
fn an_interrupted_check_of_transports_leaves_nothing() {
    let pool = Pool::start();
    let mut ended = None;
    pool.wait("it is interrupted while it puts", || {
        // The leader suspects a stopped store in a moment: the put is open until then.
        signal(&pool.store.0, Signal::STOP);
        let mut check = pool.command(&["check", "transports"]).stderr(Stdio::piped()).spawn().unwrap();
        while check.try_wait().unwrap().is_none() && !pool.has("puts_in_flight") {}
        signal(&check, Signal::INT);
        let code = check.wait().unwrap().code();
        let mut said = String::new();
        check.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        ended = Some((code, said.clone()));
        let left = [pool.has("objects"), pool.has("puts_in_flight")];
        signal(&pool.store.0, Signal::CONT);
        assert_eq!(left, [false; 2], "{code:?}: {said}");
        pool.wait("the store is back", || pool.run(&["status"]).status.success());
        said.contains("interrupted: ")
    });
    assert!(ended.is_some_and(|(code, _)| code == Some(130)));
}

#[test]
fn objects_go_in_and_out_with_clear_exit_codes() {
    let dir = TempDir::new().unwrap();
    let [client, raft, http, data, store_http] = addresses();
    let run = |args: &[&str], code: i32| {
        let output = mcctl(args).args(["--masters", &client]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    };
    let file = dir.path().join("value");
    let value: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&file, &value).unwrap();

    // Given: a put that waits for a store and a master that do not run yet.
    let mut put = mcctl(&["--masters", &client, "put", "a key", path(&file), "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(put.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.next().unwrap().contains("waiting"), "it says what it does before it is done");
    let segment = [
        "store",
        "--segment",
        "64mb,8mb",
        "--masters",
        &client,
        "--listen",
        &data,
        "--http-listen",
        &store_http,
    ];
    let store_dir = dir.path().join("store");
    let _store =
        Role::start(&[&segment[..], &["--name", "a store", "--data-dir", path(&store_dir)]].concat());
    let listen = ["master", "--single", "--listen", &client, "--raft-listen", &raft, "--http-listen", &http];
    let master_dir = dir.path().join("master");
    let _master = Role::start(&[&listen[..], &["--data-dir", path(&master_dir)]].concat());

    // The master may lead before the store has mounted: then the put is refused, and that is an answer, too.
    assert_eq!(said.filter(|line| line.contains("waiting")).count(), 0, "it said so once");
    let first = put.wait_with_output().unwrap();
    let mut stored = document(&first)["result"] == "stored";
    assert_eq!(first.status.code(), Some(i32::from(!stored)));
    let start = Instant::now();
    while !stored {
        assert!(start.elapsed() < Duration::from_secs(30), "the store never mounted");
        let output = mcctl(&["put", "a key", path(&file), "--json", "--masters", &client]).output().unwrap();
        stored = document(&output)["result"] == "stored";
    }

    // When and then: each answer has its exit code and its document.
    run(&["status"], 0);
    assert_eq!(document(&run(&["put", "a key", path(&file), "--json"], 1))["result"], "exists");
    assert_eq!(document(&run(&["exist", "a key", "--json"], 0))["exists"], true);
    assert_eq!(document(&run(&["exist", "another", "--json"], 1))["exists"], false);
    let stat = document(&run(&["stat", "a key", "--json"], 0));
    assert_eq!((&stat["size"], &stat["replicas"][0]["addr"]), (&value.len().into(), &data.into()), "{stat}");
    assert_eq!(document(&run(&["stat", "another", "--json"], 1))["found"], false);

    assert_eq!(
        run(&["get", "a key", "-"], 0).stdout,
        value,
        "standard output is the object and nothing else"
    );
    let copy = dir.path().join("copy");
    assert_eq!(document(&run(&["get", "a key", path(&copy), "--json"], 0))["size"], value.len());
    assert_eq!(std::fs::read(&copy).unwrap(), value);
    let parts = run(&["get", "a key", "-", "--range", "1kib:8", "--range", "0:4"], 0).stdout;
    assert_eq!(parts, [&value[1024..1032], &value[..4]].concat());
    let beyond = run(&["get", "a key", "-", "--range", "1199999:2"], 2);
    let said = String::from_utf8_lossy(&beyond.stderr).into_owned();
    assert!(said.contains("2 bytes at offset 1199999") && said.contains("object of 1200000 bytes"), "{said}");
    let missing = run(&["get", "another", "-"], 1);
    assert!(missing.stdout.is_empty() && !missing.stderr.is_empty());

    // Replaced from standard input.
    let mut piped = mcctl(&["put", "a key", "-", "--replace", "--masters", &client])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    piped.stdin.take().unwrap().write_all(b"second").unwrap();
    assert_eq!(piped.wait().unwrap().code(), Some(0));
    assert_eq!(run(&["get", "a key", "-"], 0).stdout, b"second");

    // Listed with the stores that hold them.
    run(&["put", "b key", path(&file), "--pin", "hard", "--group", "page", "--data-type", "7"], 0);
    let listed = document(&run(&["ls", "--long", "--json"], 0));
    let [a, b] = [&listed["keys"][0], &listed["keys"][1]];
    assert_eq!((&a["key"], &a["size"], &a["group"]), (&"a key".into(), &6.into(), &false.into()), "{listed}");
    assert_eq!(
        (&b["pin"], &b["data_type"], &b["group"]),
        (&"hard".into(), &7.into(), &true.into()),
        "{listed}"
    );
    for key in [a, b] {
        assert_eq!(key["replicas"], serde_json::json!([{ "name": "a store", "suspect": false }]), "{listed}");
    }
    let first = document(&run(&["ls", "-l", "a", "--limit", "1", "--json"], 0));
    assert_eq!((&first["keys"][0], &first["more"]), (a, &false.into()));
    let short = document(&run(&["ls", "b", "--json"], 0));
    assert_eq!(short["keys"], serde_json::json!([{ "key": "b key", "size": value.len() }]));
    let table = String::from_utf8(run(&["ls", "-l"], 0).stdout).unwrap();
    assert!(table.starts_with("SIZE") && table.contains("hard") && table.contains("a store"), "{table}");

    // The segments with their sizes: both objects lie in one, or one lies in each.
    let listed = document(&run(&["segments", "--json"], 0));
    let segments = listed["segments"].as_array().unwrap();
    let of = |name: &str| segments.iter().map(|segment| segment[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("store"), ["a store", "a store"], "{listed}");
    assert_eq!(of("size_bytes"), [64 << 20, 8 << 20], "{listed}");
    assert_eq!(of("segment"), [0, 1], "{listed}");
    let sum = |name: &str| of(name).iter().map(|value| value.as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("objects"), 2, "{listed}");
    assert!(sum("used_bytes") > value.len() as u64, "{listed}");
    let table = String::from_utf8(run(&["segments"], 0).stdout).unwrap();
    assert!(table.contains("64.0 MiB") && table.contains("8.0 MiB"), "{table}");

    // Read a moment ago, so its lease protects it until it is forced.
    assert_eq!(document(&run(&["rm", "a key", "--json"], 1))["result"], "leased");
    assert_eq!(document(&run(&["rm", "a key", "--force", "--json"], 0))["result"], "removed");
    assert_eq!(document(&run(&["rm", "a key", "--json"], 1))["result"], "not_found");
    run(&["get", "a key", "-"], 1);

    let huge = dir.path().join("huge");
    std::fs::File::create(&huge).unwrap().set_len(65 << 20).unwrap();
    let refused = document(&run(&["put", "huge", path(&huge), "--json"], 1));
    assert_eq!(refused["result"], "refused", "larger than the segment: {refused}");
    assert_eq!(refused["code"], "OBJECT_TOO_LARGE", "{refused}");
}
