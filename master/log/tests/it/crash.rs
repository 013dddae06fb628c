//! The log on sled after crashes and damage, on real files: killed processes, torn ends, flipped bits, a full disk.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mc_log::{Damage, Entry, LogOptions, LogStore, OpenError, Recovered, SledOptions};
use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::common::{append, entry, id, indexes, vote};

/// Set for the child processes that write a log until they are killed.
const CHILD: &str = "MC_TEST_LOG_CHILD";

async fn open(dir: &Path) -> Result<(LogStore, Recovered), OpenError> {
    open_with(dir, LogOptions::default()).await
}

async fn open_with(dir: &Path, options: LogOptions) -> Result<(LogStore, Recovered), OpenError> {
    let opening = LogStore::open_sled(dir, SledOptions::default(), options);
    tokio::time::timeout(Duration::from_secs(60), opening).await.expect("opening a log ends")
}

/// The entry that every writer of these tests writes at an index: mostly small, some in parts.
fn nth(index: u64) -> Entry {
    let bytes = match index % 50 {
        0 => 20_000,
        at => (at * 61 % 700) as usize,
    };
    entry(1, index, bytes)
}

/// Every entry that is there is the one that was written, from the first not purged to the last, and there is no gap.
async fn check(store: &mut LogStore, recovered: &Recovered) {
    let first = recovered.purged.map_or(0, |purged| purged.index + 1);
    let next = recovered.last.map_or(0, |last| last.index + 1);
    let held = store.reader().try_get_log_entries(..).await.unwrap();
    assert!(held.iter().cloned().eq((first..next).map(nth)), "entries {first}..{next} are not those written");
}

/// Not a test by itself: the process that the tests below start and kill. It prints each index when it has been
/// acknowledged.
#[tokio::test]
async fn child_that_writes_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let options = LogOptions { mark_every: Duration::from_millis(20), ..LogOptions::default() };
    let (mut store, recovered) = open_with(&dir, options).await.unwrap();
    let seed = recovered.last.map_or(0, |last| last.index);
    let mut random = StdRng::seed_from_u64(seed);
    let mut term = recovered.vote.map_or(1, |vote| vote.leader_id.term);
    store.save_vote(&vote(term)).await.unwrap();
    let mut next = recovered.last.map_or(0, |last| last.index + 1);
    loop {
        // A few appends in flight at once, as openraft has them.
        let mut waiting = Vec::new();
        for _ in 0..random.random_range(1..5) {
            let count = random.random_range(1..40);
            waiting.push(append(&mut store, (next..next + count).map(nth)).await);
            next += count;
        }
        for done in waiting {
            match done.await {
                Ok(Ok(())) => {}
                _ => end_failed(&store).await,
            }
        }
        println!("\nacked {}", next - 1);
        if random.random_range(0..10) == 0 {
            term += 1;
            if store.save_vote(&vote(term)).await.is_err() {
                end_failed(&store).await;
            }
            println!("\nvoted {term}");
            if store.save_committed(Some(id(1, next - 1))).await.is_err() {
                end_failed(&store).await;
            }
        }
        if random.random_range(0..10) == 0 && next > 3_000 && store.purge(id(1, next - 2_000)).await.is_err()
        {
            end_failed(&store).await;
        }
        std::io::stdout().flush().unwrap();
    }
}

/// The writer may fail beside any call, at its mark for one: whichever hears of it first says why.
async fn end_failed(store: &LogStore) -> ! {
    println!("\nfailed {}", store.failed().await);
    std::process::exit(3);
}

