//! The process around a store: flags, logs, signals, exit codes.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use mc_process::config::{self, Loaded};
use mc_process::telemetry::{self, Log};
use mc_store::{StartError, Store};
use mc_types::{ByteSize, Clock};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use crate::Server;
use crate::args::{Flags, command, with_flags};
use crate::masters;

/// Time limit of the unmount when the process stops. A supervisor kills a process that takes much longer.
const UNMOUNT_WITHIN: Duration = Duration::from_secs(2);
/// Exit code of an error that the user has to fix.
const USAGE: u8 = 2;

/// Runs `mc-store` until it is told to stop. `args` start with the program's name.
///
/// Installs this process' log subscriber and signal handlers, so it is for `main`s only; to embed a store use
/// [`mc_store::Store::builder`].
pub fn main_with(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let loaded = match config::load::<Flags>(command(), args.clone(), |name| std::env::var_os(name)) {
        Ok(loaded) => loaded,
        Err(err) => return err.report(),
    };
    if loaded.args.file.print_config {
        return config::printed(loaded.print(&mut io::stdout()));
    }
    let log = match telemetry::init(&loaded.args.log) {
        Ok(log) => log,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            return ExitCode::from(USAGE);
        }
    };
    if let Some(dir) = &loaded.args.release {
        return release(&log, dir);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(source) => return refuse_start(&log, &StartError::System { what: "event loop", source }),
    };
    let code = runtime.block_on(run(&log, loaded, args));
    // Do not wait for work that still blocks, such as a name lookup.
    runtime.shutdown_background();
    code
}

/// `args` are the arguments of the start, by which a SIGHUP reads the list of masters again.
async fn run(log: &Log, loaded: Loaded<Flags>, args: Vec<OsString>) -> ExitCode {
    let flags = loaded.args;
    // Before the start, which takes minutes: a SIGHUP ends a process that does not listen for it.
    let signals =
        stop_signal(flags.exit_on_stdin_eof).and_then(|stopped| Ok((stopped, signal(SignalKind::hangup())?)));
    let (stopped, hangups) = match signals {
        Ok(signals) => signals,
        Err(source) => return refuse_start(log, &StartError::System { what: "signal handler", source }),
    };
    tokio::pin!(stopped);
    mc_process::keep_files_private();
    // Must happen before the store reads the limit.
    if let Err(error) = mc_process::raise_descriptor_limit() {
        tracing::warn!(%error, "cannot raise the limit of open descriptors: fewer clients can connect");
    }
    let network = match flags.tls.network() {
        Ok(network) => network,
        Err(error) => {
            log.say(format!("error: {error}"));
            return ExitCode::from(USAGE);
        }
    };
    if let Err(source) = mc_process::shake_hands_apart(&network) {
        return refuse_start(log, &StartError::System { what: "thread for handshakes", source });
    }
    flags.tls.say(network.as_ref(), !flags.store.listen.ip().is_loopback());
    tokio::spawn(mc_process::keep_certificates(network.clone()));
    let tls_level = flags.tls.fixed_level();
    let started = tokio::select! {
        started = Server::start(flags.store, network, tls_level, Clock::monotonic(), progress()) => started,
        why = &mut stopped => {
            info!("{why} while starting: nothing to unmount");
            return ExitCode::SUCCESS;
        }
    };
    let server = match started {
        Ok(server) => server,
        Err(err) => return refuse_start(log, &err),
    };
    let why = tokio::select! {
        why = stopped => why,
        never = masters::read_again(hangups, args, server.store().masters()) => match never {},
    };
    match server.store().segment_dir() {
        Some(dir) => info!("{why}: leaving the memory in {}, and mounted", dir.display()),
        None => info!("{why}: unmounting the memory"),
    }
    server.stop(UNMOUNT_WITHIN).await;
    ExitCode::SUCCESS
}

/// Frees the memory in a segment directory.
fn release(log: &Log, dir: &Path) -> ExitCode {
    match Store::release_memory(dir) {
        Ok(()) => {
            log.say(format!("freed the memory in {}", dir.display()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            log.say(format!("error: --release: {error}"));
            ExitCode::from(USAGE)
        }
    }
}

/// Returns a future that ends when this process is asked to stop. Its output names the signal or other cause.
fn stop_signal(stdin_too: bool) -> io::Result<impl Future<Output = &'static str>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            () = mc_process::stdin_eof(), if stdin_too => "standard input ended",
        }
    })
}

/// Returns a callback that shows how much memory is ready. It prints on a terminal only, not line by line into a log.
fn progress() -> impl FnMut(ByteSize, ByteSize) + Send {
    let terminal = io::stderr().is_terminal();
    move |ready: ByteSize, of: ByteSize| {
        if terminal {
            let percent = ready.0 as f64 * 100.0 / of.0 as f64;
            let end = if ready == of { "\n" } else { "" };
            // An error means that the terminal is gone.
            let _ = write!(io::stderr(), "\rallocating {of}: {percent:3.0} %{end}");
        }
    }
}

/// Prints why the store did not start, with the flags that set it.
fn refuse_start(log: &Log, error: &StartError) -> ExitCode {
    log.say(format!("error: {}", with_flags(error)));
    ExitCode::from(USAGE)
}
