use mc_index::Response;
use mc_log::{LogId, Proposal};
use openraft::errors::{ClientWriteError, RaftError};

use super::RaftNode;

/// Error of a proposal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// This node does not lead: nothing was done.
    #[error("this master does not lead")]
    NotLeader,
    /// The command may have been applied, or may still be.
    #[error("{0}")]
    Unknown(String),
}

impl RaftNode {
    /// Writes a command to the logs of a majority, and returns its place and its response once it is applied here.
    ///
    /// # Errors
    /// [`ProposeError::NotLeader`] is definite: openraft redirects before it appends. An entry that was
    /// appended and lost its leader is reported as discarded, which is [`ProposeError::Unknown`]: a later leader may
    /// have it.
    pub fn propose(
        &self,
        proposal: Proposal,
    ) -> impl Future<Output = Result<(LogId, Response), ProposeError>> + Send + use<> {
        let raft = self.raft().clone();
        async move {
            match raft.client_write(proposal).await {
                Ok(written) => Ok((written.log_id, written.data)),
                Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => {
                    Err(ProposeError::NotLeader)
                }
                Err(RaftError::APIError(err)) => Err(ProposeError::Unknown(err.to_string())),
                // Raft gives this answer to everything in flight when it stops. The entry may be on other masters by
                // then.
                Err(RaftError::Fatal(err)) => {
                    Err(ProposeError::Unknown(format!("this master has stopped: {err}")))
                }
            }
        }
    }
}
