use std::path::PathBuf;

/// Returns the path of the `mcctl` executable: `MC_CTL`, or the one that cargo built beside this test.
pub fn mcctl_exe() -> PathBuf {
    if let Some(path) = std::env::var_os("MC_CTL") {
        return path.into();
    }
    // target/<profile>/deps/<test>
    let test = std::env::current_exe().expect("a running test has a path");
    let built = test.ancestors().skip(1).map(|dir| dir.join("mcctl")).find(|path| path.is_file());
    built.unwrap_or_else(|| {
        panic!(
            "no mcctl above {}: build it first with `cargo build -p mc-cli` (the same profile), or name it in MC_CTL",
            test.display()
        )
    })
}
