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

/// A master and a store for `mcctl`.
struct Pool {
    client: String,
    /// Command lines of the two, without their data directories.
    lines: [String; 2],
    roles: Vec<Role>,
    dir: TempDir,
}

impl Pool {
    /// Chooses addresses; nothing runs yet.
    fn prepare(segments: &str) -> Self {
        let [client, raft, http, data, store_http] = addresses();
        let master = format!("master --single --listen {client} --raft-listen {raft} --http-listen {http}");
        let store = format!(
            "store --name a-store --segment {segments} --masters {client} --listen {data} --http-listen {store_http}"
        );
        Self { client, lines: [master, store], roles: Vec::new(), dir: TempDir::new().unwrap() }
    }

    /// Starts the master (0) or the store (1).
    fn start_role(&mut self, role: usize) {
        let dir = self.dir.path().join(role.to_string());
        let line = self.lines[role].split(' ').collect::<Vec<_>>();
        self.roles.push(Role::start(&[&line[..], &["--data-dir", path(&dir)]].concat()));
    }

    /// A pool that is ready to use; the store is its second role.
    fn start() -> Self {
        let mut pool = Self::prepare("64mb");
        pool.start_role(0);
        pool.start_role(1);
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

    /// Runs a command that ends with this exit code.
    fn ends(&self, args: &[&str], code: i32) -> Output {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    /// The document of a command that ends with this exit code.
    fn document(&self, args: &[&str], code: i32) -> Value {
        document(&self.ends(&[args, &["--json"]].concat(), code))
    }

    /// Puts bytes from standard input.
    fn put_piped(&self, key: &str, flags: &[&str], bytes: &[u8]) {
        let mut put =
            self.command(&[&["put", key, "-"], flags].concat()).stdin(Stdio::piped()).spawn().unwrap();
        put.stdin.take().unwrap().write_all(bytes).unwrap();
        assert_eq!(put.wait().unwrap().code(), Some(0));
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
    pool.put_piped("a key", &[], b"value");
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
        signal(&pool.roles[1].0, Signal::STOP);
        let mut check = pool.command(&["check", "transports"]).stderr(Stdio::piped()).spawn().unwrap();
        while check.try_wait().unwrap().is_none() && !pool.has("puts_in_flight") {}
        signal(&check, Signal::INT);
        let code = check.wait().unwrap().code();
        let mut said = String::new();
        check.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        ended = Some((code, said.clone()));
        let left = [pool.has("objects"), pool.has("puts_in_flight")];
        signal(&pool.roles[1].0, Signal::CONT);
        assert_eq!(left, [false; 2], "{code:?}: {said}");
        pool.wait("the store is back", || pool.run(&["status"]).status.success());
        said.contains("interrupted: ")
    });
    assert!(ended.is_some_and(|(code, _)| code == Some(130)));
}

#[test]
fn objects_go_in_and_out_with_clear_exit_codes() {
    let mut pool = Pool::prepare("64mb,8mb");
    let file = pool.dir.path().join("value");
    let value: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&file, &value).unwrap();
    put_before_the_pool_runs(&mut pool, &file);
    pool.ends(&["status"], 0);
    assert_eq!(pool.document(&["put", "a key", path(&file)], 1)["result"], "exists");
    one_object_is_there_and_another_is_not(&pool, &value);
    pool.put_piped("a key", &["--replace"], b"second");
    assert_eq!(pool.ends(&["get", "a key", "-"], 0).stdout, b"second");
    pool.ends(&["put", "b key", path(&file), "--pin", "hard", "--group", "page", "--data-type", "7"], 0);
    objects_are_listed_with_the_stores_that_hold_them(&pool, &value);
    segments_are_listed_with_their_sizes(&pool, &value);
    objects_are_removed(&pool);

    let huge = pool.dir.path().join("huge");
    std::fs::File::create(&huge).unwrap().set_len(65 << 20).unwrap();
    let refused = pool.document(&["put", "huge", path(&huge)], 1);
    assert_eq!(refused["result"], "refused", "larger than the segment: {refused}");
    assert_eq!(refused["code"], "OBJECT_TOO_LARGE", "{refused}");
}

/// A put waits for a store and a master that do not run yet, and are started in the wrong order.
fn put_before_the_pool_runs(pool: &mut Pool, file: &Path) {
    let args = ["put", "a key", path(file), "--json"];
    let mut put = pool.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(put.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.next().unwrap().contains("waiting"), "it says what it does before it is done");
    pool.start_role(1);
    pool.start_role(0);
    // The master may lead before the store has mounted: then the put is refused, and that is an answer, too.
    assert_eq!(said.filter(|line| line.contains("waiting")).count(), 0, "it said so once");
    let first = put.wait_with_output().unwrap();
    let stored = document(&first)["result"] == "stored";
    assert_eq!(first.status.code(), Some(i32::from(!stored)));
    pool.wait("the put is stored", || stored || document(&pool.run(&args))["result"] == "stored");
}

