//! Builds the driver for tests.

use std::process::Command;

use tempfile::TempDir;

/// Name of the driver in the folder.
pub(crate) const NAME: &str = "libcuda.so.1";

/// Returns a folder with the driver.
pub(crate) fn build() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let built = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort"])
        .args(["-C", &format!("link-arg=-Wl,-soname,{NAME}"), "-o"])
        .arg(folder.path().join(NAME))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/libcuda.rs"))
        .status()
        .unwrap();
    assert!(built.success());
    folder
}
