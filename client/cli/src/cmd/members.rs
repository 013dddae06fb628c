//! `mcctl members`.

use std::time::Duration;

use anyhow::{Result, bail};
use mc_client::Admin;
use mc_proto::v1::{ListMembersReply, MemberStatus};
use mc_types::NodeId;
use serde::Serialize;
use tokio::time::Instant;

use super::rescue;
use crate::Ended;
use crate::args::{Global, MembersCommand};
use crate::connect;
use crate::output::{Output, Tone, columns, note};

/// How often a new member is looked at until it has its vote.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often it is said how far it is.
const SAY_EVERY: Duration = Duration::from_secs(3);
/// So many digits of an id are no slip of the pen.
const ID_DIGITS: usize = 6;
/// A member that has not answered for so long is not up.
const SILENT: u64 = 1_000;

#[derive(Serialize)]
struct Member {
    id: String,
    /// leader, voter, or learner: a master that copies the index before it gets its vote.
    role: &'static str,
    raft: String,
    client: String,
    http: String,
    /// Entries of the leader's log that it is not known to have.
    lag_entries: Option<u64>,
    /// Since when it has not answered the leader; absent when it never has in this term.
    silent_ms: Option<u64>,
}

impl Member {
    fn of(member: &MemberStatus, leader: &[u8]) -> Self {
        let is_leader = member.node_id == leader;
        Self {
            id: id(member),
            role: match (is_leader, member.voter) {
                (true, _) => "leader",
                (false, true) => "voter",
                (false, false) => "learner",
            },
            raft: member.raft_address.clone(),
            client: member.client_address.clone(),
            http: member.http_address.clone(),
            lag_entries: member.lag_entries,
            silent_ms: member.silent_ms,
        }
    }

    fn is_up(&self) -> bool {
        self.silent_ms.is_some_and(|silent| silent < SILENT)
    }
}

#[derive(Serialize)]
struct Listed {
    members: Vec<Member>,
}

#[derive(Serialize)]
struct Removed {
    id: String,
    removed: bool,
}

#[derive(Serialize)]
struct Leader {
    leader: String,
    term: u64,
}

pub(crate) async fn members(global: &Global, command: &MembersCommand, output: Output) -> Result<Ended> {
    let leader = async || {
        let client = connect::client_with_leader(&global.masters(), global.timeout.0).await?;
        anyhow::Ok(client.admin())
    };
    match command {
        // Of a directory, not of a cluster.
        MembersCommand::Rescue(args) => rescue::rescue(args, output).await,
        MembersCommand::List => {
            let admin = leader().await?;
            let listed = Listed { members: list(&admin.list_members().await?) };
            output.result(&listed, || table(&listed.members, output));
            let healthy = listed.members.iter().all(|member| member.is_up() && member.role != "learner");
            Ok(if healthy { Ended::Well } else { Ended::Negative })
        }
        MembersCommand::Add { address } => add(&leader().await?, address, global.timeout.0, output).await,
        MembersCommand::Remove { member } => remove(&leader().await?, member, output).await,
        MembersCommand::TransferLeader { member } => {
            let admin = leader().await?;
            let to = match member {
                Some(member) => Some(find(&admin.list_members().await?.members, member)?),
                None => None,
            };
            let leader = admin.transfer_leader(to).await?;
            let document = Leader { leader: leader.address, term: leader.term };
            output.result(&document, || format!("{} leads, in term {}", document.leader, document.term));
            Ok(Ended::Well)
        }
    }
}

