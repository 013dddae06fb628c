//! Form of the messages: openraft's types as protobuf, and the envelope that names cluster and node.

pub(crate) mod convert;
pub(crate) mod envelope;
