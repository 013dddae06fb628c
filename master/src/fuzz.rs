//! Decoders that nobody outside calls, for tests/fuzz.

use mc_proto::v1;

use crate::log::fuzz_piece;
use crate::raft::fuzz_append;

/// An append as another master sends it.
pub fn append(request: &v1::AppendRequest) {
    fuzz_append(request);
}

/// A value of the log's database under the key that it names, with its checksum made right.
pub fn piece(data: &[u8]) {
    fuzz_piece(data);
}
