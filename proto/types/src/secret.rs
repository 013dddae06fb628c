use std::fmt;

/// Bytes that nobody else may guess: they are compared in constant time, because the time of an early exit would tell how many
/// bytes of a guess are right, and are never shown.
#[derive(Clone, Copy)]
pub(crate) struct Secret<const LEN: usize>(pub(crate) [u8; LEN]);

impl<const LEN: usize> PartialEq for Secret<LEN> {
    fn eq(&self, other: &Self) -> bool {
        constant_time_eq::constant_time_eq(&self.0, &other.0)
    }
}

impl<const LEN: usize> Eq for Secret<LEN> {}

impl<const LEN: usize> fmt::Debug for Secret<LEN> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}
