//! Two things that a process under test must find in front of the C library's own: in the simulation, `getrandom`, which
//! some callers look up by name at run time; in tests of real processes, disks, clocks and connections that misbehave
//! (`faulty/`, loaded with `LD_PRELOAD`, so it is no crate that tests could link).

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rustc-link-arg-tests=-Wl,--export-dynamic-symbol=getrandom");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=faulty");
    let out = std::env::var_os("OUT_DIR").expect("cargo names the folder");
    let library = Path::new(&out).join("libfaulty.so");
    let rustc = std::env::var_os("RUSTC").expect("cargo names the compiler");
    let built = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "opt-level=2", "-C", "panic=abort", "-o"])
        .arg(&library)
        .arg("faulty/faulty.rs")
        .status();
    assert!(built.is_ok_and(|status| status.success()), "faulty/faulty.rs was not built");
    println!("cargo::rustc-env=FAULTY_LIBRARY={}", library.display());
}
