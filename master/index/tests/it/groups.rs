//! Groups at their limits: full ones, and members whose keys share a hash.

use crate::support::{Rig, end, restore, snapshot, start};
use mc_index::{GroupId, KeyHash, Op, PutEndItem, PutStartItem, Response};
use mc_types::{ClusterTime, Code, MAX_GROUP_MEMBERS, PutId, PutMode, StoreId};

const MIB: u64 = 1 << 20;

fn group() -> GroupId {
    GroupId::of("", b"group")
}

fn rig(version: u32) -> Rig {
    let mut rig = Rig::with_stores(&[64 * MIB, 64 * MIB]);
    rig.apply(Op::SetClusterVersion(version));
    rig
}

/// Starts puts of keys that are numbers, as members of the group.
fn start_members(rig: &mut Rig, puts: impl Iterator<Item = (u128, usize)>) -> Vec<Code> {
    let item = |(put, key): (u128, usize)| PutStartItem {
        mode: PutMode::Upsert,
        group: Some(group()),
        ..start(put, &key.to_string(), 64)
    };
    let items = puts.map(item).collect();
    match rig.apply(Op::PutStart { tenant: String::new(), items }) {
        Response::PutStarted(started) => started.iter().map(|it| it.code).collect(),
        other => panic!("{other:?}"),
    }
}

fn end_members(rig: &mut Rig, puts: impl Iterator<Item = (u128, usize)>) {
    let items = puts.map(|(put, key)| end(put, &key.to_string())).collect();
    let Response::PutEnded(ended) = rig.apply(Op::PutEnd { items }) else { panic!() };
    assert!(ended.iter().all(|it| it.code == Code::Ok));
}

fn assert_snapshot_restores(rig: &mut Rig) {
    let bytes = snapshot(&rig.state);
    rig.state = restore(&bytes);
    assert_eq!(snapshot(&rig.state), bytes);
}

#[test]
fn a_full_group_takes_new_versions_of_its_members_and_nothing_else() {
    let all = || (1..=MAX_GROUP_MEMBERS).map(|n| (n as u128, n));
    let again = || all().map(|(put, key)| (put + 10_000, key));
    let mut old = rig(1);
    assert!(start_members(&mut old, all()).iter().all(|code| *code == Code::Ok));
    end_members(&mut old, all());
    assert_eq!(start_members(&mut old, again().take(1)), [Code::GroupFull], "as version 1 answers");

    let mut rig = rig(2);
    assert!(start_members(&mut rig, all()).iter().all(|code| *code == Code::Ok));
    assert_eq!(start_members(&mut rig, again().take(1)), [Code::GroupFull], "its members are not there yet");
    end_members(&mut rig, all());
    assert!(start_members(&mut rig, again()).iter().all(|code| *code == Code::Ok));
    assert_eq!(start_members(&mut rig, [(9_998, 9_998)].into_iter()), [Code::GroupFull], "a further member");
    assert_eq!(start_members(&mut rig, [(9_999, 1)].into_iter()), [Code::GroupFull], "as many again at most");
    assert_snapshot_restores(&mut rig);
    end_members(&mut rig, again());
    let members = rig.state.group(group()).unwrap().members;
    assert_eq!(members.len(), MAX_GROUP_MEMBERS);
    assert!(members.iter().all(|member| member.version.0 > 10_000));
    assert_snapshot_restores(&mut rig);
}

/// Returns the nth of any number of keys that share a hash.
///
/// XXH3 multiplies two words of the last 16 bytes, each combined with a constant. A word that equals its constant makes
/// the product zero, whatever the other one is.
fn sharing_a_hash(nth: u8) -> [u8; 31] {
    let mut key = [nth; 31];
    key[..15].fill(b'k');
    key[15..23].copy_from_slice(&[0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb]);
    key
}

/// Puts an object of that key into the group, on one store.
fn put_sharing(rig: &mut Rig, nth: u8, store: u64) {
    let key = sharing_a_hash(nth);
    let put = PutId(nth.into());
    let item = PutStartItem {
        group: Some(group()),
        preferred: [StoreId(store)][..].into(),
        ..PutStartItem::new(put, &key, 64, ClusterTime(1_000_000))
    };
    assert_eq!(rig.start(item).code, Code::Ok);
    assert_eq!(rig.end_item(PutEndItem::new(put, KeyHash::of("", &key), 0)).code, Code::Ok);
}

#[test]
fn members_that_share_a_hash_and_are_lost_leave_a_snapshot_that_can_be_read() {
    assert_eq!(KeyHash::of("", &sharing_a_hash(1)), KeyHash::of("", &sharing_a_hash(2)));
    for version in [1, 2] {
        let mut rig = rig(version);
        start_members(&mut rig, [(100, 100)].into_iter());
        put_sharing(&mut rig, 1, 2);
        put_sharing(&mut rig, 2, 2);
        rig.drop_store(2);
        rig.sweep_all(100);
        assert_snapshot_restores(&mut rig);
        let lost = rig.state.group(group()).unwrap().lost;
        assert_eq!(lost, if version == 1 { 2 } else { 1 });
    }
}

#[test]
fn a_member_that_shares_its_hash_with_a_lost_one_is_restored() {
    let mut rig = rig(2);
    put_sharing(&mut rig, 1, 2);
    put_sharing(&mut rig, 2, 1);
    rig.drop_store(2);
    rig.sweep_all(100);
    let before = rig.state.group(group()).unwrap();
    assert_eq!((before.members.len(), before.lost), (1, 1));
    assert_snapshot_restores(&mut rig);
    assert_eq!(rig.state.group(group()).unwrap(), before);
}
