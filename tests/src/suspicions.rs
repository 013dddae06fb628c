//! When the masters suspected which store, by their logs.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use mc_types::StoreId;

/// Time for which a master that has logged a change of the stores logs no further one.
const BETWEEN_LINES: Duration = Duration::from_secs(1);
/// Longest delay of the line otherwise: a master looks every 100 ms, and may be late on a busy machine.
const LOGGED_LATE: Duration = Duration::from_millis(400);
/// The processes' clock may be set a little meanwhile.
const CLOCK: Duration = Duration::from_millis(20);
/// A line that is this far outside of the run is of a master whose clock was moved.
const MOVED: Duration = Duration::from_secs(1_800);

/// A line of a master's log that matters here.
#[derive(Debug)]
struct Line<'a> {
    master: usize,
    /// Time since the beginning of the run, within it; `None` where the master's clock was moved.
    at: Option<Duration>,
    says: Says<'a>,
}

#[derive(Debug)]
enum Says<'a> {
    /// A leader of this term is known.
    Leader(u64),
    /// The suspect stores, and those that were suspect for a moment since the line before.
    Suspects(&'a str, &'a str),
}

/// A suspicion whose end has not been logged yet.
#[derive(Debug)]
struct Open {
    master: usize,
    /// Term that the master led.
    term: u64,
    store: StoreId,
    since: u64,
}

/// Returns the spans of a run's time, in nanoseconds, in which a leader may have answered that a store's objects are not
/// there, by the logs of all masters.
///
/// A suspicion ends with the line that no longer has the store, or when a master has heard of a leader of a newer term: the
/// old leader answers nothing more by then. It lasts from the beginning until `settled` where a master's clock was moved.
pub(crate) fn suspicions(logs: &[String], began: SystemTime, settled: u64) -> Vec<(StoreId, Range<u64>)> {
    let lines = logs
        .iter()
        .enumerate()
        .flat_map(|(master, log)| log.lines().filter_map(move |line| read(master, line, began, settled)));
    let mut lines: Vec<Line<'_>> = lines.collect();
    // A stable sort: lines of one master stay in their order where times are unknown.
    lines.sort_by_key(|line| line.at.unwrap_or_default());
    let mut spans = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    let mut terms = vec![0; logs.len()];
    let mut logged: Vec<Option<Duration>> = vec![None; logs.len()];
    for Line { master, at, says } in lines {
        let end = at.map_or(settled, |at| nanos(at + CLOCK).min(settled));
        let mut close = |open: &mut Vec<Open>, is_over: &dyn Fn(&Open) -> bool| {
            let over = open.extract_if(.., |it| is_over(it));
            spans.extend(over.map(|it| (it.store, it.since..end)));
        };
        match says {
            Says::Leader(term) => {
                terms[master] = term;
                close(&mut open, &|it| it.term < term);
            }
            Says::Suspects(suspects, back) => {
                let since = at.map_or(0, |at| nanos(earliest(at, logged[master]).saturating_sub(CLOCK)));
                logged[master] = at;
                // One that is back was suspect between the two lines, and no longer is.
                let known: Vec<_> = open.iter().filter(|it| it.master == master).map(|it| it.store).collect();
                let new = ids(suspects).chain(ids(back)).filter(|store| !known.contains(store));
                open.extend(new.map(|store| Open { master, term: terms[master], store, since }));
                let suspects: Vec<_> = ids(suspects).collect();
                close(&mut open, &|it| it.master == master && !suspects.contains(&it.store));
            }
        }
    }
    spans.extend(open.into_iter().map(|open| (open.store, open.since..settled)));
    spans
}

/// Returns the earliest time of a change that a line of the time `at` tells of, given the master's line before.
fn earliest(at: Duration, before: Option<Duration>) -> Duration {
    let at_once = at.saturating_sub(LOGGED_LATE);
    match before {
        Some(before) if at.saturating_sub(before) <= BETWEEN_LINES + LOGGED_LATE => before,
        _ => at_once,
    }
}

fn read(master: usize, line: &str, began: SystemTime, settled: u64) -> Option<Line<'_>> {
    let (before, says) = if let Some((before, suspects)) = line.split_once("stores changed suspects=[") {
        let back = suspects.split_once("back=[").map_or("", |(_, back)| back);
        (before, Says::Suspects(list(suspects), list(back)))
    } else {
        let (before, term) = line.split_once(" leader term=")?;
        (before, Says::Leader(term.split_whitespace().next()?.parse().ok()?))
    };
    let at = before.split_whitespace().next().and_then(wall_clock);
    let at = at.and_then(|at| match at.duration_since(began) {
        Ok(since) => (since < Duration::from_nanos(settled) + MOVED).then_some(since),
        Err(before) => (before.duration() < MOVED).then_some(Duration::ZERO),
    });
    Some(Line { master, at: at.map(|at| at.min(Duration::from_nanos(settled))), says })
}

/// Returns the ids of a list that ends at the first bracket.
fn list(rest: &str) -> &str {
    rest.split(']').next().unwrap_or_default()
}

