use rustix::fs::Mode;

/// Makes the files and directories that this process creates from now on private to its user: logs and snapshots hold keys.
pub fn keep_files_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}
