//! Work of one choice of objects to evict, which is made under the index's lock.

use mc_eviction::{EvictionGoal, Evictor, Leases, Scope};
use mc_index::{Memory, TenantName, steps_of};
use mc_types::ClusterTime;

use super::fleet::{EACH, Fleet, TENANTS, put, tenant};

/// Steps of one victim, and of a candidate that is passed over.
const CANDIDATE: u64 = 24;
/// Steps of a choice that finds no victim: it passes over 64 candidates.
const CHOICE: u64 = 64 * CANDIDATE;

#[test]
fn the_work_of_a_choice_depends_on_its_victims_alone() {
    let fleet = Fleet::new();
    let (now, leases) = (fleet.state.time(), Leases::new());
    let mut evictor = Evictor::of(&fleet.state);
    let pool = Scope::Memory(Memory::Common);
    let of = |n| Scope::Quota(TenantName::new(tenant(n).as_bytes()));
    // Tenants whose objects the pool does not evict, because others are older.
    let (free, leased) = (TENANTS - 2, TENANTS - 1);
    assert!((0..EACH).all(|n| leases.grant(put(leased, n), 0, ClusterTime(now.0 + 1))));
    let mut wrong = Vec::new();
    for (what, scope, max, victims) in [
        ("pool, one victim", pool, 1, 1),
        ("pool, as many as for puts", pool, 2_048, 2_048),
        ("a tenant", of(free), 2_048, EACH),
        ("a tenant whose objects are leased", of(leased), 2_048, 0),
    ] {
        let want = EvictionGoal { scope, bytes: u64::MAX, objects: u64::MAX, max };
        let (chosen, steps) = steps_of(|| evictor.choose(want, &fleet.state, &leases, now, &[]));
        assert_eq!(chosen.items.len() as u64, victims, "{what}: {:?}", chosen.blocked);
        let most = CHOICE + victims * CANDIDATE;
        println!("{steps:>9} of {most:>9} steps: {what}");
        if steps > most {
            wrong.push(format!("{what}: {steps} steps, at most {most} are allowed"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
