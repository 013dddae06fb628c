//! `mcctl members`: lists and changes the masters of the cluster.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Subcommand;
use mc_client::{Admin, Members};
use mc_console::{Ended, Global, Output, Tone, columns, connect, note, or_dash};
use mc_types::NodeId;
use serde::Serialize;
use tokio::time::Instant;

use super::rescue::{self, RescueArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum MembersCommand {
    /// List the masters with their votes and their lag
    List,
    /// Add a running master that waits to be added; returns once it has a vote
    Add {
        /// Raft address of the master: host or host:port
        #[arg(value_name = "RAFT-ADDRESS")]
        address: String,
    },
    /// Remove a master permanently, dead or alive
    Remove {
        /// Id of the master, a prefix of the id, or one of its addresses
        member: String,
    },
    /// Transfer the leadership to another master
    TransferLeader {
        /// The new leader: an id, a prefix of an id, or an address [default: the voter with most of the log]
        member: Option<String>,
    },
    /// Recover from the permanent loss of a majority: make a cluster of one from a surviving data directory
    Rescue(RescueArgs),
}

/// Pause between two looks at a new member until it has its vote.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time between two notes about a new member's progress.
const SAY_EVERY: Duration = Duration::from_secs(3);
/// Minimum digits that name an id. Fewer could match by a typing error.
const ID_DIGITS: usize = 6;
/// Milliseconds without an answer after which a member counts as down.
const SILENT: u64 = 1_000;

#[derive(Serialize)]
struct Member {
    id: String,
    /// leader, voter, learner (a master that copies the index before it gets its vote), or left (one that has given up its
    /// vote before it stopped, and whose place is kept).
    role: &'static str,
    raft: String,
    client: String,
    http: String,
    /// Number of entries of the leader's log that the member is not known to have.
    lag_entries: Option<u64>,
    /// Milliseconds since the leader sent the latest message that the member answered; absent if it answered none in
    /// this term.
    silent_ms: Option<u64>,
}

impl Member {
    fn of(member: &mc_client::Member, leader: Option<NodeId>) -> Self {
        let is_leader = Some(member.node) == leader;
        Self {
            id: member.node.to_string(),
            role: match (is_leader, member.voter) {
                (true, _) => "leader",
                (false, true) => "voter",
                (false, false) if member.http_address.is_empty() => "left",
                (false, false) => "learner",
            },
            raft: member.raft_address.clone(),
            client: member.client_address.clone(),
            http: member.http_address.clone(),
            lag_entries: member.lag_entries,
            silent_ms: member.silent.map(|silent| u64::try_from(silent.as_millis()).unwrap_or(u64::MAX)),
        }
    }

    fn votes(&self) -> bool {
        matches!(self.role, "leader" | "voter")
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
        let client = connect::client_of(global).await?;
        anyhow::Ok(client.admin())
    };
    match command {
        // A rescue works on a data directory and needs no cluster.
        MembersCommand::Rescue(args) => rescue::rescue(args, output).await,
        MembersCommand::List => {
            let admin = leader().await?;
            let listed = Listed { members: list(&admin.list_members().await?) };
            output.result(&listed, || table(&listed.members, output));
            let healthy = listed.members.iter().all(|member| member.is_up() && member.votes());
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

/// Adds a master and waits until it has its vote.
async fn add(admin: &Admin, address: &str, patience: Duration, output: Output) -> Result<Ended> {
    let added = admin.add_member(address).await?;
    let deadline = Instant::now() + patience;
    let mut said = Instant::now();
    loop {
        let reply = admin.list_members().await?;
        let leader = reply.leader.as_ref().map(|leader| leader.node);
        let Some(member) = reply.members.iter().find(|member| member.node == added.node) else {
            bail!("{} was removed by another command while it caught up", added.node);
        };
        let (votes, late) = (member.voter, Instant::now() >= deadline);
        if votes || late {
            let member = Member::of(member, leader);
            if let Some(warning) = votes.then(|| no_spare(&list(&reply))).flatten() {
                note(&warning);
            }
            output.result(&member, || match votes {
                true => format!("{} at {} is a voter", member.id, member.raft),
                false => format!(
                    "{} at {} has joined and lacks {} log entries; it becomes a voter once it has them (watch it \
                     with mcctl members list)",
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
            format!(
                "removed {node}; stop its process (`mcctl members add` would take it in again, with its data)"
            )
        }
        false => format!("{node} was no member any more"),
    });
    if leaves_one(&members, node) {
        note(
            "one master is left: while it is down there is no leader, and if its disk is lost, so is the index; \
             add masters with `mcctl members add`",
        );
    }
    Ok(Ended::Well)
}

/// Says why the cluster can lose no more master after one was added, if so.
///
/// This is a warning and not a refusal: one voter more needs at most one more for a majority, so an added voter that is
/// up never lowers the number of failures that the cluster survives, and a dead voter is replaced by adding first.
fn no_spare(members: &[Member]) -> Option<String> {
    let voters: Vec<_> = members.iter().filter(|member| member.votes()).collect();
    let down: Vec<_> = voters.iter().filter(|voter| !voter.is_up()).collect();
    let (of, up) = (voters.len(), voters.len() - down.len());
    let majority = of / 2 + 1;
    if up > majority {
        return None;
    }
    let names: Vec<_> = down.iter().map(|voter| format!("{} at {}", voter.id, voter.raft)).collect();
    Some(match names.as_slice() {
        [] => format!("all {of} masters are needed for a majority: add another one with `mcctl members add`"),
        names => format!(
            "the cluster can lose no more master: {up} of {of} are up, and {majority} are a majority; start {}, or \
             remove what is gone for good with `mcctl members remove`",
            names.join(", ")
        ),
    })
}

/// Returns whether exactly one voter remains of `members` without `node`.
fn leaves_one(members: &[mc_client::Member], node: NodeId) -> bool {
    let voters: Vec<_> = members.iter().filter(|member| member.voter).collect();
    voters.len() == 2 && voters.iter().any(|voter| voter.node == node)
}

fn list(reply: &Members) -> Vec<Member> {
    let leader = reply.leader.as_ref().map(|leader| leader.node);
    reply.members.iter().map(|member| Member::of(member, leader)).collect()
}

/// Finds the one member that `text` names: by its id, by at least the first 6 digits of its id, or by a host with or
/// without one of its ports.
fn find(members: &[mc_client::Member], text: &str) -> Result<NodeId> {
    let at =
        |address: &str| address == text || address.rsplit_once(':').is_some_and(|(host, _)| host == text);
    let named = |member: &&mc_client::Member| {
        (text.len() >= ID_DIGITS && member.node.to_string().starts_with(text))
            || at(&member.raft_address)
            || at(&member.client_address)
            || at(&member.http_address)
    };
    let found: Vec<_> = members.iter().filter(named).collect();
    match found[..] {
        [member] => Ok(member.node),
        [] => {
            let known: Vec<_> =
                members.iter().map(|member| format!("{} at {}", member.node, member.raft_address)).collect();
            bail!(
                "no member is `{text}`; the members are {} (the first {ID_DIGITS} digits of an id are enough)",
                known.join(", ")
            );
        }
        _ => {
            let which: Vec<_> = found.iter().map(|member| member.node.to_string()).collect();
            bail!("`{text}` is more than one member: {}; name its id", which.join(", "));
        }
    }
}

fn table(members: &[Member], output: Output) -> String {
    let row = |member: &Member| {
        let tone = if member.is_up() { Tone::Good } else { Tone::Bad };
        let heard = match member.silent_ms {
            Some(ms) => format!("{:.1} s ago", ms as f64 / 1e3),
            None => "never".to_owned(),
        };
        [
            member.id.clone(),
            member.role.to_owned(),
            member.raft.clone(),
            member.client.clone(),
            or_dash(member.lag_entries),
            output.paint(tone, &heard),
        ]
    };
    columns(["ID", "ROLE", "RAFT", "CLIENT", "LAG", "HEARD"], members.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, raft: &str) -> mc_client::Member {
        let mut member = mc_client::Member::default();
        (member.node, member.raft_address) = (NodeId(id), raft.to_owned());
        member
    }

    fn voter(id: u64, raft: &str) -> mc_client::Member {
        let mut voter = member(id, raft);
        voter.voter = true;
        voter
    }

    #[test]
    fn the_last_but_one_voter_that_goes_leaves_one() {
        let mut members = vec![voter(1, "a:1"), voter(2, "a:1"), member(3, "c:1")];
        assert!(leaves_one(&members, NodeId(1)));
        assert!(!leaves_one(&members, NodeId(3)), "it had no vote");
        members.push(voter(4, "a:1"));
        assert!(!leaves_one(&members, NodeId(1)));
    }

    #[test]
    fn an_added_master_that_leaves_no_spare_is_told_with_the_reason() {
        let cluster = |of: u64, down: u64| {
            let with_silence = |id| {
                let silent_ms = if id <= down { Some(5_000) } else { Some(0) };
                Member { silent_ms, ..Member::of(&voter(id, &format!("m{id}:1")), Some(NodeId(of))) }
            };
            no_spare(&(1..=of).map(with_silence).collect::<Vec<_>>())
        };
        assert_eq!(
            [cluster(3, 0), cluster(4, 0), cluster(5, 0), cluster(5, 1), cluster(6, 1)],
            [const { None }; 5]
        );
        let two = cluster(2, 0).unwrap();
        assert!(two.contains("all 2 masters are needed"), "{two}");
        let four = cluster(4, 1).unwrap();
        assert!(four.contains("3 of 4 are up") && four.contains("at m1:1"), "{four}");
        assert!(cluster(3, 1).unwrap().contains("2 of 3 are up"));
        assert!(!Member::of(&voter(9, "m9:1"), None).is_up(), "never heard");
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
        assert!(find("c:1").unwrap_err().contains("no member is `c:1`; the members are"));
        assert!(find("").is_err());
    }
}
