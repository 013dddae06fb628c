//! Encodings: golden files hold what was written once, and damaged bytes are errors, never panics.

use crate::golden::assert_golden;
use crate::support::{Rig, end, endpoint, mount, restore, snapshot, start};
use mc_index::{
    Command, DecodeError, Endpoint, EvictItem, GroupId, KeyHash, MountStore, Op, PrincipalRecord, ProvenEnd,
    PutEndItem, PutStartItem, Quota, ReadPolicy, RemoveItem, Response, SecurityChange, Settings,
    SnapshotError, Stamp, State, TenantPolicy,
};
use mc_types::{
    ClusterTime, Code, GrantKey, PinAction, PutId, PutMode, Ratio, Replication, SegmentEpoch, StoreId,
    TlsLevel, TokenHash,
};

/// Spelled out: the golden files hold an encoding, not the defaults of the day.
fn settings() -> Settings {
    Settings {
        put_deadline_max_ms: 600_000,
        read_lease_ms: 10_000,
        store_ttl_ms: 600_000,
        store_heartbeat_ms: 200,
        store_suspect_ms: 800,
        read_policy: ReadPolicy::ReadIndex,
        eviction_high_watermark: Ratio::of_ten_thousandths(9_900),
        eviction_low_watermark: Ratio::of_ten_thousandths(9_000),
        put_space_wait_ms: 700,
        hard_pin_limit: Ratio::of_ten_thousandths(6_000),
        tenants: TenantPolicy::Any,
        default_quota: Quota { bytes: 1 << 40, objects: 1_000_000 },
        max_objects: 30_000_000,
        max_index_bytes: 8 << 30,
    }
}

