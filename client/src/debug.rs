//! `Debug` of what callers hold, in one line: lengths in place of bytes, and nothing of the client's inside.

use std::fmt;

use crate::{
    Client, GetInto, GetSession, ObjectReader, ObjectWriter, PutFrom, PutSession, RangeFrom, RangeInto,
};

/// A key or a name, as text if it is some.
struct Name<'a>(&'a [u8]);

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("tenant", &self.core().tenant)
            .field("mode", &self.mode())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PutSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutSession")
            .field("id", &self.id())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for GetSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GetSession")
            .field("version", &self.version())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ObjectReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectReader")
            .field("session", self.session())
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ObjectWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectWriter")
            .field("session", self.session())
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for GetInto<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let room: usize = self.into.iter().map(|buffer| buffer.len()).sum();
        f.debug_struct("GetInto").field("key", &Name(self.key)).field("room", &room).finish()
    }
}

impl fmt::Debug for PutFrom<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len: usize = self.slices.iter().map(|slice| slice.len()).sum();
        let mut shown = f.debug_struct("PutFrom");
        shown.field("key", &Name(self.key)).field("len", &len);
        if !self.group.is_empty() {
            shown.field("group", &Name(self.group));
        }
        shown.finish()
    }
}

impl fmt::Debug for RangeInto<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.into.len();
        f.debug_struct("RangeInto").field("offset", &self.offset).field("len", &len).finish()
    }
}

impl fmt::Debug for RangeFrom<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.from.len();
        f.debug_struct("RangeFrom").field("offset", &self.offset).field("len", &len).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_by_their_number() {
        let value = [7; 100_000];
        let put = PutFrom { key: b"page/1\n", slices: &[&value, &value], group: b"g" };
        assert_eq!(format!("{put:?}"), r#"PutFrom { key: "page/1\n", len: 200000, group: "g" }"#);
        assert_eq!(
            format!("{:?}", RangeFrom { offset: 4, from: &value }),
            "RangeFrom { offset: 4, len: 100000 }"
        );
        let mut room = [0; 10];
        let get = GetInto { key: b"k", into: vec![&mut room] };
        assert_eq!(format!("{get:?}"), r#"GetInto { key: "k", room: 10 }"#);
    }
}