fn child(dir: &Path, shell: Option<&str>) -> Child {
    let test = std::env::current_exe().unwrap();
    let mut command = match shell {
        None => Command::new(test),
        Some(before) => {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("{before}; exec \"$0\" \"$@\"")]).arg(test);
            command
        }
    };
    command.args([
        "--exact",
        "crash::child_that_writes_until_it_is_killed",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env(CHILD, dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

#[derive(Default)]
struct Heard {
    acked: Option<u64>,
    voted: u64,
    failed: Option<String>,
    lines: usize,
}

/// Listens to a child, kills it after so many lines, and hears it out.
fn listen(mut child: Child, kill_after: usize) -> Heard {
    let mut heard = Heard::default();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        // What was printed was acknowledged; a line that the kill cut off may name a smaller number, never a greater.
        if let Some(acked) = line.strip_prefix("acked ").and_then(|acked| acked.parse().ok()) {
            heard.acked = heard.acked.max(Some(acked));
            heard.lines += 1;
        } else if let Some(term) = line.strip_prefix("voted ").and_then(|term| term.parse().ok()) {
            heard.voted = heard.voted.max(term);
        } else if let Some(why) = line.strip_prefix("failed ") {
            heard.failed = Some(why.to_owned());
        }
        if heard.lines == kill_after {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    heard
}

#[tokio::test]
async fn a_killed_master_finds_all_it_acknowledged_and_no_gap() {
    let mut random = StdRng::seed_from_u64(9);
    let mut total = 0;
    for life in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("log");
        for round in 0..10 {
            let heard = listen(child(&dir, None), random.random_range(1..60));
            let (mut store, recovered) =
                open(&dir).await.unwrap_or_else(|error| panic!("life {life}, kill {round}: {error}"));
            let last = recovered.last.map(|last| last.index);
            assert!(heard.acked.is_some() && last >= heard.acked, "acked {:?}, found {last:?}", heard.acked);
            assert!(recovered.vote.unwrap().leader_id.term >= heard.voted);
            check(&mut store, &recovered).await;
            store.close().await;
            total = last.unwrap_or(0);
        }
        println!("life {life}: 10 kills, {total} entries");
    }
}

#[tokio::test]
async fn a_master_whose_disk_is_full_says_so_and_has_lost_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("log");
    // A limit on the size of files stands in for a full disk: writes fail, with EFBIG once the signal is ignored.
    let heard = listen(child(&dir, Some("trap '' XFSZ; ulimit -f 12000")), usize::MAX);
    let why = heard.failed.expect("the writer reports the failure");
    assert!(why.contains("must exit"), "{why}");
    println!("{why}");
    let (mut store, recovered) = open(&dir).await.unwrap();
    assert!(recovered.last.map(|last| last.index) >= heard.acked && heard.acked.is_some());
    check(&mut store, &recovered).await;
    store.close().await;
}

const WRITTEN: u64 = 8_000;
const PER_TERM: u64 = 500;

/// The term that was voted for just before the entry of this index was written.
fn term_at(index: u64) -> u64 {
    3 + index / PER_TERM
}

/// A log as a killed process leaves it, and the same log closed in good order, whose mark names its last entry.
async fn images(at: &Path) -> (PathBuf, PathBuf) {
    let (live, killed, closed) = (at.join("live"), at.join("killed"), at.join("closed"));
    let options = LogOptions { mark_every: Duration::from_secs(3600), ..LogOptions::default() };
    let (mut store, _) = open_with(&live, options).await.unwrap();
    for from in (0..WRITTEN).step_by(20) {
        if from % PER_TERM == 0 {
            store.save_vote(&vote(term_at(from))).await.unwrap();
        }
        append(&mut store, (from..from + 20).map(nth)).await.await.unwrap().unwrap();
    }
    copy(&live, &killed);
    store.close().await;
    copy(&live, &closed);
    (killed, closed)
}

fn copy(from: &Path, to: &Path) {
    drop(fs::remove_dir_all(to));
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_dir() {
            copy(&file.path(), &to.join(file.file_name()));
        } else {
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
}

#[derive(Default, Debug)]
struct Outcomes {
    /// Whether the damage is what a crash can do.
    torn: bool,
    whole: usize,
    prefix: usize,
    refused: usize,
}

impl Outcomes {
    /// Opens a damaged log: what was written, a prefix of it, or a refusal that says where, why and what to do. With
    /// `whole`, a prefix is wrong too.
    async fn judge(&mut self, dir: &Path, what: &str, whole: bool) {
        match open(dir).await {
            Ok((mut store, recovered)) => {
                check(&mut store, &recovered).await;
                store.close().await;
                let next = recovered.last.map_or(0, |last| last.index + 1);
                assert!(
                    !whole || next == WRITTEN,
                    "{what}: {next} of {WRITTEN} durable entries, and no refusal"
                );
                // Never a vote older than the log. Younger than the next one it can only be by damage: a bit that
                // hides the end of the log from sled may leave the vote alone.
                let term = recovered.vote.map_or(0, |vote| vote.leader_id.term);
                let oldest = next.checked_sub(1).map_or(0, term_at);
                let newest = if self.torn { term_at(next) } else { term_at(WRITTEN) };
                assert!(
                    (oldest..=newest).contains(&term),
                    "{what}: {next} entries with a vote of term {term}"
                );
                if next == WRITTEN { self.whole += 1 } else { self.prefix += 1 }
            }
            Err(error) => {
                let OpenError::Refused { found, .. } = &error else { panic!("{what}: {error}") };
                let text = error.to_string();
                for part in [dir.display().to_string(), reason(found), FIX.to_owned()] {
                    assert!(text.contains(&part), "{what}: `{part}` is not in `{text}`");
                }
                self.refused += 1;
            }
        }
    }
}

/// Advice in every refusal.
const FIX: &str = "move this master's data directory away and start it again";

/// The damage in the words that a person must be told.
fn reason(found: &Damage) -> String {
    let said = |what: &str| {
        assert!(!what.is_empty(), "{found:?}: in no words");
        format!("({what})")
    };
    match found {
        Damage::Hole { expected, .. } => format!("entries from index {expected} on are missing"),
        Damage::Middle { index, what, .. } => {
            format!("the record at index {index} is damaged {}", said(what))
        }
        Damage::EndsEarly { durable, .. } => format!("had durably written those below index {durable}"),
        Damage::Uncommitted { committed, .. } => format!("index {committed} had been committed"),
        Damage::Conflict { committed, .. } => format!("one of term {committed} had been committed there"),
        Damage::Vote { needed, .. } => format!("it had one of term {needed} or later"),
        Damage::Record { name, what } => format!("its record of {name} is damaged {}", said(what)),
        Damage::Engine { what } => format!("its database does not open {}", said(what)),
    }
}

#[tokio::test]
async fn a_torn_end_of_the_file_leaves_a_prefix_or_is_refused() {
    let at = tempfile::tempdir().unwrap();
    let (killed, closed) = images(at.path()).await;
    let mut random = StdRng::seed_from_u64(11);
    let torn = || Outcomes { torn: true, ..Outcomes::default() };
    let (mut unnoted, mut noted) = (torn(), torn());
    for round in 0..200 {
        let (image, outcomes) = if round % 4 == 3 { (&closed, &mut noted) } else { (&killed, &mut unnoted) };
        let dir = at.path().join("cut");
        copy(image, &dir);
        let file = OpenOptions::new().write(true).open(dir.join("db")).unwrap();
        let len = file.metadata().unwrap().len();
        // Mostly what a crash in mid-write can take; sometimes whole segments.
        let most = if round % 5 == 4 { len } else { 600 << 10 };
        let cut = random.random_range(1..most);
        file.set_len(len - cut).unwrap();
        outcomes.judge(&dir, &format!("{cut} of {len} bytes cut"), round % 4 == 3).await;
    }
    println!("cut before the mark was noted: {unnoted:?}; after: {noted:?}");
    assert!(unnoted.prefix > 20, "{unnoted:?}: the cuts did not reach the log");
    assert!(noted.refused > 5, "{noted:?}");
}

#[tokio::test]
async fn a_flipped_bit_is_harmless_or_refused() {
    let at = tempfile::tempdir().unwrap();
    let (killed, closed) = images(at.path()).await;
    let mut random = StdRng::seed_from_u64(13);
    let (mut unnoted, mut noted) = (Outcomes::default(), Outcomes::default());
    for round in 0..200 {
        let (image, outcomes) = if round % 2 == 1 { (&closed, &mut noted) } else { (&killed, &mut unnoted) };
        let dir = at.path().join("flipped");
        copy(image, &dir);
        let file = OpenOptions::new().read(true).write(true).open(dir.join("db")).unwrap();
        let place = random.random_range(0..file.metadata().unwrap().len());
        let bit = random.random_range(0..8);
        let mut byte = [0];
        file.read_exact_at(&mut byte, place).unwrap();
        file.write_all_at(&[byte[0] ^ (1 << bit)], place).unwrap();
        outcomes.judge(&dir, &format!("bit {bit} of byte {place} flipped"), round % 2 == 1).await;
    }
    println!("flipped before the mark was noted: {unnoted:?}; after: {noted:?}");
    assert!(unnoted.refused + unnoted.prefix > 5 && noted.refused > 5, "{unnoted:?}, {noted:?}");
}

#[tokio::test]
async fn missing_files_are_refused() {
    let at = tempfile::tempdir().unwrap();
    let (_, closed) = images(at.path()).await;
    let dir = at.path().join("missing");
    for (file, expect) in [("durable", "the file `durable` is gone"), ("db", "had durably written")] {
        copy(&closed, &dir);
        fs::remove_file(dir.join(file)).unwrap();
        for snapshot in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
            if file == "db" && snapshot.file_name().to_string_lossy().starts_with("snap.") {
                fs::remove_file(snapshot.path()).unwrap();
            }
        }
        let error = open(&dir).await.err().expect("refused").to_string();
        assert!(
            error.contains(expect) && error.contains("move this master's data directory away"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn an_unfinished_snapshot_of_the_database_does_not_keep_a_log_from_opening() {
    let at = tempfile::tempdir().unwrap();
    let (_, closed) = images(at.path()).await;
    // Of a process that was killed while it opened the log.
    let unfinished = closed.join("snap.7FFFFFFFFFFFFFFF.generating");
    fs::write(&unfinished, [1; 20]).unwrap();
    let (mut store, recovered) = open(&closed).await.expect("it opens");
    check(&mut store, &recovered).await;
    store.close().await;
    assert!(!unfinished.exists());
}

#[tokio::test]
async fn a_second_process_is_told_that_the_log_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path()).await.unwrap();
    let error = open(dir.path()).await.err().expect("refused");
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("in use by another process"), "{error}");
    store.close().await;
    open(dir.path()).await.expect("free again").0.close().await;
}

#[tokio::test]
async fn a_long_log_reopens_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path()).await.unwrap();
    store.save_vote(&vote(1)).await.unwrap();
    for from in (0..100_000).step_by(1_000) {
        append(&mut store, (from..from + 1_000).map(|index| entry(1, index, 256)))
            .await
            .await
            .unwrap()
            .unwrap();
    }
    store.close().await;
    let begun = Instant::now();
    let (mut store, recovered) = open(dir.path()).await.unwrap();
    println!("100,000 entries of 256 B reopened in {:?}", begun.elapsed());
    assert_eq!(recovered.last, Some(id(1, 99_999)));
    assert_eq!(indexes(&mut store, 0..200_000).await, Vec::from_iter(0..100_000));
    store.close().await;
}

#[tokio::test]
async fn no_size_of_entry_makes_sled_write_files_that_it_does_not_sync() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path()).await.unwrap();
    store.save_vote(&vote(1)).await.unwrap();
    let sizes = [1, 250, 6_000, 20_000, 28_000, 28_600, 28_700, 30_000, 200_000, 1_100_000];
    for (index, size) in (0..).zip(sizes.iter().cycle()).take(600) {
        append(&mut store, [entry(1, index, *size)]).await.await.unwrap().unwrap();
        if index % 150 == 149 {
            store.purge(id(1, index - 100)).await.unwrap();
        }
        let blobs = fs::read_dir(dir.path().join("blobs")).unwrap().count();
        assert_eq!(blobs, 0, "entry {index} of {size} B");
    }
    store.close().await;
}

