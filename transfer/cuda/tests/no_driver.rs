//! A process that has not loaded the CUDA driver, though it could.
#![allow(unsafe_code, clippy::unwrap_used, reason = "a test")]

mod fake;

use std::process::Command;

use libloading::os::unix::Library;
use mc_cuda::Cuda;

#[test]
fn a_process_without_the_driver_does_not_load_it_and_finds_it_once_it_is_loaded() {
    let folder = fake::build();
    let me = std::env::current_exe().unwrap();
    let output = Command::new(me)
        .args(["--exact", "without", "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", folder.path())
        .output()
        .unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
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
