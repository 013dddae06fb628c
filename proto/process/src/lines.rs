//! Writes log lines to standard error without blocking, even if it is a pipe whose reader has stopped.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Most bytes of lines that wait to be written, and as many again may be under way.
const WAITING_BYTES: usize = 1 << 20;
/// Time that a write may take while an error or a panic waits for it.
const ABORT_WITHIN: Duration = Duration::from_secs(1);

/// A writer of whole lines that never waits for the reader at the other end: a thread of its own writes, and a line for
/// which there is no room is dropped and counted. Clones share the queue.
///
/// Errors and panics are the exception, because the process may abort right after them, and its threads end with it: they
/// wait for the thread, but not for a reader that takes nothing ([`Self::flush_for_abort`]).
///
/// The thread holds no lock while it writes, not even the standard library's for standard error, so nothing that takes one
/// waits for the pipe.
#[derive(Clone)]
pub(crate) struct Lines(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<u8>,
    /// Start of the write of the lines that have left the queue, until it ends.
    writing: Option<Instant>,
}

impl Lines {
    /// Starts a thread that writes to `out`.
    pub(crate) fn start(out: impl AsFd + Send + 'static) -> io::Result<Self> {
        let shared = Shared { queue: Mutex::default(), changed: Condvar::new(), dropped: AtomicU64::new(0) };
        let lines = Self(Arc::new(shared));
        let writer = lines.clone();
        thread::Builder::new().name("mc-log-lines".into()).spawn(move || writer.write_on(out))?;
        Ok(lines)
    }

    /// Number of lines that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, or the time is over.
    pub(crate) fn flush_within(&self, time: Duration) {
        self.flush_until(Instant::now() + time);
    }

    /// Waits until everything is written, or until the write under way has taken [`ABORT_WITHIN`]: where the reader has
    /// taken nothing for so long, it does not wait at all.
    pub(crate) fn flush_for_abort(&self) {
        let begun = self.0.queue.lock().writing;
        self.flush_until(begun.unwrap_or_else(Instant::now) + ABORT_WITHIN);
    }

    fn flush_until(&self, end: Instant) {
        let mut queue = self.0.queue.lock();
        while !queue.waiting.is_empty() || queue.writing.is_some() {
            if self.0.changed.wait_until(&mut queue, end).timed_out() {
                return;
            }
        }
    }

    /// Writes a line.
    pub(crate) fn say(&self, line: impl fmt::Display) {
        self.push(format!("{line}\n").as_bytes());
    }

    fn push(&self, line: &[u8]) {
        let mut queue = self.0.queue.lock();
        if queue.waiting.len() + line.len() > WAITING_BYTES {
            drop(queue);
            self.drop_lines(line);
            return;
        }
        queue.waiting.extend_from_slice(line);
        self.0.changed.notify_all();
    }

    fn drop_lines(&self, lines: &[u8]) {
        let count = lines.iter().filter(|byte| **byte == b'\n').count();
        self.0.dropped.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn write_on(&self, out: impl AsFd) {
        let mut batch = Vec::new();
        loop {
            let mut queue = self.0.queue.lock();
            queue.writing = None;
            self.0.changed.notify_all();
            while queue.waiting.is_empty() {
                self.0.changed.wait(&mut queue);
            }
            queue.writing = Some(Instant::now());
            batch.clear();
            std::mem::swap(&mut batch, &mut queue.waiting);
            drop(queue);
            // The reader is gone, or the disk is full: there is no other place to say so.
            if let Err(left) = written(&out, &batch) {
                self.drop_lines(left);
            }
        }
    }
}

/// Writes all of `lines`, or returns the rest that `out` does not take. Another process can have made a pipe that it shares
/// with this one non-blocking; a full one is waited for all the same.
fn written<'a>(out: &impl AsFd, mut lines: &'a [u8]) -> Result<(), &'a [u8]> {
    while !lines.is_empty() {
        match rustix::io::write(out, lines) {
            Ok(0) => return Err(lines),
            Ok(len) => lines = &lines[len..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                // A failure shows in the next write.
                let _ = poll(&mut [PollFd::new(out, PollFlags::OUT)], None);
            }
            Err(_) => return Err(lines),
        }
    }
    Ok(())
}

