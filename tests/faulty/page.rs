//! The page that a test shares with the processes that it torments: 64-bit little-endian words in a file that each
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
/// Calls so far that changed a file or made one durable, of a process with a journal. Written by the process.
pub(super) const CALLS: usize = 7;
/// The process ends instead of making the call of this number or a later one, if it is not 0.
pub(super) const LAST_CALL: usize = 8;
/// While it is not 0, that last call is one that syncs.
pub(super) const LAST_IS_A_SYNC: usize = 11;
/// While it is not 0, a sync of a file says that it has done what it has not.
pub(super) const LIE_ON_FILES: usize = 9;
/// While it is not 0, a sync of a folder does.
pub(super) const LIE_ON_FOLDERS: usize = 10;
/// While it is not 0, a look-up of a name does not return.
pub(super) const LOOKUP_STUCK: usize = 12;
/// Of the word at `ROUTES + 2 * n` and the next: a connection to this IPv4 port goes to that one. A pair with 0 in
/// front ends the list.
pub(super) const ROUTES: usize = 16;
/// Pairs that fit.
pub(super) const MAX_ROUTES: usize = 64;
/// Syncs lie only where the path has these bytes in it, which end with a 0.
pub(super) const LIE_PATH: usize = 256;
/// Words that they have room in, the 0 included.
pub(super) const LIE_PATH_WORDS: usize = 8;

/// The journal: records of four words (kind, inode, value, bytes that follow) and those bytes.
pub(crate) mod record {
    /// A file got these bytes, at the value.
    pub(crate) const WRITE: u64 = 1;
    /// A file got the value as its length.
    pub(crate) const LEN: u64 = 2;
    /// A file was made.
    pub(crate) const CREATED: u64 = 3;
    /// Names in a folder, as getdents64 gives them, in as many records as it takes. The sync that follows covers them.
    pub(crate) const NAMES: u64 = 4;
    /// The sync of that number begins.
    pub(crate) const SYNCING: u64 = 5;
    /// It has ended well.
    pub(crate) const SYNCED: u64 = 6;
    /// A folder was made.
    pub(crate) const FOLDER: u64 = 7;
}