fn ids(list: &str) -> impl Iterator<Item = StoreId> {
    list.split(',').filter_map(|id| u64::from_str_radix(id, 16).ok()).map(StoreId)
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Parses the time of a log line, such as 2026-11-23T07:05:23.123456Z.
fn wall_clock(text: &str) -> Option<SystemTime> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(|field| field.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut time = time.split(':').map(|field| field.parse::<u64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let mut days = (1970..year).map(|year| 365 + u64::from(is_leap(year))).sum::<u64>();
    days += before.get(usize::try_from(month.checked_sub(1)?).ok()?)? + day.checked_sub(1)?;
    days += u64::from(month > 2 && is_leap(year));
    let seconds = Duration::from_secs(((days * 24 + hour) * 60 + minute) * 60 + second);
    let fraction = Duration::from_secs_f64(format!("0.{fraction}").parse().ok()?);
    Some(SystemTime::UNIX_EPOCH + seconds + fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    #[test]
    fn a_logs_time_is_read() {
        let secs = |text| {
            wall_clock(text).map(|at| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64())
        };
        assert_eq!(secs("1970-01-02T00:00:01.5Z"), Some(86_401.5));
        assert_eq!(secs("2024-02-29T12:00:00Z"), Some(1_709_208_000.0));
        assert_eq!(secs("2026-11-23T07:05:23.250000Z"), Some(1_795_417_523.25));
        assert_eq!((secs("error:"), secs("2026-13-01T00:00:00Z")), (None, None));
    }

    /// The spans of one store, by the logs of masters, in milliseconds.
    fn of(store: u64, logs: &[&[&str]], settled: u64) -> Vec<[u64; 2]> {
        let began = wall_clock("2026-11-23T07:00:00Z").unwrap();
        let logs: Vec<String> = logs.iter().map(|lines| lines.join("\n")).collect();
        let spans = suspicions(&logs, began, settled).into_iter().filter(|(it, _)| *it == StoreId(store));
        let mut spans: Vec<_> = spans.map(|(_, span)| [span.start / MS, span.end / MS]).collect();
        spans.sort_unstable();
        spans
    }

    #[test]
    fn a_store_is_suspect_from_just_before_its_line_to_the_line_without_it() {
        let log = [
            "2026-11-23T07:00:00.500000Z  INFO leader term=2 leader=1 address=a",
            "2026-11-23T07:00:10.000000Z  INFO stores changed suspects=[000000000000000a,000000000000000b] more=0 back=[]",
            "2026-11-23T07:00:12.000000Z  INFO stores changed suspects=[000000000000000b] more=0 back=[000000000000000a]",
            // Within a second of the line before, it may have been so since then.
            "2026-11-23T07:00:13.000000Z  INFO stores changed suspects=[000000000000000c] more=0 back=[000000000000000b]",
        ];
        assert_eq!(of(0xa, &[&log], 60 * S), [[9_580, 12_020]]);
        assert_eq!(of(0xb, &[&log], 60 * S), [[9_580, 13_020]]);
        assert_eq!(of(0xc, &[&log], 60 * S), [[11_980, 60_000]]);
        assert_eq!(of(0xd, &[&log], 60 * S), [[0; 2]; 0]);
        let moment =
            ["2026-11-23T07:00:50.000000Z  INFO stores changed suspects=[] more=0 back=[000000000000000d]"];
        assert_eq!(
            of(0xd, &[&moment], 60 * S),
            [[49_580, 50_020]],
            "a store that was suspect between two looks"
        );
    }

    #[test]
    fn a_suspicion_ends_where_another_leader_is_known() {
        let old = [
            "2026-11-23T07:00:00.500000Z  INFO leader term=2 leader=1 address=a",
            "2026-11-23T07:00:10.000000Z  INFO stores changed suspects=[000000000000000a] more=0 back=[]",
        ];
        let follower = ["2026-11-23T07:00:11.000000Z  INFO leader term=2 leader=1 address=a"];
        assert_eq!(of(0xa, &[&old, &follower], 60 * S), [[9_580, 60_000]]);
        let new = ["2026-11-23T07:00:20.000000Z  INFO leader term=3 leader=2 address=b"];
        assert_eq!(of(0xa, &[&old, &new], 60 * S), [[9_580, 20_020]]);
    }

    #[test]
    fn lines_of_before_and_after_the_run_are_no_lines_of_a_clock_that_was_moved() {
        let outside = [
            "2026-11-23T06:59:50.000000Z  INFO stores changed suspects=[000000000000000a] more=0 back=[]",
            "2026-11-23T06:59:52.000000Z  INFO stores changed suspects=[] more=0 back=[]",
            "2026-11-23T07:01:10.000000Z  INFO stores changed suspects=[000000000000000b] more=0 back=[]",
        ];
        assert_eq!(of(0xa, &[&outside], 60 * S), [[0, 20]]);
        assert_eq!(of(0xb, &[&outside], 60 * S), [[59_580, 60_000]]);
        let moved = [
            "2026-11-23T08:00:10.000000Z  INFO stores changed suspects=[000000000000000a] more=0 back=[]",
            "2026-11-23T08:00:12.000000Z  INFO stores changed suspects=[] more=0 back=[]",
        ];
        assert_eq!(
            of(0xa, &[&moved], 60 * S),
            [[0, 60_000]],
            "no moment of the run is known to be free of it"
        );
    }
}