/// Writes the lines of one event.
pub(crate) struct EventLines {
    lines: Lines,
    /// The process may abort right after the event.
    waits: bool,
}

/// Each write is whole lines.
impl Write for EventLines {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.lines.push(lines);
        if self.waits {
            self.lines.flush_for_abort();
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = EventLines;

    fn make_writer(&'a self) -> EventLines {
        EventLines { lines: self.clone(), waits: false }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> EventLines {
        EventLines { lines: self.clone(), waits: *event.level() == Level::ERROR }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn line(n: usize) -> String {
        format!("{n:>1023}\n")
    }

    #[test]
    fn a_pipe_that_nobody_reads_holds_nothing_up_and_lines_come_whole_when_it_is_read_again() {
        let (mut reader, writer) = io::pipe().unwrap();
        let lines = Lines::start(writer).unwrap();
        let pushed = 8 * WAITING_BYTES / 1024;
        for n in 0..pushed {
            lines.push(line(n).as_bytes());
        }
        let dropped = usize::try_from(lines.dropped()).unwrap();
        assert!(dropped > 0, "8 MiB fitted");
        lines.flush_within(Duration::from_millis(1));

        let mut text = vec![0; (pushed - dropped) * 1024];
        reader.read_exact(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let numbers: Vec<usize> = text.lines().map(|line| line.trim().parse().unwrap()).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "in order, each whole");
        lines.flush_within(Duration::from_secs(60));
        lines.push(b"again\n");
        let mut again = [0; 6];
        reader.read_exact(&mut again).unwrap();
        assert_eq!(&again, b"again\n");
        assert_eq!(usize::try_from(lines.dropped()).unwrap(), dropped);
    }

    #[test]
    fn a_flush_returns_once_everything_is_written() {
        let (mut reader, writer) = io::pipe().unwrap();
        let lines = Lines::start(writer).unwrap();
        for n in 0..20 {
            lines.push(line(n).as_bytes());
        }
        lines.flush_within(Duration::from_secs(60));
        // Nothing is left to the thread: what the pipe has now is all there is.
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        let mut text = vec![0; 20 * 1024];
        reader.read_exact(&mut text).unwrap();
        assert!(text.ends_with(line(19).as_bytes()));
    }

    #[test]
    fn a_full_pipe_that_does_not_block_is_waited_for() {
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let lines = Lines::start(writer).unwrap();
        let all: String = (0..1_000).map(line).collect();
        lines.push(all.as_bytes());
        let mut text = vec![0; all.len()];
        reader.read_exact(&mut text).unwrap();
        assert!(text == all.as_bytes(), "whole and in order");
        lines.flush_within(Duration::from_secs(60));
        assert_eq!(lines.dropped(), 0);
    }

    #[test]
    fn lines_that_were_written_before_a_failure_are_not_counted() {
        let (mut reader, writer) = io::pipe().unwrap();
        let lines = Lines::start(writer).unwrap();
        let all: String = (0..1_000).map(line).collect();
        lines.push(all.as_bytes());
        reader.read_exact(&mut [0; 1024]).unwrap();
        drop(reader);
        lines.flush_within(Duration::from_secs(60));
        assert!((1..1_000).contains(&lines.dropped()), "{} dropped", lines.dropped());
    }

    #[test]
    fn errors_wait_once_for_a_reader_that_takes_nothing() {
        let (_reader, writer) = io::pipe().unwrap();
        let lines = Lines::start(writer).unwrap();
        lines.push(&vec![b'\n'; WAITING_BYTES]);
        lines.flush_for_abort();
        let begun = lines.0.queue.lock().writing.expect("the pipe is full");
        // A second for each would be hours.
        for _ in 0..10_000 {
            lines.flush_for_abort();
        }
        assert_eq!(lines.0.queue.lock().writing, Some(begun), "the same write");
    }

    #[test]
    fn lines_for_a_reader_that_is_gone_are_counted() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let lines = Lines::start(writer).unwrap();
        lines.push(b"one\ntwo\n");
        lines.flush_within(Duration::from_secs(60));
        assert_eq!(lines.dropped(), 2);
    }
}
