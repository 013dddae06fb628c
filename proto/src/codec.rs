//! prost's codec with a limit on the number of fields: a message with too many is refused before it is decoded.
//!
//! An empty item has two bytes on the wire and takes up to 136 in memory. Without the limit, the largest request,
//! filled with empty items, would take 1.7 GB before its items could be counted.

use bytes::Buf;
use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

use mc_types::Code;

use crate::status_of;
use crate::v1::ErrorDetail;

/// Most fields of a message that is decoded.
///
/// Each item of a list is one field, a packed list of numbers is one field, and fields within items do not count. The
/// longest requests have a quarter of the limit: 4,096 items or entries among masters, and a few other fields. The
/// longest replies have an item for each of 4,096 keys and a grant for each store, or an item for each store. That
/// leaves room for 12,000 stores.
pub const MAX_FIELDS: usize = 16_384;

/// Codec that the generated code uses.
pub(crate) struct BoundedCodec<T, U>(ProstCodec<T, U>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(ProstCodec::default())
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        self.0.encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(self.0.decoder())
    }
}

pub(crate) struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // The buffer holds the whole message in one piece.
        if has_more_fields(message.chunk(), MAX_FIELDS) {
            return Err(too_many_fields(message.remaining()));
        }
        self.0.decode(message)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// Returns whether a message has more than `most` fields.
///
/// A malformed message is left to prost, which reports why it cannot be decoded. No uncounted field gets through: prost
/// reads the fields by the same rules, so it gets no further than this count.
fn has_more_fields(mut message: &[u8], most: usize) -> bool {
    let mut fields = 0;
    while !message.is_empty() {
        let Ok((tag, wire_type)) = decode_key(&mut message) else { return false };
        if skip_field(wire_type, tag, &mut message, DecodeContext::default()).is_err() {
            return false;
        }
        fields += 1;
        if fields > most {
            return true;
        }
    }
    false
}

fn too_many_fields(bytes: usize) -> Status {
    let message = format!(
        "a message of {bytes} bytes has more than {MAX_FIELDS} items and other fields, which is the limit: split the call"
    );
    status_of(&ErrorDetail { code: Code::InvalidParams as i32, message, ..Default::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{BatchPutStartRequest, Caller, MountStoreRequest, PutStartItem};

    /// Encodes `n` empty items, each of them a field.
    fn items(n: usize) -> Vec<u8> {
        [0x1a, 0x00].repeat(n)
    }

    #[track_caller]
    fn assert_fields(message: &[u8], fields: usize) {
        assert!(!has_more_fields(message, fields), "more than {fields}");
        assert!(has_more_fields(message, fields - 1), "fewer than {fields}");
    }

    #[test]
    fn as_many_fields_as_the_bound_pass_and_one_more_does_not() {
        let with = |items: usize| {
            let items = vec![PutStartItem::default(); items];
            BatchPutStartRequest {
                caller: Some(Caller::default()),
                tenant: "tenant".into(),
                items,
                ..Default::default()
            }
        };
        assert!(!has_more_fields(&with(MAX_FIELDS - 2).encode_to_vec(), MAX_FIELDS));
        assert!(has_more_fields(&with(MAX_FIELDS - 1).encode_to_vec(), MAX_FIELDS));
        assert!(!has_more_fields(&[], 0));
    }

    #[test]
    fn what_is_within_a_field_does_not_count() {
        let packed = MountStoreRequest { segment_bytes: vec![300; 100], ..Default::default() };
        assert_fields(&packed.encode_to_vec(), 1);
        assert_fields(&[0x38, 0x01].repeat(100), 100); // the same list, not packed
        let item = PutStartItem { size: 1, replicas: 2, avoid_stores: vec![7; 3], ..Default::default() };
        let nested = BatchPutStartRequest { items: vec![item; 2], ..Default::default() };
        assert_fields(&nested.encode_to_vec(), 2);
    }

    #[test]
    fn fields_of_every_kind_count() {
        let varint = [&[0x78_u8][..], &[0xff; 9], &[0x01]].concat();
        let fixed_64 = [&[0x79_u8][..], &[0xff; 8]].concat();
        let fixed_32 = [&[0x7d_u8][..], &[0xff; 4]].concat();
        let bytes = [&[0x7a_u8, 0x80, 0x01][..], &[0xff; 128]].concat();
        let all = [&varint[..], &fixed_64, &fixed_32, &bytes, &items(1)].concat();
        assert_fields(&all, 5);
        assert!(BatchPutStartRequest::decode(&all[..]).is_ok());
    }

    #[test]
    fn what_follows_a_group_counts_as_what_prost_makes_of_it() {
        let group = [0x7b, 0x08, 0x01, 0x7c];
        let message = [&group[..], &items(3)].concat();
        assert_eq!(BatchPutStartRequest::decode(&message[..]).unwrap().items.len(), 3);
        assert_fields(&message, 4);
    }

    #[test]
    fn what_cannot_be_decoded_is_left_to_prost_and_counted_until_there() {
        let endless = [&[0x1a_u8][..], &[0xff; 9], &[0x01]].concat();
        let malformed: [(&str, &[u8]); 14] = [
            ("a key that is cut off", &[0x80]),
            ("a key that does not end", &[0xff; 11]),
            ("a key that is too large", &[0xff, 0xff, 0xff, 0xff, 0x7f]),
            ("field 0", &[0x00, 0x00]),
            ("a number that is cut off", &[0x78, 0x80]),
            ("64 bits that are cut off", &[0x79, 0x00]),
            ("32 bits that are cut off", &[0x7d, 0x00]),
            ("a length past the end", &[0x1a, 0x02, 0x00]),
            ("the largest length", &endless),
            ("wire type 6", &[0x7e, 0x00]),
            ("wire type 7", &[0x7f, 0x00]),
            ("the end of no group", &[0x7c]),
            ("a group without an end", &[0x7b, 0x08, 0x01]),
            ("groups too deep", &[[0x7b_u8; 200], [0x7c; 200]].concat()),
        ];
        for (what, malformed) in malformed {
            let message = [&items(3)[..], malformed].concat();
            assert!(BatchPutStartRequest::decode(&message[..]).is_err(), "{what}");
            assert!(!has_more_fields(&message, 3), "{what}");
            assert!(has_more_fields(&message, 2), "{what}");
        }
    }
}
