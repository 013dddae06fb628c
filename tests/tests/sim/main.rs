//! Simulation.
#![allow(clippy::unwrap_used, reason = "a test")]

mod client;
mod files;
mod invariants;
mod libc;
mod log;
mod machine;
mod nemesis;
mod net;
mod oracle;
mod schedule;
mod trace;

fn main() -> std::process::ExitCode {
    let seed: u64 = std::env::var("MC_SIM_SEED").unwrap_or("1".into()).parse().unwrap();
    if let Ok(path) = std::env::var("MC_SIM_TRACE") {
        let _ = trace::TRACE.set(std::fs::File::create(path).unwrap());
    }
    if std::env::var("RUST_LOG").is_ok() {
        tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).with_writer(std::io::stderr).init();
    }
    let report = std::thread::spawn(move || {
        libc::seed_this_thread(seed);
        schedule::run(seed)
    })
    .join()
    .unwrap();
    println!("seed {seed}: trace {:016x} of {} events: {}", report.trace.0, report.trace.1, report.summary);
    if let Some(v) = report.violation {
        println!("VIOLATION: {v}\n{}", report.faults.join("\n"));
        return 1.into();
    }
    0.into()
}
