use mc_types::{ClusterTime, Grant, GrantError, GrantKey, ProofKey, ReceiptKey};

/// Keys of the grants that a server takes and of the receipts that it gives.
///
/// While the key changes, the masters that seal grants and check receipts have one or the other. So the server takes grants under the
/// next key before any master has it, and gives receipts under it once a master has; and it takes grants under the earlier one until
/// the last of them has expired.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    newest: GrantKey,
    earlier: Option<EarlierKey>,
    receipts: ReceiptKey,
}

#[derive(Clone, Copy)]
struct EarlierKey {
    key: GrantKey,
    /// Cluster time of its end; `None` until a master has the newest key.
    ends: Option<ClusterTime>,
}

impl Keys {
    pub(crate) fn new(key: GrantKey) -> Self {
        Self { newest: key, earlier: None, receipts: key.receipts() }
    }

    /// Takes grants under `key` from now on, too.
    pub(crate) fn with_next(&self, key: GrantKey) -> Self {
        let earlier = EarlierKey { key: self.newest, ends: None };
        Self { newest: key, earlier: Some(earlier), receipts: self.receipts }
    }

    /// Ends the earlier key in time: a master had the newest one at the cluster time `at`.
    pub(crate) fn confirmed(&self, at: ClusterTime) -> Self {
        let ends = Some(at.after(GrantKey::OVERLAP));
        let earlier = self.earlier.map(|earlier| EarlierKey { ends: earlier.ends.or(ends), ..earlier });
        Self { newest: self.newest, earlier, receipts: self.newest.receipts() }
    }

    pub(crate) fn receipts(&self) -> ReceiptKey {
        self.receipts
    }

    /// Opens a grant at the cluster time `now`; `None` if the store does not know it.
    pub(crate) fn open(
        &self,
        sealed: &[u8],
        now: impl FnOnce() -> Option<ClusterTime>,
    ) -> Result<(Grant, ProofKey), GrantError> {
        let opened = Grant::open(sealed, &self.newest);
        match self.earlier {
            Some(EarlierKey { key, ends }) if opened == Err(GrantError::Mac) => {
                let is_over = ends.is_some_and(|ends| now().is_none_or(|now| now >= ends));
                if is_over { opened } else { Grant::open(sealed, &key) }
            }
            _ => opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use mc_types::{Access, ClusterId, SegmentEpoch, StoreId};

    use super::*;

    const FIRST: GrantKey = GrantKey([1; 32]);
    const SECOND: GrantKey = GrantKey([2; 32]);

    fn opens(keys: &Keys, under: &GrantKey, now: u64) -> bool {
        let grant = Grant {
            cluster: ClusterId(1),
            store: StoreId(1),
            epoch: SegmentEpoch(1),
            access: Access::Read,
            expires: ClusterTime(1),
            tenant: String::new(),
            holder: None,
            needs_proof: false,
            shares_memory: false,
            avoids_rdma: false,
            ranges: Vec::new(),
        };
        keys.open(&grant.seal(under).bytes, || Some(ClusterTime(now))).is_ok()
    }

    fn gives_receipts_under(keys: &Keys, key: &GrantKey) -> bool {
        let range = mc_types::GrantedRange { segment: 0, offset: 0, len: 1, index: 1 };
        let of = |key: ReceiptKey| key.receipt(ClusterId(1), StoreId(1), SegmentEpoch(1), &range);
        of(keys.receipts()) == of(key.receipts())
    }

    #[test]
    fn both_keys_open_grants_until_the_earlier_one_ends() {
        let mut keys = Keys::new(FIRST);
        assert!(opens(&keys, &FIRST, 0) && !opens(&keys, &SECOND, 0));
        keys = keys.with_next(SECOND);
        assert!(opens(&keys, &FIRST, u64::MAX) && opens(&keys, &SECOND, 0));
        assert!(gives_receipts_under(&keys, &FIRST), "no master has the second one yet");
        keys = keys.confirmed(ClusterTime(1_000));
        assert!(gives_receipts_under(&keys, &SECOND));
        assert!(opens(&keys, &FIRST, 120_999) && !opens(&keys, &FIRST, 121_000));
        assert!(opens(&keys, &SECOND, 121_000));
        keys = keys.confirmed(ClusterTime(2_000));
        assert!(!opens(&keys, &FIRST, 121_000), "a further mount does not prolong it");
    }
}
