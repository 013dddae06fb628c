//! Many seeds, each in a process of its own.

use std::collections::VecDeque;
use std::io::Read as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::number;

/// A run that takes longer has hung: the usual takes a few seconds.
const HUNG: Duration = Duration::from_secs(300);

struct Run {
    seed: u64,
    child: Child,
    began: Instant,
}

/// Runs the seeds that the environment asks for, and prints what was found.
pub(crate) fn run() -> ExitCode {
    let first = number("MC_SIM_FIRST").unwrap_or(1);
    let count = number("MC_SIM_SEEDS").unwrap_or(200);
    let seconds = number("MC_SIM_SECONDS").unwrap_or(180);
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let jobs = number("MC_SIM_JOBS").unwrap_or(processors) as usize;
    let go_on = std::env::var_os("MC_SIM_GO_ON").is_some();

    let began = Instant::now();
    match repeat(first) {
        Ok(()) => println!("seed {first} is the same run twice"),
        Err(different) => println!("seed {first} is not the same run twice:\n{different}"),
    }
    let mut left: VecDeque<u64> = (first..first + count).collect();
    let mut running: Vec<Run> = Vec::new();
    let (mut done, mut violations) = (0, Vec::new());
    loop {
        let late = seconds > 0 && began.elapsed() > Duration::from_secs(seconds);
        let stop = late || (!go_on && !violations.is_empty());
        while !stop && running.len() < jobs {
            let Some(seed) = left.pop_front() else { break };
            running.push(start(seed));
        }
        if running.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        let mut still = Vec::new();
        for mut run in running {
            match end(&mut run) {
                None => still.push(run),
                Some(None) => done += 1,
                Some(Some(report)) => {
                    done += 1;
                    println!(
                        "{report}\nseed {} again: MC_SIM_SEED={0} cargo test -p mc-tests --test sim",
                        run.seed
                    );
                    violations.push(run.seed);
                }
            }
        }
        running = still;
    }
    println!(
        "simulation: {done} seeds from {first} in {:.0} s, violations in {} of them: {violations:?}",
        began.elapsed().as_secs_f64(),
        violations.len()
    );
    if violations.is_empty() && done > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a seed twice: a violation that cannot be replayed is worth little.
fn repeat(seed: u64) -> Result<(), String> {
    let reports = [start(seed), start(seed)].map(|run| {
        let output = run.child.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    });
    if reports[0] == reports[1] { Ok(()) } else { Err(reports.concat()) }
}

fn start(seed: u64) -> Run {
    let this = std::env::current_exe().unwrap();
    let child =
        Command::new(this).env("MC_SIM_SEED", seed.to_string()).stdout(Stdio::piped()).spawn().unwrap();
    Run { seed, child, began: Instant::now() }
}

/// `None` while it runs; then what it found, if it found anything.
fn end(run: &mut Run) -> Option<Option<String>> {
    let hung = run.began.elapsed() > HUNG;
    if hung {
        let _ = run.child.kill();
    }
    let status = run.child.try_wait().unwrap()?;
    let mut report = String::new();
    if let Some(out) = &mut run.child.stdout {
        let _ = out.read_to_string(&mut report);
    }
    if hung {
        report += &format!("seed {} had not ended after {HUNG:?}", run.seed);
    }
    Some((!status.success()).then_some(report))
}
