use crate::secret::Secret;

/// Key of the proofs of one grant. Its holder and the store have it: the holder got it with the grant, and the store computes it from
/// the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProofKey(pub(crate) Secret<32>);

/// A random number that a store sends at the beginning of a connection. It makes each proof one for that connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(pub [u8; Self::LEN]);

/// A proof that the sender of a request holds the key of its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof(Secret<16>);

impl ProofKey {
    /// Length in bytes.
    pub const LEN: usize = 32;

    /// Reads a key; `None` if it has another length.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Secret).map(Self)
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        self.0.0
    }

    /// Computes the proof of a request. The parts of the request must not be divisible in another way: the header has a fixed length,
    /// and says how long the operations are.
    #[must_use]
    pub fn prove(&self, nonce: Nonce, header: &[u8; 16], ops: &[u8]) -> Proof {
        let mac = blake3::Hasher::new_keyed(&self.0.0).update(&nonce.0).update(header).update(ops).finalize();
        let mut proof = [0; Proof::LEN];
        proof.copy_from_slice(&mac.as_bytes()[..Proof::LEN]);
        Proof(Secret(proof))
    }
}

impl Nonce {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// Draws one.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }
}

impl Proof {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// A proof that travelled as these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(Secret(bytes))
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        self.0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_for_one_request_on_one_connection_under_one_grant() {
        let proof = |key: u8, nonce: u8, header: [u8; 16], ops: &[u8]| {
            ProofKey(Secret([key; 32])).prove(Nonce([nonce; 16]), &header, ops)
        };
        let (header, ops) = ([5; 16], [6; 40]);
        let this = proof(1, 2, header, &ops);
        assert_eq!(this, proof(1, 2, header, &ops));
        for bit in 0..8 {
            for at in 0..16 {
                let mut other = header;
                other[at] ^= 1 << bit;
                assert_ne!(this, proof(1, 2, other, &ops));
            }
            for at in 0..ops.len() {
                let mut other = ops;
                other[at] ^= 1 << bit;
                assert_ne!(this, proof(1, 2, header, &other));
            }
        }
        assert_ne!(this, proof(9, 2, header, &ops));
        assert_ne!(this, proof(1, 9, header, &ops));
        assert_ne!(this, proof(1, 2, header, &ops[..20]));
    }

    /// Clients and stores of different builds exchange proofs.
    #[test]
    fn the_computation_is_stable() {
        let proof = ProofKey(Secret([1; 32])).prove(Nonce([2; 16]), &[3; 16], &[4; 20]).to_bytes();
        let hex: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "a141380246c42cd123c4b6f3ece32236");
    }

    #[test]
    fn a_key_is_not_shown() {
        assert_eq!(format!("{:?}", ProofKey(Secret([7; 32]))), "ProofKey(..)");
        assert_eq!(ProofKey::from_bytes(&[0; 31]), None);
    }
}
