//! The end of a process and its log. Each test starts itself again, as the process that ends.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use mc_process::telemetry::{LogOptions, init};

const CHILD: &str = "MC_TEST_CHILD";

/// Runs `child` in a process of its own, and returns what it wrote to standard error.
fn stderr_of(test: &str, child: impl FnOnce()) -> Option<String> {
    if std::env::var_os(CHILD).is_some() {
        child();
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, "1");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stderr, mut said, mut piece) = (child.stderr.take().unwrap(), Vec::new(), vec![0; 64 << 10]);
    loop {
        // A process that does not wait ends before this has read its last lines.
        sleep(Duration::from_millis(5));
        match stderr.read(&mut piece).unwrap() {
            0 => break,
            len => said.extend_from_slice(&piece[..len]),
        }
    }
    child.wait().unwrap();
    Some(String::from_utf8(said).unwrap())
}

#[test]
fn the_last_lines_are_written_before_the_end() {
    let said = stderr_of("the_last_lines_are_written_before_the_end", || {
        let log = init(&LogOptions::default()).unwrap();
        for n in 0..2_000 {
            tracing::info!("line {n}");
        }
        log.say("error: the reason");
        drop(log);
        std::process::exit(0);
    });
    let said = said.unwrap();
    assert_eq!(said.lines().filter(|line| line.contains("INFO line ")).count(), 2_000);
    assert_eq!(said.lines().last(), Some("error: the reason"));
}

#[test]
fn a_panic_is_written_with_the_lines_before_it() {
    let said = stderr_of("a_panic_is_written_with_the_lines_before_it", || {
        let _log = init(&LogOptions::default()).unwrap();
        tracing::info!("before");
        panic!("the reason");
    });
    let said = said.unwrap();
    let at = |words: &str| said.find(words).unwrap_or_else(|| panic!("no `{words}` in: {said}"));
    assert!(at("INFO before") < at("thread 'a_panic_is_written_with_the_lines_before_it'"), "{said}");
    assert!(at("last_lines.rs") < at("the reason"), "{said}");
}

/// Fills the pipe.
fn much() -> String {
    format!("much {}", "x".repeat(900 << 10))
}

#[test]
fn an_error_is_written_before_the_process_aborts() {
    let said = stderr_of("an_error_is_written_before_the_process_aborts", || {
        let _log = init(&LogOptions::default()).unwrap();
        tracing::info!("{}", much());
        tracing::error!("the reason");
        std::process::abort();
    });
    let said = said.unwrap();
    assert!(said.trim_end().ends_with("ERROR the reason"), "{} bytes", said.len());
}

#[test]
fn a_panic_is_written_before_the_process_aborts() {
    extern "C" fn cannot_unwind() {
        tracing::info!("{}", much());
        panic!("the reason");
    }
    let said = stderr_of("a_panic_is_written_before_the_process_aborts", || {
        let _log = init(&LogOptions::default()).unwrap();
        cannot_unwind();
    });
    let said = said.unwrap();
    assert!(said.contains("the reason\n"), "{} bytes", said.len());
}
