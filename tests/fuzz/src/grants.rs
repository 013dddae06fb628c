//! Messages from clients to stores.

use mc_types::{Access, ClusterId, ClusterTime, Grant, GrantKey, GrantedRange, SegmentEpoch, StoreId};

const KEY: GrantKey = GrantKey([7; 32]);
const MAC_LEN: usize = 16;

/// A grant that a client presents, with its MAC made right.
pub(crate) fn grant(data: &[u8]) -> bool {
    let mac = blake3::keyed_hash(&KEY.0, data);
    let sealed = [data, &mac.as_bytes()[..MAC_LEN]].concat();
    let Ok((grant, _)) = Grant::open(&sealed, &KEY) else { return false };
    let again = Grant::open(&grant.seal(&KEY).bytes, &KEY).map(|(again, _)| again);
    assert_eq!(again.as_ref(), Ok(&grant), "what was opened seals to itself");
    true
}

/// Grants without their MAC.
pub(crate) fn grants() -> Vec<Vec<u8>> {
    let grant = |access, ranges| Grant {
        cluster: ClusterId(1),
        store: StoreId(2),
        epoch: SegmentEpoch(3),
        access,
        expires: ClusterTime(99),
        tenant: "team".to_owned(),
        holder: None,
        needs_proof: true,
        shares_memory: false,
        avoids_rdma: false,
        ranges: vec![GrantedRange { segment: 0, offset: 64, len: 4096, index: 7 }; ranges],
    };
    [grant(Access::Read, 5), grant(Access::Write, 1)]
        .iter()
        .flat_map(|grant| [grant.seal(&KEY), grant.seal_older(&KEY)])
        .map(|sealed| sealed.bytes[..sealed.bytes.len() - MAC_LEN].to_vec())
        .collect()
}

/// Receipts of the first of two replicas, and of both.
pub(crate) fn receipts() -> Vec<Vec<u8>> {
    let receipts = mc_master::fuzz::valid_receipts();
    vec![receipts[0].clone(), receipts.concat()]
}

/// One of each frame, after the number of its kind; requests with their grant and operations.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let request = |access: u8, kind: u8, ops: u16, op_len: usize| {
        let head =
            [&9u64.to_be_bytes()[..], &[access, kind], &ops.to_be_bytes(), &3u32.to_be_bytes()].concat();
        [&[2u8][..], &head, b"abc", &vec![0u8; op_len].repeat(ops.into())].concat()
    };
    vec![
        [&b"\0mcTX\0\x01\0\x01"[..], &[7; 32]].concat(),
        b"\x01mcTX\0\x01\0\x01\0\x01\0\0\0".to_vec(),
        b"\x01mcTX\0\x01\0\x01\0\0\x01\0\x02no".to_vec(),
        request(1, 0, 2, 20),
        request(2, 0, 1, 20),
        request(1, 2, 1, 34),
        request(1, 3, 2, 32),
        request(2, 4, 1, 32),
        request(2, 5, 2, 36),
        request(2, 6, 1, 36),
        // With a proof behind the operation.
        request(1, 0x80, 1, 36),
        b"\x03\x05\0\x02no".to_vec(),
        [&[4u8][..], &9u64.to_be_bytes()].concat(),
        [&[5u8][..], &[7; 34]].concat(),
        [&[6u8][..], &[7; 12]].concat(),
        [&[7u8, 0, 0, 0, 2][..], &[7; 16]].concat(),
    ]
}
