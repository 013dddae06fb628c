//! A process that needs a person's help ends with exit code 2 and one sentence that says with what.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use mc_tests::{Faulty, Ports, Process, is_ready, mcctl_exe, until};
use tempfile::TempDir;

use Flag::{Bare, Gone, Is};

/// Longest that a command is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a case's command line departs from one that works.
enum Flag<'a> {
    Is(&'a str),
    Bare,
    Gone,
}

/// Flags that differ from a working command line, and the words that the sentence must have.
type Case<'a> = (&'a [(&'a str, Flag<'a>)], &'a [&'a str]);

/// Ports and directories for one process after the other.
struct Starts {
    dir: TempDir,
    ports: Ports,
    runs: usize,
}

impl Starts {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("mc-test-").tempdir().expect("a temporary directory");
        Self { dir, ports: Ports::default(), runs: 0 }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("a path in UTF-8").to_owned()
    }

    /// A process of `role` that would work, but for `changes`.
    fn process(&mut self, role: &str, changes: &[(&str, Flag<'_>)]) -> Process {
        self.runs += 1;
        let mut flags = BTreeMap::from([
            ("--listen", Some(self.ports.address())),
            ("--http-listen", Some(self.ports.address())),
            ("--data-dir", Some(self.path(&format!("data-{}", self.runs)))),
            ("--exit-on-stdin-eof", None),
        ]);
        flags.extend(match role {
            "master" => vec![("--raft-listen", Some(self.ports.address())), ("--single", None)],
            _ => vec![("--segment", Some("16mb".into())), ("--masters", Some("127.0.0.1:9".into()))],
        });
        for (flag, change) in changes {
            match change {
                Is(value) => drop(flags.insert(flag, Some((*value).to_owned()))),
                Bare => drop(flags.insert(flag, None)),
                Gone => drop(flags.remove(flag)),
            }
        }
        let flags = flags.into_iter().flat_map(|(flag, value)| [Some(flag.to_owned()), value]);
        let args = std::iter::once(role.to_owned()).chain(flags.flatten()).map(Into::into).collect();
        let log = self.dir.path().join(format!("{}.log", self.runs));
        Process::new(format!("{role} {}", self.runs), args, vec![], log)
    }

    /// Each of `cases` ends with 2, and its last line is the only error and has the words.
    async fn refused(&mut self, role: &str, cases: &[Case<'_>]) {
        for (changes, words) in cases {
            let mut process = self.process(role, changes);
            process.start();
            let status = process.ended().await;
            let said = process.output();
            assert_eq!(status.code(), Some(2), "{words:?}: {said}");
            let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
            assert_eq!(errors.as_slice(), said.lines().last().as_slice(), "one sentence, the last: {said}");
            let missing: Vec<_> = words.iter().filter(|word| !errors[0].contains(**word)).collect();
            assert!(missing.is_empty(), "{missing:?} is not in: {}", errors[0]);
        }
    }
}

#[tokio::test]
async fn a_master_that_cannot_work_as_it_was_started() {
    let mut starts = Starts::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let file = starts.path("file");
    std::fs::write(&file, "").unwrap();
    let damaged = starts.path("damaged");
    std::fs::create_dir(&damaged).unwrap();
    std::fs::write(format!("{damaged}/identity"), "not an identity").unwrap();
    starts
        .refused(
            "master",
            &[
                (&[("--no-such-flag", Bare)], &["--no-such-flag"]),
                (&[("--listen", Is("here"))], &["--listen", "`here`"]),
                (&[("--read-lease", Is("1s"))], &["--read-lease 1s", "5s to 60s"]),
                (&[("--peers", Is("127.0.0.1:1"))], &["--peers", "--single"]),
                (&[("--config", Is("/no/such/file"))], &["/no/such/file"]),
                (&[("--single", Gone)], &["neither --peers nor --single", "holds no master yet"]),
                (&[("--single", Gone), ("--peers", Is("a,b,a"))], &["--peers names a:50055 twice"]),
                (&[("--data-dir", Is(&file))], &["--data-dir", &file]),
                (&[("--data-dir", Is(&damaged))], &["--data-dir", &damaged, "is damaged"]),
                (&[("--listen", Is(&taken))], &["--listen", &taken, "in use"]),
                (&[("--raft-listen", Is(&taken))], &["--raft-listen", &taken, "in use"]),
                (&[("--http-listen", Is(&taken))], &["--http-listen", &taken, "in use"]),
            ],
        )
        .await;
}

#[tokio::test]
async fn a_master_whose_peers_cannot_be_its_cluster() {
    let mut starts = Starts::new();
    let [own, other_raft, other_http] = [(); 3].map(|()| starts.ports.address());
    let also = |address: &str| address.replace("127.0.0.1", "localhost");
    let (own_again, other_again) = (also(&own), also(&other_raft));
    let other_data = starts.path("other");
    let mut other = starts.process(
        "master",
        &[
            ("--raft-listen", Is(&other_raft)),
            ("--http-listen", Is(&other_http)),
            ("--data-dir", Is(&other_data)),
        ],
    );
    other.start();
    until("another cluster runs", async || is_ready(&other_http).await).await;

    // Given: a cluster of one master.
    let (http, data) = (starts.ports.address(), starts.path("own"));
    let mut formed = starts.process(
        "master",
        &[("--raft-listen", Is(&own)), ("--http-listen", Is(&http)), ("--data-dir", Is(&data))],
    );
    formed.start();
    until("a cluster is formed", async || is_ready(&http).await).await;
    assert_eq!(formed.terminate().await.code(), Some(0));

    let peers = |list: &[&str]| list.join(",");
    let (not_me, me_twice) = (peers(&[&other_raft]), peers(&[&own, &own_again]));
    let (it_twice, both) = (peers(&[&own, &other_raft, &other_again]), peers(&[&own, &other_raft]));
    let on_own = || ("--raft-listen", Is(own.as_str()));
    starts
        .refused(
            "master",
            &[
                (
                    &[on_own(), ("--single", Gone), ("--peers", Is(&not_me))],
                    &["--peers", "does not name this master"],
                ),
                (
                    &[on_own(), ("--single", Gone), ("--peers", Is(&me_twice))],
                    &["--peers names this master twice", &own, &own_again],
                ),
                (
                    &[on_own(), ("--single", Gone), ("--peers", Is(&it_twice))],
                    &["--peers names one master twice", &other_raft, &other_again],
                ),
                (&[("--data-dir", Is(&other_data))], &["--data-dir", "in use by another process"]),
            ],
        )
        .await;
    // The only member of its cluster needs no master at the other address, which may be one from before a rescue.
    let mut beside = starts.process(
        "master",
        &[
            on_own(),
            ("--single", Gone),
            ("--peers", Is(&both)),
            ("--http-listen", Is(&http)),
            ("--data-dir", Is(&data)),
        ],
    );
    beside.start();
    until("it goes on alone", async || is_ready(&http).await).await;
    assert!(other.is_running(), "none of this touched the other cluster");
}

#[tokio::test]
async fn a_store_that_cannot_work_as_it_was_started() {
    let mut starts = Starts::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let file = starts.path("file");
    std::fs::write(&file, "").unwrap();
    starts
        .refused(
            "store",
            &[
                (&[("--no-such-flag", Bare)], &["--no-such-flag"]),
                (&[("--segment", Gone)], &["--segment"]),
                (&[("--segment", Is("much"))], &["--segment", "much"]),
                (&[("--segment", Is("1kb"))], &["--segment: ", "1KiB is too small"]),
                (&[("--segment", Is("1024tb"))], &["--segment", "1024TiB does not fit"]),
                (&[("--masters", Is("a:b:c"))], &["--masters", "a:b:c"]),
                (&[("--advertise", Is("a b"))], &["--advertise: ", "a b"]),
                (&[("--data-dir", Is(&file))], &["--data-dir", &file]),
                (&[("--listen", Is(&taken))], &["--listen", &taken, "in use"]),
                (&[("--http-listen", Is(&taken))], &["--http-listen", &taken, "in use"]),
            ],
        )
        .await;
}

/// A look-up that never returns takes a thread with it; the command does not wait for that.
#[tokio::test]
async fn a_command_whose_resolver_hangs() {
    let dir = tempfile::Builder::new().prefix("mc-test-").tempdir().expect("a temporary directory");
    let faulty = Faulty::new(&dir.path().join("faults"));
    faulty.stick_lookups(true);
    let mut command = tokio::process::Command::new(mcctl_exe());
    command.args(["stat", "key", "--masters", "masters.example:50051", "--timeout", "1s", "--json"]);
    command.envs(faulty.env()).env_remove("MC_CONFIG").stdin(Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(PATIENCE, command.output()).await;
    let output = ended.expect("it ends while the look-up still hangs").expect("mcctl runs");
    assert!(faulty.struck() > 0, "nothing was looked up");
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!((output.status.code(), &said["code"]), (Some(2), &"NO_LEADER".into()), "{said}");
}
