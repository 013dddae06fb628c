use mc_types::Access;
use proptest::prelude::*;

use super::request::total_len;
use super::*;
use crate::transport::Seal;

/// The encoding must not change between builds: these bytes are versions 1 to 8.
#[test]
fn the_encoding_is_stable() {
    let hello =
        Hello { versions: (1, 2), cluster: ClusterId(0x0102), store: StoreId(3), epoch: SegmentEpoch(4) };
    let mut golden = b"mcTX\x00\x01\x00\x02".to_vec();
    golden.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    golden.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4]);
    assert_eq!(hello.encode().as_slice(), golden);

    assert_eq!(HelloReply::encode(1, Ok(())), b"mcTX\x00\x01\x00\x08\x00\x01\x00\x00\x00");
    assert_eq!(
        HelloReply::encode(0, Err((Status::Identity, "no"))),
        b"mcTX\x00\x01\x00\x08\x00\x00\x01\x00\x02no"
    );

    let read = RequestKind::Tcp(TcpRequest::Read);
    let read = Request { id: 9, kind: read, ops: 1, grant_len: 0x0203, has_proof: false };
    let mut out = read.encode().to_vec();
    Op { range: 5, offset: 6, len: 0x0700 }.encode(&mut out);
    assert_eq!(out[..REQUEST_LEN], [0, 0, 0, 0, 0, 0, 0, 9, 1, 0, 0, 1, 0, 0, 2, 3]);
    assert_eq!(out[REQUEST_LEN..], [0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 7, 0]);

    for (kind, golden) in [
        (RequestKind::Tcp(TcpRequest::Read), [1, 0]),
        (RequestKind::Shm(ShmRequest::Check), [1, 1]),
        (RequestKind::Rdma(RdmaRequest::Pair(Access::Read)), [1, 2]),
        (RequestKind::Rdma(RdmaRequest::Read), [1, 3]),
        (RequestKind::Tcp(TcpRequest::Write(Seal::No)), [2, 0]),
        (RequestKind::Tcp(TcpRequest::Write(Seal::Yes)), [2, 1]),
        (RequestKind::Rdma(RdmaRequest::Pair(Access::Write)), [2, 2]),
        (RequestKind::Rdma(RdmaRequest::Write(Seal::No)), [2, 3]),
        (RequestKind::Rdma(RdmaRequest::Write(Seal::Yes)), [2, 4]),
        (RequestKind::Rdma(RdmaRequest::Probe(Access::Read)), [1, 7]),
        (RequestKind::Rdma(RdmaRequest::Probe(Access::Write)), [2, 7]),
        (RequestKind::Shm(ShmRequest::Write(Seal::No)), [2, 5]),
        (RequestKind::Shm(ShmRequest::Write(Seal::Yes)), [2, 6]),
        (RequestKind::Shm(ShmRequest::Share(Access::Read)), [1, 8]),
        (RequestKind::Shm(ShmRequest::Share(Access::Write)), [2, 8]),
    ] {
        for (has_proof, bit) in [(false, 0), (true, 0x80)] {
            let request = Request { id: 9, kind, ops: 1, grant_len: 0x0203, has_proof };
            let golden = [0, 0, 0, 0, 0, 0, 0, 9, golden[0], golden[1] | bit, 0, 1, 0, 0, 2, 3];
            assert_eq!(request.encode(), golden);
        }
    }

    let mut out = Vec::new();
    let op = Op { range: 5, offset: 6, len: 7 };
    RdmaOp { op, key: 8, address: 9 }.encode(&mut out);
    assert_eq!(out.len(), RDMA_OP_LEN);
    assert_eq!(out[OP_LEN..], [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 9]);
    assert_eq!(RdmaOp::decode_all(&out).collect::<Vec<_>>(), [RdmaOp { op, key: 8, address: 9 }]);
    let end =
        End { link: 1, reads_at_once: 2, device: 3, pair: 4, first_packet: 5, mtu: 6, lid: 7, gid: [8; 16] };
    let mut out = Vec::new();
    end.encode(&mut out);
    let mut golden = vec![1, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 7];
    golden.extend_from_slice(&[8; 16]);
    assert_eq!(out, golden);
    assert_eq!(End::decode(&out.try_into().unwrap()), end);

    let statuses = [
        (Status::Good, 0),
        (Status::Identity, 1),
        (Status::NotReady, 2),
        (Status::Grant, 3),
        (Status::Expired, 4),
        (Status::Superseded, 5),
        (Status::Range, 6),
        (Status::Sealed, 8),
        (Status::Device, 9),
        (Status::OtherWay, 10),
    ];
    assert!(statuses.iter().all(|(status, number)| *status as u8 == *number));
}

