//! Work of entries and of holds of the index's lock with many stores, tenants and open puts, counted in steps
//! ([`mc_index::count_work`]) and bounded: a bound on steps holds on any machine.

mod apply;
mod choices;
mod fleet;
mod holds;
