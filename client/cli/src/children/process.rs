//! One child process: this executable again, as a master or a store.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::ChildrenError;

/// A child process that does not outlive this one: killed and reaped when dropped, and by itself when its standard
/// input closes, which covers even a `kill -9` of this process.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    args: Vec<OsString>,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts `mcctl run <args>` with its output in `log`.
    pub(crate) fn start(name: String, args: Vec<OsString>, log: PathBuf) -> Result<Self, ChildrenError> {
        let child = spawn(&args, &log).map_err(|why| ChildrenError::Start { name: name.clone(), why })?;
        Ok(Self { name, args, log, child })
    }

    /// Starts it again, with the same arguments, after its death.
    pub(crate) fn restart(&mut self) -> Result<(), ChildrenError> {
        self.end();
        self.child = spawn(&self.args, &self.log)
            .map_err(|why| ChildrenError::Start { name: self.name.clone(), why })?;
        Ok(())
    }

    /// Its name in messages: `master 1`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// An error with the end of its log when it has exited.
    pub(crate) fn check_running(&mut self) -> Result<(), ChildrenError> {
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
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), ChildrenError> {
        // Not reaped yet, so the pid is still this child's, dead or alive.
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal)
            .map_err(|why| ChildrenError::Signal { name: self.name.clone(), why: why.into() })
    }

    /// Waits for its death, at most `limit`, and returns how it died.
    pub(crate) async fn wait_dead(&mut self, limit: Duration) -> Result<ExitStatus, ChildrenError> {
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

    /// The last lines of its log, for an error message.
    pub(crate) fn log_tail(&self) -> String {
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
        // Both fail only when it is dead and reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether a child died of `signal`.
pub(crate) fn died_of(status: ExitStatus, signal: Signal) -> bool {
    status.signal() == Some(signal.as_raw())
}

fn spawn(args: &[OsString], log: &Path) -> io::Result<Child> {
    let log = OpenOptions::new().create(true).append(true).open(log)?;
    let mut command = Command::new(std::env::current_exe()?);
    // What the user has set for masters and stores of their own is not meant for these.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"MC_")) {
        command.env_remove(name);
    }
    command
        .arg("run")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Its own group: Ctrl-C in the terminal is for this process, which ends its children in order.
        .process_group(0)
        .spawn()
}
