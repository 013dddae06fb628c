//! Sessions: several transfers of one version of an object, with one call to the leader before them.

mod coverage;
mod finish;
mod get_session;
mod open_put;
mod pinned;
mod put_session;
mod range_write;
mod reader;
mod renewal;
mod seals;
mod start;
mod store_writes;
mod writer;

use std::time::Duration;

pub use get_session::{GetSession, ReadInto};
pub use put_session::{PutSession, RangeFrom, WriteFrom};
pub use reader::ObjectReader;
pub use writer::ObjectWriter;

/// Time for which the leases of get sessions are renewed. A session that is forgotten must not keep its object from
/// being evicted for longer.
const RENEWED_FOR: Duration = Duration::from_secs(5 * 60);

/// Bytes that a reader gets from a store at a time, and that a writer collects before it sends them: enough that the round trip
/// hardly counts.
const PIECE: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteRange, Client, GetRangesInto, PutOptions};

    fn is_send<T: Send>(_: &T) {}

    #[test]
    fn calls_can_be_spawned() {
        fn check_gets(client: &Client, session: &GetSession, reads: &mut [ReadInto<'_>]) {
            is_send(session);
            is_send(&client.get_session("k"));
            is_send(&client.batch_read_into(reads));
            is_send(&session.read(ByteRange { offset: 0, len: 1 }));
        }
        fn check_puts(client: &Client, session: PutSession, writes: &[WriteFrom<'_>]) {
            is_send(&client.put_session("k", 1, &PutOptions::default()));
            is_send(&client.batch_write_from(writes));
            is_send(&session.write(0, b"v"));
            is_send(&session.finish());
        }
        fn check_ranges(client: &Client, items: &mut [GetRangesInto<'_>]) {
            is_send(&client.get_range("k", ByteRange { offset: 0, len: 1 }));
            is_send(&client.batch_get_ranges_into(items));
        }
        let _ = (check_gets, check_puts, check_ranges);
    }
}
