//! What a test and the processes that it torments agree on: a page of 64-bit little-endian words in a file that each
//! process maps. A test writes words, the processes obey at their next call. Compiled into both sides.

/// Bytes of the file.
pub(super) const BYTES: usize = 4096;
/// Milliseconds that each sync of a file takes longer.
pub(super) const SYNC_DELAY_MS: usize = 0;
/// While it is not 0, a sync of a file does not return.
pub(super) const SYNC_STUCK: usize = 1;
/// A sync of a file fails with this `errno`, if it is not 0.
pub(super) const SYNC_ERRNO: usize = 2;
/// A write to a file fails with this `errno`, if it is not 0.
pub(super) const WRITE_ERRNO: usize = 3;
/// Seconds that are added to the wall clock, as an `i64`.
pub(super) const WALL_OFFSET_S: usize = 4;
/// Millionths by which the monotonic clock is faster, as an `i64`.
pub(super) const CLOCK_RATE_PPM: usize = 5;
/// How often one of these struck, the rate of the monotonic clock aside. Written by the processes.
pub(super) const STRUCK: usize = 6;
/// Of the word at `ROUTES + 2 * n` and the next: a connection to this IPv4 port goes to that one. A pair with 0 in
/// front ends the list.
pub(super) const ROUTES: usize = 16;
/// Pairs that fit.
pub(super) const MAX_ROUTES: usize = 64;
