//! Places on the client port, where only those kept for stores are left.

use mc_net::{ConnectInfo, Place};
use tonic::Status;
use tonic::body::Body;

use crate::judged::Judge;
use crate::leader::Refusal;

/// Paths of the calls that only stores make, of which the first gives the connection a kept place.
const OF_STORES: [&str; 3] = ["/MountStore", "/UnmountStore", "/Heartbeat"];

/// Paths of the calls by which stores, too, look for the leader.
const OF_ALL: [&str; 3] = ["/Hello", "/Status", "/Watch"];

/// Gives connections of stores a kept place, and refuses calls of others for which no place is left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptForStores;

impl Judge for KeptForStores {
    fn judge(&self, call: &mut http::Request<Body>) -> Result<(), Status> {
        let info = call.extensions().get::<ConnectInfo>();
        let place = info.and_then(|info| info.place.as_deref());
        Ok(place.map_or(Ok(()), |place| check(place, call.uri().path()))?)
    }
}

fn check(place: &Place, path: &str) -> Result<(), Refusal> {
    let is_one_of = |calls: &[&str]| calls.iter().any(|call| path.ends_with(call));
    if is_one_of(&OF_STORES) {
        place.vouch();
    } else if place.is_guest() && !is_one_of(&OF_ALL) {
        place.dismiss();
        return Err(Refusal::NoPlace);
    }
    Ok(())
}
