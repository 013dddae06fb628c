/// A transport, and whether a store offers it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransportReport {
    /// Its name.
    pub name: &'static str,
    /// Whether it is offered.
    pub offered: bool,
    /// How the store offers the transport, or the reason why it does not.
    pub how: String,
    /// Bytes that clients read by it.
    pub bytes_read: u64,
    /// Bytes that clients wrote by it.
    pub bytes_written: u64,
}
