//! What the Raft side needs of the index, until [`crate::state`] has it.

use std::io::{self, Read, Write};

use crate::state::{Command, Response, Settings};

/// Counts what was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    applied: u64,
    digest: u64,
}

/// Why bytes are not a state.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SnapshotError(#[from] io::Error);

impl State {
    pub fn new(_settings: Settings) -> Self {
        Self { applied: 0, digest: 0 }
    }

    pub fn apply(&mut self, index: u64, _term: u64, command: &Command) -> Response {
        self.applied += 1;
        self.digest = self.digest.wrapping_mul(31).wrapping_add(index ^ command.stamp.now.0);
        Response::Done
    }

    pub fn write_snapshot(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.applied.to_be_bytes())?;
        out.write_all(&self.digest.to_be_bytes())
    }

    pub fn read_snapshot(input: &mut impl Read) -> Result<Self, SnapshotError> {
        let (mut applied, mut digest) = ([0; 8], [0; 8]);
        input.read_exact(&mut applied)?;
        input.read_exact(&mut digest)?;
        Ok(Self { applied: u64::from_be_bytes(applied), digest: u64::from_be_bytes(digest) })
    }
}
