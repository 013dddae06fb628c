//! Reads an index from bytes, for tests/fuzz.

use crate::State;
pub use crate::snapshot::seal_chunks;

/// Reads the bytes as a snapshot, after correcting its chunks' checksums, and returns whether that succeeds.
///
/// # Panics
/// When the index that was read cannot be written and read again.
pub fn index(data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    seal_chunks(&mut bytes);
    let Ok(state) = State::read_snapshot(&mut &bytes[..]) else { return false };
    let mut again = Vec::new();
    let written = state.write_snapshot(&mut again);
    assert!(written.is_ok() && State::read_snapshot(&mut &again[..]).is_ok(), "what was written is read");
    true
}
