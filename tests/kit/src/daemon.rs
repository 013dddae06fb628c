use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::{bare_command, eventually};

/// `mc-master` or `mc-store` as an executable of its own. It is killed with its test, also when the test itself is
/// killed.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts the executable at `path` in `dir`, which is created, with an empty environment.
    pub fn start(path: impl AsRef<OsStr>, dir: &Path, args: &[&str]) -> Self {
        fs::create_dir(dir).unwrap();
        let log = dir.join("log");
        let mut command = bare_command(path, dir);
        command.args(args).arg("--exit-on-stdin-eof").stdin(Stdio::piped());
        let child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
        Self { child, log }
    }

    /// Returns everything that it has logged so far.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for the address that it logs under `name`, and returns it.
    pub async fn address(&mut self, name: &str) -> String {
        let name = format!("{name}=");
        eventually(name.clone(), async || {
            let said = self.output();
            assert!(self.child.try_wait().unwrap().is_none(), "it has ended: {said}");
            let (whole, _) = said.rsplit_once('\n')?;
            whole.split_whitespace().find_map(|word| word.strip_prefix(&*name)).map(str::to_owned)
        })
        .await
    }

    /// Sends SIGHUP.
    pub fn hang_up(&self) {
        kill_process(Pid::from_child(&self.child), Signal::HUP).unwrap();
    }

    /// Sends SIGTERM and waits for its end.
    pub async fn terminate(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        eventually("its end", async || self.child.try_wait().unwrap()).await
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail only when it is dead and reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