/// One command of each variant, every field in use.
fn commands() -> Vec<(&'static str, Command)> {
    let tenant = "tenant".to_owned();
    let ops = vec![
        ("tick", Op::Tick),
        (
            "put_start",
            Op::PutStart {
                tenant: tenant.clone(),
                items: vec![
                    PutStartItem {
                        put: PutId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
                        key: b"key \x00\xff"[..].into(),
                        size: 3_274_752,
                        mode: PutMode::Upsert,
                        replicas: 2,
                        deadline: ClusterTime(30_000),
                        preferred: [StoreId(1), StoreId(2), StoreId(3)][..].into(),
                        avoid: [StoreId(u64::MAX)][..].into(),
                        pin: PinAction::Soft(ClusterTime(70_000)),
                        replication: Replication::Strict,
                        data_type: 3,
                        group: Some(GroupId::of("tenant", b"page 7")),
                    },
                    start(1, "other", 1),
                ],
            },
        ),
        (
            "put_end",
            Op::PutEnd {
                items: vec![PutEndItem {
                    put: PutId(u128::MAX),
                    key: KeyHash::of(&tenant, b"key"),
                    checksum: u64::MAX,
                    failed: [0, 255, 3][..].into(),
                    reuse_at: ClusterTime(40_000),
                }],
            },
        ),
        ("put_revoke", Op::PutRevoke { puts: vec![PutId(1), PutId(u128::MAX)] }),
        (
            "remove",
            Op::Remove {
                tenant,
                items: vec![RemoveItem {
                    key: b"key".to_vec(),
                    version: PutId(7),
                    reuse_at: ClusterTime(300),
                }],
            },
        ),
        ("remove_all", Op::RemoveAll { tenant: "tenant".into(), reuse_at: ClusterTime(300) }),
        (
            "drop_replicas",
            Op::DropReplicas {
                tenant: "tenant".into(),
                store: StoreId(0xfeed),
                items: vec![RemoveItem {
                    key: b"key".to_vec(),
                    version: PutId(7),
                    reuse_at: ClusterTime(300),
                }],
            },
        ),
        (
            "set_tenant",
            Op::SetTenant {
                tenant: "tenant".into(),
                quota: Some(Quota { bytes: 50 << 30, objects: 1_000_000 }),
            },
        ),
        ("unset_tenant", Op::SetTenant { tenant: "tenant".into(), quota: None }),
        (
            "set_key_value",
            Op::SetKeyValue { key: b"ram/host".to_vec(), value: Some(b"value".to_vec().into()) },
        ),
        ("unset_key_value", Op::SetKeyValue { key: b"ram/host".to_vec(), value: None }),
        (
            "evict",
            Op::Evict {
                items: vec![EvictItem { key: KeyHash::of("tenant", b"key"), version: PutId(9) }],
                reuse_at: ClusterTime(300),
            },
        ),
        (
            "note_reuse",
            Op::NoteReuse {
                keys: vec![KeyHash::of("tenant", b"key"), KeyHash::of("", b"other")],
                epoch: 300,
                once_share: 1 << 31,
            },
        ),
        (
            "mount_store",
            Op::MountStore(MountStore {
                store: StoreId(0xfeed),
                epoch: SegmentEpoch(0xbeef),
                name: "host:50060".into(),
                grant_key: GrantKey(std::array::from_fn(|at| at as u8)),
                endpoints: vec![
                    Endpoint {
                        transport: "rdma".into(),
                        address: "[fe80::1]:50060".into(),
                        attributes: vec![("gid".into(), "3".into())],
                    },
                    endpoint("tcp"),
                ],
                segments: vec![50 << 30, 0, 64],
                http: "host:9300".into(),
            }),
        ),
        ("drop_store", Op::DropStore { store: StoreId(1), epoch: SegmentEpoch(2) }),
        ("sweep", Op::Sweep { limit: 4096 }),
        ("set_settings", Op::SetSettings(settings())),
        ("set_cluster_version", Op::SetClusterVersion(300)),
        (
            "put_end_proven",
            Op::PutEndProven {
                items: vec![ProvenEnd {
                    end: PutEndItem {
                        put: PutId(u128::MAX),
                        key: KeyHash::of("tenant", b"key"),
                        checksum: u64::MAX,
                        failed: [0, 255, 3][..].into(),
                        reuse_at: ClusterTime(40_000),
                    },
                    index: 7 << 32 | 9,
                }],
            },
        ),
        ("set_security_level", Op::SetSecurity(SecurityChange::Level(TlsLevel::Require))),
        (
            "set_security_principal",
            Op::SetSecurity(SecurityChange::Principal {
                name: "tenant/a/rw/engine".into(),
                principal: Some(PrincipalRecord {
                    token: Some(TokenHash(std::array::from_fn(|at| at as u8))),
                    certificates: vec!["spiffe://cluster.local/ns/a/sa/engine-*".into()],
                    expires: Some(1_800_000_000),
                    denied: true,
                }),
            }),
        ),
        (
            "unset_security_principal",
            Op::SetSecurity(SecurityChange::Principal { name: "admin/a".into(), principal: None }),
        ),
        (
            "set_security_calls",
            Op::SetSecurity(SecurityChange::Calls { tenant: "a".into(), per_second: Some(300) }),
        ),
        (
            "set_security_sharing_principal",
            Op::SetSecurity(SecurityChange::SharingPrincipal {
                name: "tenant/a/rw/engine".into(),
                principal: PrincipalRecord { expires: Some(1_800_000_000), ..PrincipalRecord::default() },
                shares_memory: true,
            }),
        ),
        ("set_security_rdma", Op::SetSecurity(SecurityChange::Rdma { tenant: "a".into(), allowed: false })),
    ];
    let stamp = |seed| Stamp {
        now: ClusterTime(1_700_000),
        term: 7,
        seed,
        suspects: vec![StoreId(5), StoreId(u64::MAX)],
    };
    ops.into_iter().zip(1..).map(|((name, op), seed)| (name, Command { stamp: stamp(seed), op })).collect()
}

