//! `mc-master` as a process: flags, logs, runtimes, signals. No other module knows that it runs in a process of its
//! own.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::CommandFactory as _;
use mc_durable::FileSystem;
use mc_log::{self, OnSled};
use mc_process::config::{self, Loaded};
use mc_process::telemetry;
use mc_types::Clock;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use super::environment::Environment;
use super::error::StartError;
use super::master::Master;
use crate::config::MasterArgs;

/// Exit code for an error that a person must fix before another start makes sense.
const EXIT_CONFIG: u8 = 2;
/// Time that a runtime's remaining tasks get to stop at exit. A task that takes longer is abandoned.
const TO_FALL_SILENT: Duration = Duration::from_millis(100);

/// Runs a master until it is told to stop. `args` begin with the program's name.
///
/// Exits with 0 after SIGTERM or SIGINT, with 2 when the configuration cannot work, and with 1 when the master cannot
/// go on, for example because a disk fails. Other masters then take over, and the last line on standard error says why.
pub fn main_with(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let loaded = match config::load::<MasterArgs>(MasterArgs::command(), args, |name| std::env::var_os(name))
    {
        Ok(loaded) => loaded,
        Err(error) => return error.report(),
    };
    if loaded.args.file.print_config {
        return config::printed(loaded.print(&mut std::io::stdout()));
    }
    let log = match telemetry::init(&loaded.args.log) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    match run(&loaded) {
        Ok(()) => ExitCode::SUCCESS,
        Err(End::Config(why)) => {
            log.say(format!("error: {why}"));
            ExitCode::from(EXIT_CONFIG)
        }
        Err(End::Failed(why)) => {
            log.say(format!("error: {why}"));
            ExitCode::FAILURE
        }
    }
}

enum End {
    Config(String),
    Failed(String),
}

impl From<StartError> for End {
    fn from(error: StartError) -> Self {
        Self::Config(error.to_string())
    }
}

fn run(loaded: &Loaded<MasterArgs>) -> Result<(), End> {
    let args = &loaded.args;
    mc_log::keep_caught_panics_quiet();
    let failed = |err: std::io::Error| End::Failed(format!("the runtime did not start: {err}"));
    // Raft runs on threads of its own, so that a flood of requests does not hold up heartbeats. It has no more threads
    // than there are cores: on two cores, a second thread each made a batch of puts a third slower, because work was
    // handed to and fro.
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let raft_threads = (cores / 2).clamp(1, 2);
    let raft = runtime("mc-raft", raft_threads).map_err(failed)?;
    let api = runtime("mc-api", cores.saturating_sub(raft_threads).max(1)).map_err(failed)?;
    let network = args.tls.network().map_err(|error| End::Config(error.to_string()))?;
    // A fleet that moves here makes thousands of handshakes in a second.
    mc_process::shake_hands_apart(&network).map_err(failed)?;
    let environment = Environment {
        clock: api.block_on(async { Clock::monotonic() }),
        network: network.clone(),
        log: Arc::new(OnSled::default()),
        raft: raft.handle().clone(),
        free_space: Arc::new(FileSystem),
    };
    mc_process::keep_files_private();
    api.spawn(mc_process::keep_certificates(network));
    // Each client and each store needs a descriptor.
    if let Err(error) = mc_process::raise_descriptor_limit() {
        tracing::warn!(%error, "cannot raise the limit on open files: fewer clients and stores can connect");
    }
    let outcome = api.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut master = tokio::select! {
            started = Master::start(loaded, environment) => started?,
            // A signal can arrive during the start: opening a long log takes time.
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        };
        let orphaned = async {
            match args.exit_on_stdin_eof {
                true => mc_process::stdin_eof().await,
                false => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
            () = orphaned => Ok(()),
            why = master.failed() => Err(why),
        };
        match outcome {
            Ok(()) => {
                master.stop().await;
                Ok(())
            }
            Err(why) => Err(match &*why {
                StartError::Failed(_) => End::Failed(why.to_string()),
                _ => End::Config(why.to_string()),
            }),
        }
    });
    // Remaining tasks (idle connections) end with the process. They log next to nothing, so the line that says why
    // stays last.
    api.shutdown_timeout(TO_FALL_SILENT);
    raft.shutdown_timeout(TO_FALL_SILENT);
    outcome
}

fn runtime(name: &str, threads: usize) -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build()
}
