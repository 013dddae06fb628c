//! Reads that clients of this host did past the store.

use mc_types::Grant;

use crate::control::server::{Counters, Exchange};
use crate::control::wire::Op;

impl Exchange<'_> {
    /// Says whether bytes that the client read past this connection, before it asked, are good.
    pub(super) fn check(&mut self, grant: &Grant, op: Op) {
        let good = self.served.locate(grant, op).and_then(|(lent, range, _)| {
            let start = range.offset + op.offset;
            Ok(lent.fence.check_read(start..start + op.len, range.index, grant.expires)?)
        });
        if good.is_ok() {
            Counters::add(&self.served.counters.checks, 1);
            Counters::add(&self.served.counters.shm_reads, 1);
            Counters::add(&self.served.counters.shm_bytes_read, op.len);
        }
        self.verdict(good);
    }
}