/// A state with something in every section of a snapshot.
fn full_state() -> State {
    const MIB: u64 = 1 << 20;
    let mut rig = Rig::new();
    rig.state = State::new(settings());
    rig.apply(Op::SetClusterVersion(3));
    assert_eq!(rig.mount(mount(1, 101, &[64 * MIB])), Code::Ok);
    assert_eq!(rig.mount(mount(2, 102, &[MIB, 2 * MIB])), Code::Ok);
    assert_eq!(rig.mount(mount(3, 103, &[MIB])), Code::Ok);
    let on = |store, item: PutStartItem| PutStartItem { preferred: [StoreId(store)][..].into(), ..item };
    // Fill store 1 with one size, make holes, and put a smaller one into them: runs within runs.
    for put in 1000..1512 {
        let key = format!("large{put}");
        assert_eq!(rig.start(on(1, start(put, &key, 128 << 10))).code, Code::Ok);
        assert_eq!(rig.end(put, &key).code, Code::Ok);
    }
    for put in (1000..1512).step_by(8) {
        assert_eq!(rig.remove(&format!("large{put}"), put, if put % 3 == 0 { 9000 } else { 0 }), Code::Ok);
    }
    for put in 1..20 {
        assert_eq!(rig.start(on(1, start(put, &format!("small{put}"), 60_000))).code, Code::Ok);
    }
    for put in 1..10 {
        assert_eq!(rig.end(put, &format!("small{put}")).code, Code::Ok);
    }
    // Each way to end a put.
    assert_eq!(rig.start(on(2, start(50, "small1", 10))).code, Code::ObjectAlreadyExists);
    assert_eq!(rig.start(on(2, start(51, "late", 10))).code, Code::Ok);
    assert_eq!(rig.start(on(2, start(52, "late", 10))).code, Code::Ok);
    rig.end(51, "late");
    assert_eq!(rig.end(52, "late").code, Code::ObjectAlreadyExists);
    assert_eq!(
        rig.start(on(
            2,
            PutStartItem { mode: PutMode::Upsert, pin: PinAction::Hard, ..start(53, "late", 2000) }
        ))
        .code,
        Code::Ok
    );
    assert_eq!(rig.end_item(PutEndItem { reuse_at: ClusterTime(8000), ..end(53, "late") }).code, Code::Ok);
    assert_eq!(rig.start(on(2, start(54, "failed", 10))).code, Code::Ok);
    let failed = PutEndItem { failed: [0][..].into(), ..end(54, "failed") };
    assert_eq!(rig.end_item(failed).code, Code::TransferFail);
    // A group that has lost a member, and a put that will join it.
    let grouped =
        |item: PutStartItem| PutStartItem { data_type: 4, group: Some(GroupId::of("", b"page")), ..item };
    for (put, store) in [(70, 1), (71, 2), (72, 3)] {
        let key = format!("page{put}");
        assert_eq!(rig.start(on(store, grouped(start(put, &key, 3000)))).code, Code::Ok);
        assert_eq!(rig.end(put, &key).code, Code::Ok);
    }
    assert_eq!(rig.start(on(1, grouped(start(73, "page73", 3000)))).code, Code::Ok);
    rig.drop_store(3);
    assert!(!rig.sweep(10));
    assert_eq!(rig.mount(mount(3, 104, &[MIB])), Code::Ok);
    // A registered tenant, whose objects were all removed but not swept, and an entry of the key-value table.
    let quota = Some(Quota { bytes: 10 * MIB, objects: 100 });
    assert_eq!(rig.code(Op::SetTenant { tenant: "tenant".into(), quota }), Code::Ok);
    let items = vec![on(2, start(80, "of the tenant", 700))];
    rig.apply(Op::PutStart { tenant: "tenant".into(), items });
    let items = vec![PutEndItem { key: KeyHash::of("tenant", b"of the tenant"), ..end(80, "") }];
    rig.apply(Op::PutEnd { items });
    let cleared = rig.apply(Op::RemoveAll { tenant: "tenant".into(), reuse_at: ClusterTime(9_500) });
    assert_eq!(cleared, Response::Removed(1));
    let value = Some(b"value".to_vec().into());
    assert_eq!(rig.code(Op::SetKeyValue { key: b"key".to_vec(), value }), Code::Ok);
    // A dropped store with residents, a put in flight in it, and an object that has another replica.
    for put in 60..64 {
        let item = PutStartItem { replicas: 2, ..on(3, start(put, &format!("three{put}"), 5000)) };
        assert_eq!(rig.start(item).replicas.len(), 2);
    }
    for put in 60..63 {
        rig.end(put, &format!("three{put}"));
    }
    rig.drop_store(3);
    assert!(rig.state.needs_sweep());
    rig.state
}

#[test]
fn every_command_encodes_as_it_did() {
    for (name, command) in commands() {
        let bytes = command.encode();
        assert_golden(&format!("command/{name}.bin"), bytes[0], &bytes);
        assert_eq!(Command::decode(&bytes).as_ref(), Ok(&command), "{name}");
    }
}

/// A state with access settings.
fn secured_state() -> State {
    let mut rig = Rig::new();
    let token = |byte| Some(TokenHash([byte; 32]));
    let certificates = vec!["spiffe://cluster.local/ns/a/sa/engine-*".to_owned()];
    for (name, principal) in [
        (
            "admin/a",
            Some(PrincipalRecord {
                token: token(1),
                expires: Some(1_800_000_000),
                ..PrincipalRecord::default()
            }),
        ),
        ("tenant/a/rw/engine", Some(PrincipalRecord { certificates, ..PrincipalRecord::default() })),
        (
            "tenant/b/ro/engine",
            Some(PrincipalRecord { token: token(2), denied: true, ..PrincipalRecord::default() }),
        ),
        ("admin/a", Some(PrincipalRecord { token: token(3), ..PrincipalRecord::default() })),
    ] {
        let change = SecurityChange::Principal { name: name.into(), principal };
        assert_eq!(rig.code(Op::SetSecurity(change)), Code::Ok);
    }
    for change in [
        SecurityChange::Level(TlsLevel::Prefer),
        SecurityChange::Calls { tenant: "a".into(), per_second: Some(300) },
    ] {
        assert_eq!(rig.code(Op::SetSecurity(change)), Code::Ok);
    }
    rig.state
}