/// Takes a master in and waits until it votes.
async fn add(admin: &Admin, address: &str, patience: Duration, output: Output) -> Result<Ended> {
    let added = admin.add_member(address).await?;
    let deadline = Instant::now() + patience;
    let mut said = Instant::now();
    loop {
        let reply = admin.list_members().await?;
        let leader = reply.leader.as_ref().map(|leader| leader.node_id.clone()).unwrap_or_default();
        let Some(member) = reply.members.iter().find(|member| member.node_id == added.node_id) else {
            bail!("{} was removed again while it caught up", id(&added));
        };
        let (votes, late) = (member.voter, Instant::now() >= deadline);
        if votes || late {
            let member = Member::of(member, &leader);
            output.result(&member, || match votes {
                true => format!("{} at {} is a voter", member.id, member.raft),
                false => format!(
                    "{} at {} is taken in and lacks {} entries of the log; it gets its vote by itself once it has them \
                     (mcctl members list)",
                    member.id,
                    member.raft,
                    member.lag_entries.unwrap_or_default()
                ),
            });
            return Ok(if votes { Ended::Well } else { Ended::Negative });
        }
        if said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            note(&format!("it copies the index: {} entries behind", member.lag_entries.unwrap_or_default()));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn remove(admin: &Admin, member: &str, output: Output) -> Result<Ended> {
    let members = admin.list_members().await?.members;
    let node = find(&members, member)?;
    let removed = admin.remove_member(node).await?;
    let document = Removed { id: node.to_string(), removed };
    output.result(&document, || match removed {
        true => {
            format!("removed {node}; stop its process, and empty its data directory before it is used again")
        }
        false => format!("{node} was no member any more"),
    });
    if leaves_one(&members, node) {
        note(
            "one master is left: while it is down there is no leader, and if its disk is lost, so is the index \
             (mcctl members add)",
        );
    }
    Ok(Ended::Well)
}

/// Whether one of `members` votes once `node` does not any more.
fn leaves_one(members: &[MemberStatus], node: NodeId) -> bool {
    let voters: Vec<_> = members.iter().filter(|member| member.voter).collect();
    voters.len() == 2 && voters.iter().any(|voter| voter.node_id == node.to_bytes()[..])
}

fn list(reply: &ListMembersReply) -> Vec<Member> {
    let leader = reply.leader.as_ref().map(|leader| leader.node_id.clone()).unwrap_or_default();
    reply.members.iter().map(|member| Member::of(member, &leader)).collect()
}

fn id(member: &MemberStatus) -> String {
    NodeId::from_bytes(&member.node_id).map_or_else(String::new, |id| id.to_string())
}

/// The one member that `text` names: by its id, at least the first digits of that, or a host, with one of its ports or
/// without.
fn find(members: &[MemberStatus], text: &str) -> Result<NodeId> {
    let at =
        |address: &str| address == text || address.rsplit_once(':').is_some_and(|(host, _)| host == text);
    let named = |member: &&MemberStatus| {
        (text.len() >= ID_DIGITS && id(member).starts_with(text))
            || at(&member.raft_address)
            || at(&member.client_address)
            || at(&member.http_address)
    };
    let found: Vec<_> = members.iter().filter(named).collect();
    match found[..] {
        [member] => NodeId::from_bytes(&member.node_id)
            .ok_or_else(|| anyhow::anyhow!("{text} has an id that is none")),
        [] => {
            let known: Vec<_> =
                members.iter().map(|member| format!("{} at {}", id(member), member.raft_address)).collect();
            bail!(
                "no member is `{text}`; there are {} (of an id its first {ID_DIGITS} digits do)",
                known.join(", ")
            );
        }
        _ => {
            let which: Vec<_> = found.iter().map(|member| id(member)).collect();
            bail!("`{text}` is more than one member: {}; name its id", which.join(", "));
        }
    }
}

fn table(members: &[Member], output: Output) -> String {
    let mut rows = vec![["ID", "ROLE", "RAFT", "CLIENT", "LAG", "HEARD"].map(str::to_owned).to_vec()];
    for member in members {
        let tone = if member.is_up() { Tone::Good } else { Tone::Bad };
        let heard = match member.silent_ms {
            Some(ms) => format!("{:.1} s ago", ms as f64 / 1e3),
            None => "never".to_owned(),
        };
        rows.push(vec![
            member.id.clone(),
            member.role.to_owned(),
            member.raft.clone(),
            member.client.clone(),
            member.lag_entries.map_or_else(|| "-".to_owned(), |lag| lag.to_string()),
            output.paint(tone, &heard),
        ]);
    }
    columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, raft: &str) -> MemberStatus {
        MemberStatus {
            node_id: NodeId(id).to_bytes().to_vec().into(),
            raft_address: raft.to_owned(),
            ..MemberStatus::default()
        }
    }

    #[test]
    fn the_last_but_one_voter_that_goes_leaves_one() {
        let voter = |id| MemberStatus { voter: true, ..member(id, "a:1") };
        let mut members = vec![voter(1), voter(2), member(3, "c:1")];
        assert!(leaves_one(&members, NodeId(1)));
        assert!(!leaves_one(&members, NodeId(3)), "it had no vote");
        members.push(voter(4));
        assert!(!leaves_one(&members, NodeId(1)));
    }

    #[test]
    fn a_member_is_named_by_what_tells_it_apart() {
        let members = [member(0xab01, "a:1"), member(0xab02, "b:1"), member(0xcd03, "a:1")];
        let find = |text: &str| find(&members, text).map_err(|error| error.to_string());
        assert_eq!(find("b:1"), Ok(NodeId(0xab02)));
        assert_eq!(find(&NodeId(0xcd03).to_string()), Ok(NodeId(0xcd03)));
        assert!(find("a:1").unwrap_err().contains("is more than one member"));
        assert_eq!(find("b"), Ok(NodeId(0xab02)), "a host");
        assert!(find("0").is_err(), "all ids begin so");
        assert!(find("a").unwrap_err().contains("is more than one member"));
        assert!(find("c:1").unwrap_err().contains("no member is `c:1`; there are"));
        assert!(find("").is_err());
    }
}
