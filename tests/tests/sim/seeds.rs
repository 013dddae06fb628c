//! Many seeds, each in a process of its own.

use std::collections::VecDeque;
use std::io::Read as _;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use mc_tests::Seeded;

use crate::exercised::Totals;
use crate::number;

/// A run that takes longer has hung: the usual takes a few seconds.
const HUNG: Duration = Duration::from_secs(300);
/// Exit code of a seed's process whose history the checker gave up.
pub(crate) const UNDECIDED: u8 = 3;
/// Of 100 seeds.
const MOST_UNDECIDED: usize = 1;
/// So many seeds are enough for each thing that schedules are for to happen in one of them.
const ENOUGH: usize = 50;
/// So many seeds are run twice.
const REPEATED: usize = 3;

/// A seed that is being run.
struct Run {
    seed: u64,
    child: Child,
    began: Instant,
}

/// Output of a seed's process, and how it ended.
struct Ended {
    seed: u64,
    report: String,
    status: ExitStatus,
    hung: bool,
}

/// Runs the seeds that the environment asks for, and prints what was found.
pub(crate) fn run() -> ExitCode {
    let first = number("MC_SIM_FIRST").unwrap_or(1);
    let count = number("MC_SIM_SEEDS").unwrap_or(200);
    let seconds = number("MC_SIM_SECONDS").unwrap_or(180);
    let least = number("MC_SIM_LEAST").unwrap_or(1);
    let go_on = std::env::var_os("MC_SIM_GO_ON").is_some();

    let began = Instant::now();
    let (mut ended, mut violations) = (Vec::new(), Vec::new());
    let on_end = |one: Ended| {
        if one.violates() {
            println!("{}\n{}", one.report, replay(one.seed));
            violations.push(one.seed);
        }
        ended.push(one);
        let late = seconds > 0 && began.elapsed() > Duration::from_secs(seconds);
        !late && (go_on || violations.is_empty())
    };
    all((first..first + count).collect(), on_end);
    let undecided: Vec<_> = ended.iter().filter(|one| one.is_undecided()).map(|one| one.seed).collect();
    println!(
        "simulation: {} seeds from {first} in {:.0} s, violations in {} of them: {violations:?}, undecided {}: {undecided:?}",
        ended.len(),
        began.elapsed().as_secs_f64(),
        violations.len(),
        undecided.len(),
    );
    let enough = ended.len() as u64 >= least;
    if !enough && violations.is_empty() {
        println!(
            "TOO FEW: {} seeds in {seconds} s, and MC_SIM_LEAST is {least}: this machine is too slow or busy",
            ended.len()
        );
    }
    let decided = undecided.len() * 100 <= ended.len() * MOST_UNDECIDED;
    let exercised = exercised(&ended);
    let repeated = repeat(&ended);
    if violations.is_empty() && decided && exercised && repeated && enough {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// How to run a seed again by this program: another build of it may be another run. `.ci/run` and `tests/soak` select the
/// whole workspace, and of one package alone cargo may build dependencies with other features. Cargo does not tell which
/// selection this is of, so that the executable is named, too.
fn replay(seed: u64) -> String {
    let release = if cfg!(debug_assertions) { "" } else { " --release" };
    let this = std::env::current_exe().unwrap();
    format!(
        "seed {seed} again: MC_SIM_SEED={seed} cargo test{release} --workspace --test sim\n\
         or, as long as it is there: MC_SIM_SEED={seed} {}",
        this.display()
    )
}

/// Prints how often the seeds did what they are for. False when they were enough, and something of that never happened.
fn exercised(ended: &[Ended]) -> bool {
    let totals = Totals::of(ended.iter().map(|one| one.report.as_str()));
    println!("{totals}");
    let missing = totals.missing();
    if ended.len() < ENOUGH || missing.is_empty() {
        return true;
    }
    println!(
        "NOT EXERCISED: in {} seeds there were no {}: the run shows less than it is for",
        ended.len(),
        missing.join(", no ")
    );
    false
}

/// Runs `seeds`, several at once, for as long as `on_end` wants more.
fn all(mut seeds: VecDeque<u64>, mut on_end: impl FnMut(Ended) -> bool) {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let jobs = number("MC_SIM_JOBS").unwrap_or(processors) as usize;
    let mut running: Vec<Run> = Vec::new();
    loop {
        while running.len() < jobs {
            let Some(seed) = seeds.pop_front() else { break };
            running.push(start(seed));
        }
        if running.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
        let mut still = Vec::new();
        for mut run in running {
            match end(&mut run) {
                None => still.push(run),
                Some(one) => {
                    if !on_end(one) {
                        seeds.clear();
                    }
                }
            }
        }
        running = still;
    }
}

/// Runs the first of the seeds and some others again: a violation that cannot be replayed is worth little. True when
/// they are the same runs.
fn repeat(ended: &[Ended]) -> bool {
    let mut whole: Vec<_> = ended.iter().filter(|one| !one.hung).collect();
    whole.sort_by_key(|one| one.seed);
    let mut rng = Seeded::new(whole.len() as u64);
    let mut chosen = Vec::new();
    while chosen.len() < REPEATED && !whole.is_empty() {
        let at = if chosen.is_empty() { 0 } else { rng.below(whole.len() as u64) as usize };
        chosen.push(whole.remove(at));
    }
    let mut same = true;
    all(chosen.iter().map(|one| one.seed).collect(), |again| {
        let before = chosen.iter().find(|one| one.seed == again.seed).map_or("", |one| one.first_line());
        if before == again.first_line() {
            println!("seed {} is the same run twice", again.seed);
        } else {
            println!("seed {} is not the same run twice:\n{before}\n{}", again.seed, again.first_line());
            same = false;
        }
        true
    });
    same
}

fn start(seed: u64) -> Run {
    let this = std::env::current_exe().unwrap();
    let child =
        Command::new(this).env("MC_SIM_SEED", seed.to_string()).stdout(Stdio::piped()).spawn().unwrap();
    Run { seed, child, began: Instant::now() }
}

/// `None` while it runs.
fn end(run: &mut Run) -> Option<Ended> {
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
    Some(Ended { seed: run.seed, report, status, hung })
}

impl Ended {
    fn is_undecided(&self) -> bool {
        self.status.code() == Some(i32::from(UNDECIDED))
    }

    /// With the hash of its trace. What follows may name temporary folders.
    fn first_line(&self) -> &str {
        self.report.lines().next().unwrap_or_default()
    }

    fn violates(&self) -> bool {
        !self.status.success() && !self.is_undecided()
    }
}
