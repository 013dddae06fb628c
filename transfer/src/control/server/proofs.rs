use mc_types::{Grant, Nonce, Proof, ProofKey};

use super::check::{GrantsTaken, Refusal};
use crate::control::wire::{REQUEST_LEN, Request};

/// The proofs on one connection: each says that the sender of a request holds the key of its grant.
///
/// A recorded request can't be used again. On another connection its proof is wrong, because a store draws a nonce of 128 bits for
/// each. On the same connection its id is not higher than the one before. A proof covers the id, so nobody without the key can give the
/// request another one.
pub(crate) struct Proofs {
    pub(crate) nonce: Nonce,
    /// Id of the last request with a proof.
    last_id: u64,
    pub(crate) taken: GrantsTaken,
}

impl Proofs {
    /// Those of a new connection with this nonce.
    pub(crate) fn with(nonce: Nonce) -> Self {
        Self { nonce, last_id: 0, taken: GrantsTaken::All }
    }

    /// Checks the proof of a request, if its grant needs one. `key` is the grant's, and `ops` are the operations as they have travelled.
    pub(crate) fn check(
        &mut self,
        grant: &Grant,
        key: &ProofKey,
        header: &[u8; REQUEST_LEN],
        (request, ops, proof): (&Request, &[u8], Option<Proof>),
    ) -> Result<(), Refusal> {
        match (grant.needs_proof, self.taken) {
            (false, GrantsTaken::All) => return Ok(()),
            (false, GrantsTaken::WithProofs) => return Err(Refusal::PlainGrant),
            (true, _) => {}
        }
        let proof = proof.ok_or(Refusal::NoProof)?;
        if key.prove(self.nonce, header, ops) != proof {
            return Err(Refusal::WrongProof);
        }
        if request.id <= self.last_id {
            return Err(Refusal::Repeated { id: request.id, last: self.last_id });
        }
        self.last_id = request.id;
        Ok(())
    }
}
