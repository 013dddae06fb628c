use super::*;

fn grant() -> Grant {
    Grant {
        cluster: ClusterId(1),
        store: StoreId(2),
        epoch: SegmentEpoch(3),
        access: Access::Write,
        expires: ClusterTime(4),
        tenant: "team".to_owned(),
        holder: None,
        needs_proof: true,
        shares_memory: false,
        avoids_rdma: false,
        ranges: vec![
            GrantedRange { segment: 0, offset: 64, len: 128, index: 9 },
            GrantedRange { segment: 1, offset: 64, len: 127, index: 1 << 32 },
        ],
    }
}

/// What a reader of the older format gets of [`grant`].
fn older() -> Grant {
    Grant { tenant: String::new(), needs_proof: false, ..grant() }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_sealed_grant_opens_with_its_key_only() {
    let key = GrantKey([7; 32]);
    for (sealed, holds) in [(grant().seal(&key), grant()), (grant().seal_older(&key), older())] {
        assert_eq!(Grant::open(&sealed.bytes, &key).map(|(grant, _)| grant), Ok(holds.clone()));
        assert_eq!(Grant::open(&sealed.bytes, &GrantKey([8; 32])), Err(GrantError::Mac));
        assert_eq!(Grant::peek(&sealed.bytes), Ok(holds), "its holder can read it");
    }
}

#[test]
fn its_holder_and_the_store_have_the_same_key_for_proofs_and_only_if_they_are_due() {
    let key = GrantKey([7; 32]);
    let sealed = grant().seal(&key);
    let (_, proof_key) = Grant::open(&sealed.bytes, &key).unwrap();
    assert_eq!(sealed.proof_key, Some(proof_key));
    let another = Grant { expires: ClusterTime(5), ..grant() }.seal(&key);
    assert_ne!(another.proof_key, Some(proof_key), "each grant has its own");
    assert_eq!(older().seal(&key).proof_key, None);
    assert_eq!(grant().seal_older(&key).proof_key, None);
}

#[test]
fn the_key_for_proofs_is_not_in_the_grant() {
    let sealed = grant().seal(&GrantKey([7; 32]));
    let proof_key = sealed.proof_key.unwrap().to_bytes();
    assert!(sealed.bytes.windows(MAC_LEN).all(|seen| !proof_key.windows(MAC_LEN).any(|part| part == seen)));
}

#[test]
fn every_flipped_byte_and_every_cut_is_refused() {
    let key = GrantKey([7; 32]);
    for sealed in [grant().seal(&key), grant().seal_older(&key)] {
        for at in 0..sealed.bytes.len() {
            let mut bad = sealed.bytes.to_vec();
            bad[at] ^= 1;
            assert!(Grant::open(&bad, &key).is_err(), "flip at {at}");
            assert!(Grant::open(&sealed.bytes[..at], &key).is_err(), "cut at {at}");
        }
    }
}

#[test]
fn what_is_not_a_grant_is_malformed_even_under_its_mac() {
    let key = GrantKey([7; 32]);
    let good = grant().seal(&key).bytes;
    let body = &good[..good.len() - MAC_LEN];
    let sealed = |body: &[u8]| [body, &authenticate(&key, body).0].concat();
    assert!(Grant::open(&sealed(body), &key).is_ok());
    for cut in 2..body.len() {
        assert_eq!(Grant::open(&sealed(&body[..cut]), &key), Err(GrantError::Malformed), "cut at {cut}");
    }
    assert_eq!(Grant::open(&sealed(&[body, &[0]].concat()), &key), Err(GrantError::Malformed));
    let mut unknown_flag = body.to_vec();
    unknown_flag[1] |= 32;
    assert_eq!(Grant::open(&sealed(&unknown_flag), &key), Err(GrantError::Malformed));
    let mut too_many = Grant { ranges: Vec::new(), ..grant() }.seal(&key).bytes.to_vec();
    too_many.truncate(too_many.len() - MAC_LEN - 1);
    ranges::put(&mut too_many, u64::MAX);
    assert_eq!(Grant::open(&sealed(&too_many), &key), Err(GrantError::Malformed));
}

#[test]
fn ranges_of_any_numbers_come_back() {
    let most = GrantedRange { segment: u32::MAX, offset: u64::MAX, len: u64::MAX, index: u64::MAX };
    let least = GrantedRange { segment: 0, offset: 0, len: 0, index: 0 };
    let half = GrantedRange { segment: 1 << 31, offset: 1 << 63, len: (1 << 63) - 1, index: 1 << 63 };
    let all = [most, least, half, most, half, least];
    let wide = Grant { ranges: all.to_vec(), ..grant() };
    assert_eq!(Grant::peek(&wide.seal(&GrantKey([7; 32])).bytes), Ok(wide));
    for holder in [0, 7, u64::MAX] {
        let held = Grant { holder: Some(holder), ..grant() };
        assert_eq!(Grant::peek(&held.seal(&GrantKey([7; 32])).bytes), Ok(held));
    }
}

#[test]
fn its_holder_learns_by_which_ways_it_may_move_bytes() {
    let ways = |sealed: SealedGrant| (sealed.shares_memory(), sealed.avoids_rdma());
    for (shares_memory, avoids_rdma) in [(false, false), (true, false), (false, true), (true, true)] {
        let grant = Grant { shares_memory, avoids_rdma, ..grant() };
        let sealed = grant.seal(&GrantKey([7; 32]));
        assert_eq!(Grant::peek(&sealed.bytes), Ok(grant.clone()));
        assert_eq!(ways(sealed), (shares_memory, avoids_rdma));
        assert_eq!(ways(grant.seal_older(&GrantKey([7; 32]))), (false, false));
    }
    assert_eq!(ways(SealedGrant::default()), (false, false));
}

/// The encoding must not change: masters and stores of different builds exchange it.
#[test]
fn the_encodings_are_stable() {
    let key = GrantKey([7; 32]);
    let SealedGrant { bytes, proof_key } = grant().seal(&key);
    let ids = "00000000000000000000000000000001".to_owned() + "0000000000000002" + "0000000000000003";
    let ranges = ["02", "00", "8001", "8002", "12", "02", "ff01", "01", "eeffffff1f"].concat();
    let (body, mac) = bytes.split_at(bytes.len() - MAC_LEN);
    assert_eq!(hex(body), format!("0203{ids}04047465616d{ranges}"));
    assert_eq!(hex(mac), "0a4507aecbb5419b6678e98050e3bab4");
    assert_eq!(
        hex(&proof_key.unwrap().to_bytes()),
        "451aec2aeb5164b777e7ffbdc7ef17d2677b56f1c6394dff1c7acec9c229012c"
    );

    let older = grant().seal_older(&key).bytes;
    let (body, mac) = older.split_at(older.len() - MAC_LEN);
    assert_eq!(hex(body), "01010203010402".to_owned() + "0040800109" + "01407f8080808010");
    assert_eq!(hex(mac), "385688a24870b470abbab8de429c1d8b");
}