fn one_object_is_there_and_another_is_not(pool: &Pool, value: &[u8]) {
    assert_eq!(pool.document(&["exist", "a key"], 0)["exists"], true);
    assert_eq!(pool.document(&["exist", "another"], 1)["exists"], false);
    let stat = pool.document(&["stat", "a key"], 0);
    let data = pool.lines[1].split(' ').skip_while(|word| *word != "--listen").nth(1).unwrap();
    assert_eq!((&stat["size"], &stat["replicas"][0]["addr"]), (&value.len().into(), &data.into()), "{stat}");
    assert_eq!(pool.document(&["stat", "another"], 1)["found"], false);

    let printed = pool.ends(&["get", "a key", "-"], 0).stdout;
    assert_eq!(printed, value, "standard output is the object and nothing else");
    let copy = pool.dir.path().join("copy");
    assert_eq!(pool.document(&["get", "a key", path(&copy)], 0)["size"], value.len());
    assert_eq!(std::fs::read(&copy).unwrap(), value);
    let parts = pool.ends(&["get", "a key", "-", "--range", "1kib:8", "--range", "0:4"], 0).stdout;
    assert_eq!(parts, [&value[1024..1032], &value[..4]].concat());
    let beyond = pool.ends(&["get", "a key", "-", "--range", "1199999:2"], 2);
    let said = String::from_utf8_lossy(&beyond.stderr).into_owned();
    assert!(said.contains("2 bytes at offset 1199999") && said.contains("object of 1200000 bytes"), "{said}");
    let missing = pool.ends(&["get", "another", "-"], 1);
    assert!(missing.stdout.is_empty() && !missing.stderr.is_empty());
}

fn objects_are_listed_with_the_stores_that_hold_them(pool: &Pool, value: &[u8]) {
    let listed = pool.document(&["ls", "--long"], 0);
    let [a, b] = [&listed["keys"][0], &listed["keys"][1]];
    assert_eq!((&a["key"], &a["size"], &a["group"]), (&"a key".into(), &6.into(), &false.into()), "{listed}");
    let of_b = (&b["pin"], &b["data_type"], &b["group"]);
    assert_eq!(of_b, (&"hard".into(), &7.into(), &true.into()), "{listed}");
    for key in [a, b] {
        assert_eq!(key["replicas"], serde_json::json!([{ "name": "a-store", "suspect": false }]), "{listed}");
    }
    let first = pool.document(&["ls", "-l", "a", "--limit", "1"], 0);
    assert_eq!((&first["keys"][0], &first["more"]), (a, &false.into()));
    let short = pool.document(&["ls", "b"], 0);
    assert_eq!(short["keys"], serde_json::json!([{ "key": "b key", "size": value.len() }]));
    let table = String::from_utf8(pool.ends(&["ls", "-l"], 0).stdout).unwrap();
    assert!(table.starts_with("SIZE") && table.contains("hard") && table.contains("a-store"), "{table}");
}

/// Both objects lie in one segment, or one lies in each.
fn segments_are_listed_with_their_sizes(pool: &Pool, value: &[u8]) {
    let listed = pool.document(&["segments"], 0);
    let segments = listed["segments"].as_array().unwrap();
    let of = |name: &str| segments.iter().map(|segment| segment[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("store"), ["a-store", "a-store"], "{listed}");
    assert_eq!(of("size_bytes"), [64 << 20, 8 << 20], "{listed}");
    assert_eq!(of("segment"), [0, 1], "{listed}");
    let sum = |name: &str| of(name).iter().map(|value| value.as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("objects"), 2, "{listed}");
    assert!(sum("used_bytes") > value.len() as u64, "{listed}");
    let table = String::from_utf8(pool.ends(&["segments"], 0).stdout).unwrap();
    assert!(table.contains("64.0 MiB") && table.contains("8.0 MiB"), "{table}");
}

/// The first was read a moment ago, so its lease protects it until it is forced.
fn objects_are_removed(pool: &Pool) {
    assert_eq!(pool.document(&["rm", "a key"], 1)["result"], "leased");
    assert_eq!(pool.document(&["rm", "a key", "--force"], 0)["result"], "removed");
    assert_eq!(pool.document(&["rm", "a key"], 1)["result"], "not_found");
    pool.ends(&["get", "a key", "-"], 1);
}
