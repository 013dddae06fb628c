//! One child process: this executable, run as a master or a store.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::ChildrenError;

/// A child process that does not outlive this one.
///
/// It is killed and reaped when dropped. It also exits when its standard input closes, which covers a `kill -9` of this
/// process.
#[derive(Debug)]
pub struct Process {
    name: String,
    args: Vec<OsString>,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts this executable with `run <args>` and appends its output to `log`.
    pub fn start(name: String, args: Vec<OsString>, log: PathBuf) -> Result<Self, ChildrenError> {
        let child = spawn(&args, &log).map_err(|why| ChildrenError::Start { name: name.clone(), why })?;
        Ok(Self { name, args, log, child })
    }

    /// Starts the process again with the same arguments; kills it first if it still runs.
    pub fn restart(&mut self) -> Result<(), ChildrenError> {
        self.end();
        self.child = spawn(&self.args, &self.log)
            .map_err(|why| ChildrenError::Start { name: self.name.clone(), why })?;
        Ok(())
    }

    /// Name of the process in messages, such as `master 1`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Id of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails with the end of the log if the process has exited.
    pub fn check_running(&mut self) -> Result<(), ChildrenError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(ChildrenError::Exited {
                name: self.name.clone(),
                status,
                log: self.log.clone(),
                tail: self.log_tail(),
            }),
            Err(why) => Err(ChildrenError::Signal { name: self.name.clone(), why }),
        }
    }

    /// Sends `signal`; the process may still be running afterwards.
    pub fn signal(&self, signal: Signal) -> Result<(), ChildrenError> {
        // The child is not reaped yet, so the pid is still its own, dead or alive.
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal)
            .map_err(|why| ChildrenError::Signal { name: self.name.clone(), why: why.into() })
    }

    /// Waits up to `limit` for the process to end, and returns its exit status.
    pub async fn wait_dead(&mut self, limit: Duration) -> Result<ExitStatus, ChildrenError> {
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if start.elapsed() > limit => {
                    return Err(ChildrenError::StillAlive {
                        name: self.name.clone(),
                        pid: self.pid(),
                        limit,
                    });
                }
                Ok(None) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(why) => return Err(ChildrenError::Signal { name: self.name.clone(), why }),
            }
        }
    }

    /// Returns the last lines of the log, for an error message.
    pub fn log_tail(&self) -> String {
        const MOST: u64 = 2_000;
        let mut text = Vec::new();
        if let Ok(mut file) = File::open(&self.log) {
            let len = file.metadata().map_or(0, |m| m.len());
            // An unreadable log leaves the tail empty; the message names the file.
            let _ = file.seek(SeekFrom::Start(len.saturating_sub(MOST)));
            let _ = file.read_to_end(&mut text);
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }

    fn end(&mut self) {
        // Both calls fail only if the process is already dead and reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns whether `signal` ended a child.
pub fn died_of(status: ExitStatus, signal: Signal) -> bool {
    status.signal() == Some(signal.as_raw())
}

fn spawn(args: &[OsString], log: &Path) -> io::Result<Child> {
    let log = OpenOptions::new().create(true).append(true).open(log)?;
    let mut command = Command::new(std::env::current_exe()?);
    // The user's settings for other masters and stores must not reach these children.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"MC_")) {
        command.env_remove(name);
    }
    command
        .arg("run")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log)
        // A separate process group: Ctrl-C in the terminal then reaches only this process, which ends its children in
        // order.
        .process_group(0)
        .spawn()
}
