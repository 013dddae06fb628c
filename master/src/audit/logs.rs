use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io};

use mc_net::Denied;
use mc_raft::AuditedEntry;
use metrics::Counter;
use parking_lot::Mutex;

use super::lines::{self, Lines};
use super::record::Record;
use super::refusals::Refusals;

/// Most changes that wait to be written. Those beyond are lost, and counted: no call waits for a disk.
const WAITING_MAX: usize = 4_096;
/// Time between lines of refusals, and between attempts to write to a disk that fails.
const SPAN: Duration = Duration::from_secs(1);
/// Time between two warnings that records were lost.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Changes by those who run the pool, and by callers without an identity.
const CHANGES: &str = "changes.jsonl";
/// Changes by users of tenants and by stores. They have a file of their own, so that they can't push the others out.
const CHANGES_BY_USERS: &str = "changes-by-users.jsonl";
const REFUSALS: &str = "refusals.jsonl";

/// Which audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Changes that were applied, on every master.
    Changes,
    /// Callers that this master refused.
    Refusals,
}

/// The audit logs in a data directory, and the thread that writes them.
///
/// Lines are not synced one by one. A master that starts applies the entries after its last snapshot again, and writes those
/// that the files lack. So after a failure of the machine only lines before that snapshot can be missing, and other masters
/// have them.
pub(crate) struct AuditLogs {
    dir: PathBuf,
    changes: Mutex<Option<SyncSender<AuditedEntry>>>,
    refused: Arc<Mutex<Refusals>>,
    lost: Counter,
    stops: Arc<AtomicBool>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl AuditLogs {
    /// Opens the logs in the folder `audit` of a data directory. `is_new` says that the master belongs to no cluster yet: lines
    /// that are there are of another one. `lost` counts records that could not be written.
    ///
    /// # Errors
    /// When the folder or a file can't be opened.
    pub(crate) fn open(data_dir: &Path, is_new: bool, lost: Counter) -> io::Result<Self> {
        let dir = data_dir.join("audit");
        mc_durable::create_dir(&dir).map_err(io::Error::other)?;
        let refused = Arc::<Mutex<Refusals>>::default();
        let stops = Arc::<AtomicBool>::default();
        let writer = Writer {
            changes: ChangeLog::open(&dir.join(CHANGES), is_new)?,
            changes_by_users: ChangeLog::open(&dir.join(CHANGES_BY_USERS), is_new)?,
            refusals: Lines::open(&dir.join(REFUSALS))?,
            refused: refused.clone(),
            lost: lost.clone(),
            warned: None,
            stops: stops.clone(),
        };
        let (changes, entries) = sync_channel(WAITING_MAX);
        let writer =
            thread::Builder::new().name("mc-audit".to_owned()).spawn(move || writer.run(&entries))?;
        let (changes, writer) = (Mutex::new(Some(changes)), Mutex::new(Some(writer)));
        Ok(Self { dir, changes, refused, lost, stops, writer })
    }

    /// Writes a change soon.
    pub(crate) fn changed(&self, entry: AuditedEntry) {
        let sent = self.changes.lock().as_ref().is_some_and(|changes| changes.try_send(entry).is_ok());
        if !sent {
            self.lost.increment(1);
        }
    }

    /// Writes a refusal soon.
    pub(crate) fn refused(&self, from: Option<IpAddr>, denied: &Denied) {
        let from = from.map(|from| from.to_canonical().to_string()).unwrap_or_default();
        if !self.refused.lock().add(Record::of_refusal(from, denied)) {
            self.lost.increment(1);
        }
    }

    /// Writes what waits, and ends. Blocks until that is done, or the disk has failed.
    pub(crate) fn close(&self) {
        self.stops.store(true, Ordering::Relaxed);
        self.changes.lock().take();
        if let Some(writer) = self.writer.lock().take() {
            // A panic of the writer was printed, and there is nothing left to do.
            let _ = writer.join();
        }
    }

    /// The folder of the logs.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl fmt::Debug for AuditLogs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditLogs").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// Returns the newest records in the folder of the logs, at most `limit`, the oldest first. Blocks.
///
/// # Errors
/// When the files can't be read.
pub(crate) fn newest(dir: &Path, kind: Kind, limit: usize) -> io::Result<Vec<Record>> {
    let files: &[&str] = match kind {
        Kind::Changes => &[CHANGES, CHANGES_BY_USERS],
        Kind::Refusals => &[REFUSALS],
    };
    let mut records = Vec::new();
    for file in files {
        records.extend(records_of(&dir.join(file), limit)?);
    }
    if kind == Kind::Changes {
        records.sort_by_key(|record| record.place);
    }
    Ok(records.split_off(records.len().saturating_sub(limit)))
}

/// Reads the newest lines of a file. Skips those that do not parse.
fn records_of(path: &Path, limit: usize) -> io::Result<Vec<Record>> {
    let lines = lines::newest(path, limit)?;
    Ok(lines.iter().filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

/// A file of changes.
struct ChangeLog {
    lines: Lines,
    /// Term and index of the last change in it.
    last: (u64, u64),
}

impl ChangeLog {
    fn open(path: &Path, is_new: bool) -> io::Result<Self> {
        let mut lines = Lines::open(path)?;
        if is_new {
            // A master that starts again before it belongs to a cluster keeps the older file.
            if !lines.is_empty() {
                lines.rotate()?;
            }
            return Ok(Self { lines, last: (0, 0) });
        }
        // The last line may be damaged.
        let last = records_of(path, 100)?.pop().and_then(|record| record.place);
        Ok(Self { lines, last: last.unwrap_or_default() })
    }

    /// Writes a change that is not in the file yet: a master that starts applies entries again.
    fn write(&mut self, entry: &AuditedEntry) -> io::Result<()> {
        if entry.place > self.last {
            self.lines.append(&line(&Record::of_change(entry)))?;
            self.last = entry.place;
        }
        Ok(())
    }
}

struct Writer {
    changes: ChangeLog,
    changes_by_users: ChangeLog,
    refusals: Lines,
    refused: Arc<Mutex<Refusals>>,
    lost: Counter,
    warned: Option<Instant>,
    stops: Arc<AtomicBool>,
}

impl Writer {
    /// Writes until the logs are closed.
    fn run(mut self, entries: &Receiver<AuditedEntry>) {
        let mut refusals_written = Instant::now();
        let mut ended = false;
        while !ended {
            match entries.recv_timeout(SPAN) {
                Ok(entry) => self.change(&entry),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => ended = true,
            }
            if ended || refusals_written.elapsed() >= SPAN {
                self.write_refusals();
                refusals_written = Instant::now();
            }
        }
    }

    /// Writes a change, and tries again until that is done: others wait meanwhile, and keep their order. A line after one that is
    /// missing would keep that from being written after a restart.
    fn change(&mut self, entry: &AuditedEntry) {
        let is_users = ["tenant/", "store/"].iter().any(|role| entry.call.who.starts_with(role));
        loop {
            let log = if is_users { &mut self.changes_by_users } else { &mut self.changes };
            match log.write(entry) {
                Ok(()) => return,
                Err(error) => self.warn(&error),
            }
            if self.stops.load(Ordering::Relaxed) {
                self.lost.increment(1);
                return;
            }
            thread::sleep(SPAN);
        }
    }

    fn write_refusals(&mut self) {
        let refused = self.refused.lock().take();
        for record in refused {
            if let Err(error) = self.refusals.append(&line(&record)) {
                self.lost.increment(1);
                self.warn(&error);
            }
        }
    }

    fn warn(&mut self, error: &io::Error) {
        if self.warned.is_none_or(|warned| warned.elapsed() >= WARN_EVERY) {
            self.warned = Some(Instant::now());
            tracing::warn!(
                "cannot write the audit log: {error}; mc_master_audit_lost_total counts lost records"
            );
        }
    }
}

fn line(record: &Record) -> String {
    serde_json::to_string(record).expect("a record of plain values always encodes")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use mc_index::{AuditedCall, AuditedResult};

    use super::*;

    fn entry(who: &str, index: u64) -> AuditedEntry {
        let call = AuditedCall { who: who.into(), call: "RemoveAll".into(), ..AuditedCall::default() };
        AuditedEntry { place: (1, index), call, result: AuditedResult { name: "OK", objects: None } }
    }

    fn open(dir: &Path) -> AuditLogs {
        AuditLogs::open(dir, false, Counter::noop()).unwrap()
    }

    fn indexes(dir: &Path) -> Vec<u64> {
        let records = newest(&dir.join("audit"), Kind::Changes, 100).unwrap();
        records.iter().filter_map(|record| Some(record.place?.1)).collect()
    }

    #[test]
    fn entries_that_are_applied_again_after_a_restart_have_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let logs = open(dir.path());
        (1..4).for_each(|index| logs.changed(entry("admin/a", index)));
        logs.close();
        let path = dir.path().join("audit").join(CHANGES);
        // The machine failed in the middle of a line.
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
        let logs = open(dir.path());
        (2..5).for_each(|index| logs.changed(entry("admin/a", index)));
        logs.close();
        assert_eq!(indexes(dir.path()), [1, 2, 3, 4]);
    }

    #[test]
    fn users_have_a_file_of_their_own_and_the_order_is_that_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let logs = open(dir.path());
        for (who, index) in [("tenant/a/rw/e", 1), ("admin/a", 2), ("store/kv", 3), ("", 4)] {
            logs.changed(entry(who, index));
        }
        logs.close();
        assert_eq!(indexes(dir.path()), [1, 2, 3, 4]);
        let lines = |file| lines::newest(&dir.path().join("audit").join(file), 9).unwrap().len();
        assert_eq!((lines(CHANGES), lines(CHANGES_BY_USERS)), (2, 2));
    }

    #[test]
    fn a_master_of_no_cluster_begins_empty_files() {
        let dir = tempfile::tempdir().unwrap();
        let logs = open(dir.path());
        logs.changed(entry("admin/a", 1_000));
        logs.close();
        let logs = AuditLogs::open(dir.path(), true, Counter::noop()).unwrap();
        logs.changed(entry("admin/a", 7));
        logs.close();
        let present = records_of(&dir.path().join("audit").join(CHANGES), 1).unwrap();
        assert_eq!(present[0].place, Some((1, 7)));
    }

    #[test]
    fn a_damaged_line_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let logs = open(dir.path());
        logs.changed(entry("admin/a", 1));
        logs.close();
        let path = dir.path().join("audit").join(CHANGES);
        let mut bytes = fs::read(&path).unwrap();
        bytes.extend_from_slice(b"\xff\xfe{\n");
        fs::write(&path, &bytes).unwrap();
        let logs = open(dir.path());
        logs.changed(entry("admin/a", 2));
        logs.close();
        assert_eq!(indexes(dir.path()), [1, 2]);
    }

    #[test]
    fn refusals_are_written_when_the_logs_are_closed() {
        let dir = tempfile::tempdir().unwrap();
        let logs = open(dir.path());
        for _ in 0..3 {
            logs.refused(Some([10, 0, 0, 7].into()), &Denied::Plain { call: "BatchGet".into() });
        }
        logs.close();
        let refusals = newest(&dir.path().join("audit"), Kind::Refusals, 9).unwrap();
        assert_eq!((refusals.len(), refusals[0].times, &*refusals[0].from), (1, Some(3), "10.0.0.7"));
    }
}
