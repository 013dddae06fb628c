use crc_fast::{CrcAlgorithm, Digest, checksum_combine, crc64_nvme};

/// CRC-64/NVME of some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(pub u64);

impl Checksum {
    /// The checksum of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(crc64_nvme(bytes))
    }

    /// The checksum of these bytes followed by `next_len` others, without looking at either again.
    #[must_use]
    pub fn followed_by(self, next: Self, next_len: u64) -> Self {
        Self(checksum_combine(CrcAlgorithm::Crc64Nvme, self.0, next.0, next_len))
    }
}

/// A checksum that is fed piece by piece, while each piece is in the cache.
pub(crate) struct RunningChecksum(Digest);

impl RunningChecksum {
    pub(crate) fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc64Nvme))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(&self) -> Checksum {
        Checksum(self.0.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_algorithm_is_crc64_nvme() {
        assert_eq!(Checksum::of(b"123456789"), Checksum(0xae8b_1486_0a79_9888), "the published check value");
    }

    #[test]
    fn pieces_and_stripes_give_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 31 % 251) as u8).collect();
        for cut in [0, 1, 63, 64, 65_536, 99_999, 100_000] {
            let (left, right) = bytes.split_at(cut);
            let mut running = RunningChecksum::new();
            running.update(left);
            running.update(right);
            assert_eq!(running.finish(), Checksum::of(&bytes), "fed in two pieces at {cut}");
            let combined = Checksum::of(left).followed_by(Checksum::of(right), right.len() as u64);
            assert_eq!(combined, Checksum::of(&bytes), "combined at {cut}");
        }
    }
}
