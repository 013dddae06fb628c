use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use crate::{flip, mcctl_exe, until_within};

/// How long a process may take to do what a signal says.
const OBEY: Duration = Duration::from_secs(30);

/// One `mcctl run ...`, running or not. Killed and reaped when dropped; when this process is killed itself, the child ends
/// because its standard input does.
#[derive(Debug)]
pub struct Process {
    name: String,
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// A process to run; [`Self::start`] runs it. Its output goes to `log`, which grows with every start.
    #[must_use]
    pub fn new(name: String, args: Vec<OsString>, env: Vec<(String, String)>, log: PathBuf) -> Self {
        Self { name, args, env, log, child: None }
    }

    /// `master 1`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its output is.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// All that it has printed so far, over all its starts.
    #[must_use]
    pub fn output(&self) -> String {
        std::fs::read(&self.log).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
    }

    /// Adds flags for the next start.
    pub fn add_args<I: Into<OsString>>(&mut self, args: impl IntoIterator<Item = I>) {
        self.args.extend(args.into_iter().map(Into::into));
    }

    /// Gives a flag that it has another value for the next start.
    ///
    /// # Panics
    /// When it does not have that flag.
    pub fn set_arg(&mut self, flag: &str, value: &str) {
        self.replace_flag(flag, 1, [flag, value]);
    }

    /// Puts others in the place of a flag that it has, with so many values, for the next start.
    ///
    /// # Panics
    /// When it does not have that flag.
    pub fn replace_flag<const N: usize>(&mut self, flag: &str, values: usize, by: [&str; N]) {
        let at = self.args.iter().position(|arg| arg == flag);
        let at = at.unwrap_or_else(|| panic!("{} has no {flag}", self.name));
        self.args.splice(at..=at + values, by.map(OsString::from));
    }

    /// Sets variables for the next start.
    pub(crate) fn add_env(&mut self, env: impl IntoIterator<Item = (String, String)>) {
        self.env.extend(env);
    }

    /// Starts it.
    ///
    /// # Panics
    /// When it runs already, or cannot be started.
    pub fn start(&mut self) {
        assert!(!self.is_running(), "{} runs already", self.name);
        let log = File::options().create(true).append(true).open(&self.log).expect("a log file");
        let mut command = Command::new(mcctl_exe());
        // What the user has set for a pool of their own is not meant for this one.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"MC_")) {
            command.env_remove(name);
        }
        let child = command
            .arg("run")
            .args(&self.args)
            .envs(self.env.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a second handle of the log"))
            .stderr(log)
            // Its own group: Ctrl-C is for the test runner, whose end ends it.
            .process_group(0)
            .spawn();
        self.child = Some(child.unwrap_or_else(|err| panic!("cannot start {}: {err}", self.name)));
    }

    /// Its process id.
    ///
    /// # Panics
    /// When it was never started, or has been reaped.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap_or_else(|| panic!("{} is not running", self.name)).id()
    }

    /// Whether it runs (or is stopped by SIGSTOP).
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Fails at once when it was started and has ended by itself, rather than waiting for what it would have done.
    ///
    /// # Panics
    /// With the last line that it printed.
    pub fn assert_not_ended(&mut self) {
        let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        if let Some(status) = ended {
            panic!(
                "{} has ended by itself ({status}): {}",
                self.name,
                self.output().lines().last().unwrap_or("")
            );
        }
    }

    /// `kill -9`, and waits until it is dead.
    ///
    /// # Panics
    /// When it was dead already: a fault that hits nothing is no fault.
    pub fn kill9(&mut self) {
        assert!(self.is_running(), "{} was dead before it was killed", self.name);
        self.signal(Signal::KILL);
        let mut child = self.child.take().expect("it was running");
        let status = child.wait().expect("a child can be waited for");
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{} died of something else", self.name);
    }

    /// SIGTERM, and waits for its end.
    ///
    /// # Panics
    /// When it does not end.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended().await
    }

    /// `kill -9`, unless it has ended already: how it has ended.
    ///
    /// # Panics
    /// When it was not running before either.
    pub async fn killed(&mut self) -> ExitStatus {
        if self.how_it_ended().is_none() {
            self.signal(Signal::KILL);
        }
        self.ended().await
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap_or_else(|| panic!("{} is not running", self.name));
        let mut status = None;
        until_within(OBEY, format!("{} ends", self.name), || {
            status = child.try_wait().expect("a child can be waited for");
            std::future::ready(status.is_some())
        })
        .await;
        status.expect("it has ended")
    }

    /// How it has ended, if it has.
    ///
    /// # Panics
    /// When it was never started, or has been reaped.
    pub fn how_it_ended(&mut self) -> Option<ExitStatus> {
        let child = self.child.as_mut().unwrap_or_else(|| panic!("{} is not running", self.name));
        child.try_wait().expect("a child can be waited for")
    }

    /// SIGSTOP, and waits until it has stopped.
    ///
    /// # Panics
    /// When it does not.
    pub async fn pause(&self) {
        self.signal(Signal::STOP);
        until_within(OBEY, format!("{} stops", self.name), || std::future::ready(self.state() == Some('T')))
            .await;
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Limits how many descriptors it may have, from now on, and returns the limit before.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn limit_descriptors(&self, most: u64) -> u64 {
        self.limit(Resource::Nofile, most)
    }

    /// Limits the bytes of memory that it may have to itself (`RLIMIT_DATA`), from now on, and returns the limit
    /// before. What it has beyond that stays its own, and it gets no more.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn limit_memory(&self, most: u64) -> u64 {
        self.limit(Resource::Data, most)
    }

    fn limit(&self, of: Resource, most: u64) -> u64 {
        let child = self.child.as_ref().unwrap_or_else(|| panic!("{} is not running", self.name));
        let limit = Rlimit { current: Some(most), ..getrlimit(of) };
        let before = prlimit(Some(Pid::from_child(child)), of, limit);
        before.unwrap_or_else(|err| panic!("cannot limit {}: {err}", self.name)).current.unwrap_or(u64::MAX)
    }

    /// Inverts one byte of a segment that it lends, behind its back, as failing memory would.
    ///
    /// # Panics
    /// When it lends no such byte, or the system refuses.
    pub fn flip(&self, segment: u32, offset: u64) {
        flip::flip(self.pid(), segment, offset)
            .unwrap_or_else(|err| panic!("cannot damage the memory of {}: {err}", self.name));
    }

    /// How many descriptors it has.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("it runs").count()
    }

    /// Lets go of it, as a test runner that is killed does: its standard input ends.
    pub fn abandon(&mut self) {
        drop(self.child.as_mut().and_then(|child| child.stdin.take()));
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().unwrap_or_else(|| panic!("{} is not running", self.name));
        // Not reaped yet, so the pid is still this child's, dead or alive.
        kill_process(Pid::from_child(child), signal)
            .unwrap_or_else(|err| panic!("cannot signal {}: {err}", self.name));
    }

    /// The state letter of `/proc/<pid>/stat`: `T` is stopped.
    fn state(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
        // The name before it may hold anything, closing brackets too.
        stat.rsplit_once(')')?.1.trim_start().chars().next()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Both fail only when it is dead and reaped.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