#[test]
fn every_field_is_bounded_before_anything_is_read_for_it() {
    let request = |ops: u16, grant_len: u32, access: [u8; 2]| {
        let kind = RequestKind::Tcp(TcpRequest::Write(Seal::No));
        let mut out = Request { id: 1, kind, ops, grant_len, has_proof: false }.encode();
        out[8..10].copy_from_slice(&access);
        Request::decode(&out)
    };
    assert!(request(MAX_OPS as u16, MAX_GRANT_LEN as u32, [2, 0]).is_ok());
    assert!(request(1, 0, [2, 1]).is_ok());
    assert_eq!(request(0, 0, [1, 0]), Err(WireError::Ops(0)));
    assert_eq!(request(MAX_OPS as u16 + 1, 0, [1, 0]), Err(WireError::Ops(MAX_OPS as u16 + 1)));
    assert_eq!(request(1, u32::MAX, [1, 0]), Err(WireError::Grant(u32::MAX)));
    assert_eq!(request(2, 0, [2, 2]), Err(WireError::Ops(2)));
    assert_eq!(request(2, 0, [1, 7]), Err(WireError::Ops(2)));
    assert_eq!(request(1, 0, [1, 8]), Err(WireError::Ops(1)));
    assert!(request(0, 0, [1, 8]).is_ok() && request(0, 0, [2, 8]).is_ok());
    assert_eq!(request(1, 0, [3, 0]), Err(WireError::Access(3, 0)));
    assert_eq!(request(1, 0, [2, 9]), Err(WireError::Access(2, 9)));
    assert_eq!(VerdictHeader::decode(&[0, 255, 255]), Err(WireError::Reason(u16::MAX)));
    let long = Op { range: 0, offset: 0, len: u64::MAX };
    assert_eq!(total_len([long, long].into_iter()), Err(WireError::Total));
}

#[test]
fn a_reason_that_is_too_long_is_cut() {
    let mut out = Vec::new();
    put_verdict(&mut out, Err((Status::Range, &"x".repeat(5_000))));
    let header = VerdictHeader::decode(out[..VERDICT_LEN].try_into().unwrap()).unwrap();
    assert_eq!(
        (header.good, header.reason_len, out.len()),
        (false, MAX_REASON_LEN, VERDICT_LEN + MAX_REASON_LEN)
    );
}

#[test]
fn only_a_busy_store_is_asked_again() {
    let decoded = |status| {
        let mut out = Vec::new();
        put_verdict(&mut out, Err((status, "")));
        VerdictHeader::decode(out[..].try_into().unwrap()).unwrap()
    };
    assert_eq!(
        decoded(Status::Busy),
        VerdictHeader { good: false, busy: true, device: false, other_way: false, reason_len: 0 }
    );
    assert_eq!(
        decoded(Status::Expired),
        VerdictHeader { good: false, busy: false, device: false, other_way: false, reason_len: 0 }
    );
    assert_eq!(Status::Busy as u8, 7, "on the wire for good");
}

#[test]
fn versions_meet_at_the_newest_common_one() {
    assert_eq!(common_version((1, 3), (2, 5)), Some(3));
    assert_eq!(common_version((1, 1), (1, 1)), Some(1));
    assert_eq!(common_version((1, 1), (2, 5)), None);
    assert_eq!(common_version((4, 5), (2, 3)), None);
}

proptest! {
    #[test]
    fn what_was_encoded_is_decoded(
        (min, max, cluster, store, epoch) in any::<(u16, u16, u128, u64, u64)>(),
        (id, write, ops, grant_len) in (any::<u64>(), any::<bool>(), 1..=MAX_OPS as u16, 0..=MAX_GRANT_LEN as u32),
        has_proof in any::<bool>(),
        list in proptest::collection::vec(any::<(u32, u64, u64)>(), 0..20),
    ) {
        let hello = Hello {
            versions: (min, max), cluster: ClusterId(cluster), store: StoreId(store), epoch: SegmentEpoch(epoch),
        };
        prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        let reads = [RequestKind::Tcp(TcpRequest::Read), RequestKind::Shm(ShmRequest::Check)];
        let writes = [Seal::No, Seal::Yes].map(|seal| RequestKind::Tcp(TcpRequest::Write(seal)));
        let kind = [reads, writes][usize::from(write)][(id % 2) as usize];
        let request = Request { id, kind, ops, grant_len, has_proof };
        prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
        let body: Vec<u8> = (0..request.body_len()).map(|at| at as u8).collect();
        let (grant, its_ops, proof) = request.split_body(&body);
        let proof = proof.map_or(Vec::new(), |proof| proof.to_bytes().to_vec());
        prop_assert_eq!((grant.len(), proof.is_empty()), (grant_len as usize, !has_proof));
        prop_assert_eq!([grant, its_ops, &proof].concat(), body);
        let list: Vec<_> = list.into_iter().map(|(range, offset, len)| Op { range, offset, len }).collect();
        let mut out = Vec::new();
        list.iter().for_each(|op| op.encode(&mut out));
        prop_assert_eq!(Op::decode_all(&out).collect::<Vec<_>>(), list);
    }

    #[test]
    fn any_bytes_decode_to_something_or_an_error(bytes in any::<[u8; HELLO_LEN]>()) {
        let _ = Hello::decode(&bytes);
        let _ = HelloReply::decode(bytes.first_chunk().unwrap());
        let _ = Request::decode(bytes.first_chunk().unwrap());
        let _ = VerdictHeader::decode(bytes.first_chunk().unwrap());
        let _ = total_len(Op::decode_all(&bytes));
    }
}