#[test]
fn ways_that_are_allowed_or_not_are_part_of_a_snapshot() {
    let mut rig = Rig { state: secured_state(), ..Rig::new() };
    for change in [
        SecurityChange::SharingPrincipal {
            name: "tenant/a/rw/engine".into(),
            principal: PrincipalRecord::default(),
            shares_memory: true,
        },
        SecurityChange::Rdma { tenant: String::new(), allowed: false },
        SecurityChange::Rdma { tenant: "a".into(), allowed: false },
    ] {
        assert_eq!(rig.code(Op::SetSecurity(change)), Code::Ok);
    }
    let again = restore(&snapshot(&rig.state));
    assert_eq!(again.security(), rig.state.security());
    assert!(again.security().principal("tenant/a/rw/engine").is_some_and(|known| known.shares_memory));
    assert_eq!(["", "a", "b"].map(|tenant| again.security().avoids_rdma(tenant)), [true, true, false]);
}

#[test]
fn access_settings_are_part_of_a_snapshot() {
    let state = secured_state();
    let bytes = snapshot(&state);
    assert_golden(&format!("snapshot/v{}.bin", bytes[7]), bytes[7], &bytes);
    let again = restore(&bytes);
    assert_eq!(again.security(), state.security());
    assert_eq!(again.security().with_token(&TokenHash([3; 32])).map(|(name, _)| name), Some("admin/a"));
    assert_eq!(again.security().with_token(&TokenHash([1; 32])), None, "it was replaced");
    assert_eq!(again.security().revoked().count(), 1);
}

#[test]
fn a_snapshot_reads_and_writes_as_it_did() {
    let state = full_state();
    let bytes = snapshot(&state);
    assert_golden(&format!("snapshot/v{}.bin", bytes[7]), bytes[7], &bytes);
    let mut again = restore(&bytes);
    assert_eq!(snapshot(&again), bytes);
    // What is derived acts the same: the next placements, ends and releases.
    let mut state = state;
    for index in 10_000..10_200u64 {
        let items = vec![start(u128::from(index), &format!("next{index}"), 1000 * (index % 90 + 1))];
        let stamp = Stamp { now: ClusterTime(index), seed: index, ..Stamp::default() };
        let command = Command { stamp, op: Op::PutStart { tenant: String::new(), items } };
        assert_eq!(state.apply(index, 0, &command), again.apply(index, 0, &command));
    }
    assert_eq!(snapshot(&again), snapshot(&state));
}

#[test]
fn an_empty_state_has_a_snapshot() {
    let bytes = snapshot(&State::new(Settings::default()));
    assert_eq!(snapshot(&restore(&bytes)), bytes);
    assert!(bytes.len() < 200);
}

#[test]
fn other_formats_and_trailing_bytes_are_refused() {
    let mut bytes = commands()[0].1.encode().to_vec();
    bytes.push(0);
    assert!(matches!(Command::decode(&bytes), Err(DecodeError::Malformed(_))));
    bytes[0] = 10;
    assert_eq!(Command::decode(&bytes), Err(DecodeError::Format(10)));
    assert!(matches!(Command::decode(&[]), Err(DecodeError::Malformed(_))));

    let mut bytes = snapshot(&full_state());
    bytes[7] = 1;
    assert!(matches!(State::read_snapshot(&mut &bytes[..]), Err(SnapshotError::Format(1))));
    bytes[0] = b'x';
    assert!(matches!(State::read_snapshot(&mut &bytes[..]), Err(SnapshotError::NotASnapshot)));
}

/// The reader stops at the trailer, so that a snapshot can stand in front of something else.
#[test]
fn nothing_past_the_trailer_is_read() {
    let mut bytes = snapshot(&full_state());
    bytes.extend_from_slice(b"rest");
    let mut input = &bytes[..];
    State::read_snapshot(&mut input).unwrap();
    assert_eq!(input, b"rest");
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n.max(1)
    }

    /// Changes, inserts, removes or repeats a few bytes.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len());
            match self.below(6) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                1 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                2 => bytes.insert(at, [0, 0xff, 0x80, 7][self.below(4)]),
                3 if !bytes.is_empty() => drop(bytes.remove(at)),
                4 => bytes.truncate(at),
                _ => {
                    let to = at + self.below(bytes.len() - at + 1).min(40);
                    let piece = bytes[at..to].to_vec();
                    let into = self.below(bytes.len() + 1);
                    bytes.splice(into..into, piece);
                }
            }
        }
    }
}