#[tokio::test]
async fn a_log_is_purged_and_read_while_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions { tail_bytes: 100_000, ..LogOptions::default() };
    let (mut store, _) = open_with(dir.path(), options).await.unwrap();
    store.save_vote(&vote(1)).await.unwrap();
    let mut follower = store.reader();
    let reading = tokio::spawn(async move {
        let mut next = 0;
        while next < 20_000 {
            for read in follower.limited_get_log_entries(next, 20_000).await.unwrap() {
                assert_eq!(read, nth(next));
                next += 1;
            }
            tokio::task::yield_now().await;
        }
    });
    for from in (0..20_000).step_by(50) {
        append(&mut store, (from..from + 50).map(nth)).await.await.unwrap().unwrap();
        tokio::task::yield_now().await;
    }
    reading.await.unwrap();
    for upto in (0..19_000).step_by(500) {
        store.purge(id(1, upto)).await.unwrap();
        let next = 20_000 + upto / 500;
        append(&mut store, [nth(next)]).await.await.unwrap().unwrap();
        assert_eq!(store.reader().try_get_log_entries(0..upto + 2).await.unwrap(), [nth(upto + 1)]);
    }
    store.close().await;
    let (mut store, recovered) = open(dir.path()).await.unwrap();
    assert_eq!((recovered.purged, recovered.last), (Some(id(1, 18_500)), Some(id(1, 20_037))));
    check(&mut store, &recovered).await;
    store.close().await;
}

#[tokio::test]
async fn a_log_cut_below_what_was_durable_is_refused() {
    let at = tempfile::tempdir().unwrap();
    let (killed, closed) = images(at.path()).await;
    // The database of the log as it was, under the mark of the log as it became.
    let (mut store, _) = open(&closed).await.unwrap();
    append(&mut store, [nth(WRITTEN)]).await.await.unwrap().unwrap();
    store.close().await;
    fs::copy(closed.join("durable"), killed.join("durable")).unwrap();
    match open(&killed).await.map(|(_, recovered)| recovered) {
        Err(OpenError::Refused { found, .. }) => {
            assert_eq!(found, Damage::EndsEarly { next: WRITTEN, durable: WRITTEN + 1 });
        }
        other => panic!("{other:?}"),
    }
}
