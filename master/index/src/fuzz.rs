//! Reads an index from bytes, for tests/fuzz.

use crate::State;
pub use crate::snapshot::seal_chunks;

/// The index in a snapshot, with the checksums of its chunks made right.
///
/// # Panics
/// When an index that was read is not read again after it was written.
pub fn index(data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    seal_chunks(&mut bytes);
    let Ok(state) = State::read_snapshot(&mut &bytes[..]) else { return false };
    let mut again = Vec::new();
    let written = state.write_snapshot(&mut again);
    assert!(written.is_ok() && State::read_snapshot(&mut &again[..]).is_ok(), "what was written is read");
    true
}
