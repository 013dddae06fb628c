use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use crate::{flip, mcctl_exe, until_within};

/// Time limit for a process to obey a signal.
const OBEY: Duration = Duration::from_secs(30);

/// One `mcctl run ...`, running or not. It is killed and reaped when dropped. If the test process itself is killed, the
/// child ends because its standard input ends.
#[derive(Debug)]
pub struct Process {
    name: String,
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    log: PathBuf,
    /// `None`: the one of this build.
    exe: Option<PathBuf>,
    child: Option<Child>,
}

impl Process {
    /// Describes a process, which [`Self::start`] runs. Its output is appended to `log` at every start.
    pub fn new(name: String, args: Vec<OsString>, env: Vec<(String, String)>, log: PathBuf) -> Self {
        Self { name, args, env, log, exe: None, child: None }
    }

    /// Returns the name, such as `master 1`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of its output.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns everything that it has printed so far, over all its starts.
    pub fn output(&self) -> String {
        std::fs::read(&self.log).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
    }

    /// Sets the `mcctl` for the next start; `None` is that of this build.
    pub fn set_exe(&mut self, exe: Option<PathBuf>) {
        self.exe = exe;
    }

    /// Adds flags for the next start.
    pub fn add_args<I: Into<OsString>>(&mut self, args: impl IntoIterator<Item = I>) {
        self.args.extend(args.into_iter().map(Into::into));
    }

    /// Changes the value of an existing flag for the next start.
    pub fn set_arg(&mut self, flag: &str, value: &str) {
        self.replace_flag(flag, 1, [flag, value]);
    }

    /// Replaces an existing flag and its `values` values by the arguments `by`, for the next start.
    pub fn replace_flag<const N: usize>(&mut self, flag: &str, values: usize, by: [&str; N]) {
        let at = self.args.iter().position(|arg| arg == flag);
        let at = at.unwrap_or_else(|| panic!("{} has no {flag}", self.name));
        self.args.splice(at..=at + values, by.map(OsString::from));
    }

    /// Sets variables for the next start.
    pub(crate) fn add_env(&mut self, env: impl IntoIterator<Item = (String, String)>) {
        self.env.extend(env);
    }

    /// Starts the process.
    pub fn start(&mut self) {
        assert!(!self.is_running(), "{} runs already", self.name);
        let log = File::options().create(true).append(true).open(&self.log).expect("a log file");
        let mut command = Command::new(self.exe.clone().unwrap_or_else(mcctl_exe));
        // Variables that the user has set for a pool of their own do not apply to this one.
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
            // A group of its own: Ctrl-C goes to the test runner, and its end ends this process.
            .process_group(0)
            .spawn();
        self.child = Some(child.unwrap_or_else(|err| panic!("cannot start {}: {err}", self.name)));
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap_or_else(|| panic!("{} is not running", self.name)).id()
    }

    /// Takes the running process out of this description, whose next start runs another one beside it.
    pub fn take(&mut self) -> Self {
        let Self { name, args, env, log, exe, child } = self;
        Self {
            name: name.clone(),
            args: args.clone(),
            env: env.clone(),
            log: log.clone(),
            exe: exe.clone(),
            child: child.take(),
        }
    }

    /// Returns whether it runs (or is stopped by SIGSTOP).
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Fails at once if the process was started and has ended on its own, instead of waiting for its effect.
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

    /// Kills the process with `kill -9`, and waits until it is dead.
    ///
    /// # Panics
    /// When the process was dead already: a fault that hits nothing is no fault.
    pub fn kill9(&mut self) {
        assert!(self.is_running(), "{} was dead before it was killed", self.name);
        self.signal(Signal::KILL);
        let mut child = self.child.take().expect("it was running");
        let status = child.wait().expect("a child can be waited for");
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{} died of something else", self.name);
    }

    /// Sends SIGTERM and waits for its end.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended().await
    }

    /// Sends SIGTERM without waiting for the end.
    pub fn ask_to_stop(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills the process with `kill -9` unless it has ended already; returns how it ended.
    pub async fn killed(&mut self) -> ExitStatus {
        if self.how_it_ended().is_none() {
            self.signal(Signal::KILL);
        }
        self.ended().await
    }

    /// Waits for its end, and returns how it ended.
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

    /// Returns how it has ended, or `None` while it runs.
    pub fn how_it_ended(&mut self) -> Option<ExitStatus> {
        let child = self.child.as_mut().unwrap_or_else(|| panic!("{} is not running", self.name));
        child.try_wait().expect("a child can be waited for")
    }

    /// Sends SIGSTOP and waits until the process has stopped.
    pub async fn pause(&self) {
        self.signal(Signal::STOP);
        until_within(OBEY, format!("{} stops", self.name), || std::future::ready(self.state() == Some('T')))
            .await;
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Limits the descriptors that the process may have to `most` from now on; returns the limit before.
    pub fn limit_descriptors(&self, most: u64) -> u64 {
        self.limit(Resource::Nofile, most)
    }

    /// Limits the process' private memory to `most` bytes (`RLIMIT_DATA`) from now on; returns the limit before. The
    /// process keeps memory that it has beyond the limit, and gets no more.
    pub fn limit_memory(&self, most: u64) -> u64 {
        self.limit(Resource::Data, most)
    }

    fn limit(&self, of: Resource, most: u64) -> u64 {
        let child = self.child.as_ref().unwrap_or_else(|| panic!("{} is not running", self.name));
        let limit = Rlimit { current: Some(most), ..getrlimit(of) };
        let before = prlimit(Some(Pid::from_child(child)), of, limit);
        before.unwrap_or_else(|err| panic!("cannot limit {}: {err}", self.name)).current.unwrap_or(u64::MAX)
    }

    /// Inverts one byte of a segment that the process lends, behind its back, as failing memory would.
    pub fn flip(&self, segment: u32, offset: u64) {
        flip::flip(self.pid(), segment, offset)
            .unwrap_or_else(|err| panic!("cannot damage the memory of {}: {err}", self.name));
    }

    /// Counts the descriptors that the process has.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("it runs").count()
    }

    /// Returns the lowest descriptor that the process has not in use: with this limit it can open none.
    pub fn first_free_descriptor(&self) -> u64 {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("it runs");
        let open: std::collections::BTreeSet<u64> =
            open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        (0..).find(|number| !open.contains(number)).expect("there are fewer than 2^64")
    }

    /// Closes the process' standard input, as the death of a test runner does.
    pub fn abandon(&mut self) {
        drop(self.child.as_mut().and_then(|child| child.stdin.take()));
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().unwrap_or_else(|| panic!("{} is not running", self.name));
        // The child is not reaped yet, so the pid is still its own, dead or alive.
        kill_process(Pid::from_child(child), signal)
            .unwrap_or_else(|err| panic!("cannot signal {}: {err}", self.name));
    }

    /// Returns the state letter of `/proc/<pid>/stat`; `T` means stopped.
    fn state(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
        // The name before the state may contain any character, closing brackets too.
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
