//! Processes that have not loaded the CUDA driver, though they could, or only one that can't be used.
#![allow(unsafe_code, clippy::unwrap_used, reason = "a test")]

mod fake;

use std::path::Path;
use std::process::Command;

use libloading::os::unix::Library;
use mc_cuda::Cuda;

/// Runs a test in a process of its own, in which the driver of a folder is on the path of libraries. Returns what it and the loader
/// printed, which names each look for a symbol.
fn run(test: &str, folder: &Path) -> String {
    let me = std::env::current_exe().unwrap();
    let output = Command::new(me)
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", folder)
        .env("LD_DEBUG", "symbols")
        .output()
        .unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text
}

#[test]
fn a_process_without_the_driver_does_not_load_it_and_finds_it_once_it_is_loaded() {
    run("without", fake::build().path());
}

#[test]
fn a_driver_that_lacks_a_function_is_looked_at_once() {
    let folder = fake::build_without(Some("cuMemcpyHtoDAsync_v2"));
    let text = run("lacking", folder.path());
    assert_eq!(text.matches("symbol=cuGetErrorName;").count(), 1);
}

#[test]
#[ignore = "run by another test, with a driver on the path of libraries"]
fn without() {
    for _ in 0..2 {
        assert!(Cuda::of_this_process().unwrap().is_none());
        let loaded = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!loaded.contains(fake::NAME), "{loaded}");
    }
    // SAFETY: the driver for tests.
    let _library = unsafe { Library::new(fake::NAME) }.unwrap();
    assert!(Cuda::of_this_process().unwrap().is_some());
}

#[test]
#[ignore = "run by another test, with a driver on the path of libraries"]
fn lacking() {
    // SAFETY: the driver for tests.
    let _library = unsafe { Library::new(fake::NAME) }.unwrap();
    for _ in 0..3 {
        let why = Cuda::of_this_process().unwrap_err().to_string();
        assert!(why.contains("CUDA cannot be used") && why.contains("cuMemcpyHtoDAsync_v2"), "{why}");
    }
}