#[test]
fn every_flipped_byte_and_every_cut_of_a_snapshot_is_an_error() {
    let bytes = snapshot(&full_state());
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(State::read_snapshot(&mut &damaged[..]).is_err(), "byte {at}");
    }
    for len in (0..bytes.len()).step_by(7) {
        assert!(State::read_snapshot(&mut &bytes[..len]).is_err(), "cut at {len}");
    }
}

/// Damage under checksums that match reaches the decoders and the checks behind them. What they let through must be a
/// state that works.
#[test]
fn no_snapshot_makes_a_panic_or_a_state_that_breaks() {
    let chunks = |bytes: &[u8]| {
        let (mut at, mut chunks) = (8, Vec::new());
        while at < bytes.len() {
            let len = u32::from_le_bytes(bytes[at + 1..at + 5].try_into().unwrap()) as usize;
            chunks.push((bytes[at], bytes[at + 9..at + 9 + len].to_vec()));
            at += 9 + len;
        }
        chunks
    };
    let good = snapshot(&full_state());
    let parts = chunks(&good);
    let mut random = Random(1);
    let mut accepted = 0;
    for _ in 0..2000 {
        let mut parts = parts.clone();
        let chosen = random.below(parts.len());
        random.damage(&mut parts[chosen].1);
        if random.below(20) == 0 {
            let (a, b) = (random.below(parts.len()), random.below(parts.len()));
            parts.swap(a, b);
        }
        let mut bytes = good[..8].to_vec();
        for (section, payload) in parts {
            let mut head = vec![section];
            head.extend_from_slice(&(payload.len() as u32).to_le_bytes());
            let crc = crc32c::crc32c_append(crc32c::crc32c(&head), &payload);
            bytes.extend_from_slice(&head);
            bytes.extend_from_slice(&crc.to_le_bytes());
            bytes.extend_from_slice(&payload);
        }
        if let Ok(state) = State::read_snapshot(&mut &bytes[..]) {
            accepted += 1;
            exercise(state);
        }
    }
    assert!(accepted > 0, "some damage is to plain values, which nothing can tell");
}

/// Commands over everything in the state; its snapshot must read back.
fn exercise(mut state: State) {
    let now = state.time().0;
    for (index, (_, command)) in (1 << 40..).zip(commands()) {
        state.apply(index, command.stamp.term, &command);
    }
    for (index, ms) in (1 << 41..).zip([now, 9000, 2_000_000]) {
        let stamp = Stamp { now: ClusterTime(ms), ..Stamp::default() };
        state.apply(index, 0, &Command { stamp: stamp.clone(), op: Op::Sweep { limit: 5000 } });
        let stores: Vec<_> = state.stores().map(|store| (store.store, store.epoch)).collect();
        let items = (0..50).map(|put| start(1 << 80 | put, &format!("x{put}"), 50_000)).collect();
        state.apply(
            index,
            0,
            &Command { stamp: stamp.clone(), op: Op::PutStart { tenant: String::new(), items } },
        );
        let bytes = snapshot(&state);
        assert_eq!(snapshot(&restore(&bytes)), bytes);
        for (store, epoch) in stores {
            state.apply(index, 0, &Command { stamp: stamp.clone(), op: Op::DropStore { store, epoch } });
        }
    }
}

#[test]
fn no_bytes_make_a_command_panic_in_decode_or_apply() {
    let full = full_state();
    let mut random = Random(2);
    let mut applied = 0;
    for (name, command) in commands() {
        for _ in 0..1500 {
            let mut bytes = command.encode().to_vec();
            random.damage(&mut bytes);
            let Ok(damaged) = Command::decode(&bytes) else { continue };
            assert_eq!(Command::decode(&damaged.encode()).as_ref(), Ok(&damaged), "{name}");
            let mut state = full.clone();
            let response = state.apply(u64::MAX, damaged.stamp.term, &damaged);
            assert_ne!(response, Response::WrongTerm);
            applied += 1;
            if applied % 16 == 0 {
                let bytes = snapshot(&state);
                assert_eq!(snapshot(&restore(&bytes)), bytes, "{damaged:?}");
            }
        }
    }
    assert!(applied > 1000, "{applied}");
}
