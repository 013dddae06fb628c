use crc_fast::{CrcAlgorithm, Digest, crc64_nvme};

/// CRC-64/NVME of some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(pub u64);

impl Checksum {
    /// Computes the checksum of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(crc64_nvme(bytes))
    }

    /// Computes the checksum of these bytes followed by `next_len` others, without reading either again.
    #[must_use]
    pub fn followed_by(self, next: Self, next_len: u64) -> Self {
        Self(multiply(power_of_x8(next_len), self.0) ^ next.0)
    }
}

/// The polynomial of CRC-64/NVME without its highest term; as in the checksum, the highest bit is the lowest power.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

/// x^(2^k) modulo the polynomial, for each k below 67: a 64-bit number of bytes has up to 67 bits as a number of bits.
const SQUARES: [u64; 67] = {
    let mut squares = [1 << 62; 67];
    let mut k = 1;
    while k < squares.len() {
        squares[k] = multiply(squares[k - 1], squares[k - 1]);
        k += 1;
    }
    squares
};

/// Returns x^(8 * bytes), by which appending `bytes` zero bytes multiplies a checksum. Takes about 2 us. The matrix
/// squaring of crc-fast's own combination takes a hundred times as long, which matters with stripes of a few MiB.
fn power_of_x8(bytes: u64) -> u64 {
    let mut power = 1 << 63;
    for bit in (0..64).filter(|bit| bytes >> bit & 1 == 1) {
        power = multiply(SQUARES[bit + 3], power);
    }
    power
}

/// Multiplies two polynomials, modulo the polynomial.
const fn multiply(a: u64, mut b: u64) -> u64 {
    let mut product = 0;
    let mut bit = 64;
    while bit > 0 {
        bit -= 1;
        if a >> bit & 1 == 1 {
            product ^= b;
        }
        b = if b & 1 == 1 { b >> 1 ^ POLYNOMIAL } else { b >> 1 };
    }
    product
}

/// Bytes of which a transfer computes checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sums {
    /// All bytes.
    #[default]
    All,
    /// Written bytes only. The checksum of a read is zero.
    Writes,
    /// No bytes: every checksum is zero.
    None,
}

impl Sums {
    pub(crate) fn of_reads(self) -> RunningChecksum {
        RunningChecksum::when(self == Self::All)
    }

    pub(crate) fn of_writes(self) -> RunningChecksum {
        RunningChecksum::when(self != Self::None)
    }
}

/// A checksum that is computed piece by piece, while each piece is in the cache.
pub(crate) struct RunningChecksum(Option<Digest>);

impl RunningChecksum {
    /// Begins with no bytes; stays zero unless it is `computed`.
    fn when(computed: bool) -> Self {
        Self(computed.then(|| Digest::new(CrcAlgorithm::Crc64Nvme)))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        if let Some(digest) = &mut self.0 {
            digest.update(bytes);
        }
    }

    pub(crate) fn finish(&self) -> Checksum {
        Checksum(self.0.as_ref().map_or(0, Digest::finalize))
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
    fn combining_agrees_with_the_library_at_every_length() {
        for len in (0..64).map(|bit| 1u64 << bit).chain([0, 3, 3_274_752, u64::MAX >> 3]) {
            let (left, right) = (Checksum(0x0123_4567_89ab_cdef), Checksum(0xfedc_ba98_7654_3210));
            let theirs = crc_fast::checksum_combine(CrcAlgorithm::Crc64Nvme, left.0, right.0, len);
            assert_eq!(left.followed_by(right, len), Checksum(theirs), "{len}");
        }
    }

    #[test]
    fn pieces_and_stripes_give_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 31 % 251) as u8).collect();
        for cut in [0, 1, 63, 64, 65_536, 99_999, 100_000] {
            let (left, right) = bytes.split_at(cut);
            let mut running = Sums::All.of_reads();
            running.update(left);
            running.update(right);
            assert_eq!(running.finish(), Checksum::of(&bytes), "fed in two pieces at {cut}");
            let combined = Checksum::of(left).followed_by(Checksum::of(right), right.len() as u64);
            assert_eq!(combined, Checksum::of(&bytes), "combined at {cut}");
        }
    }
}
