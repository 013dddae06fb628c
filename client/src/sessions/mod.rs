//! Sessions: objects that are read or written range by range.

mod get;
mod put;
mod reader;
mod writer;

pub use get::{GetSession, ReadInto};
pub use put::{PutSession, RangeFrom, WriteFrom};
pub use reader::ObjectReader;
pub use writer::ObjectWriter;

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
