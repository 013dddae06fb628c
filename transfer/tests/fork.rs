//! Processes that are forked from one with a store or a client, as engines do with their workers.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]
#![allow(unsafe_code)]

#[path = "common/mod.rs"]
mod common;

use std::io::Read as _;
use std::os::fd::AsRawFd as _;

use common::host::{Host, MIB, client, read};
use common::{pattern, soon};
use mc_transfer::{Seal, ShmAccess, Transport as _, WriteOp};
use mc_types::Access;

/// A child that stops after it has read all of `bytes`. It ends with the value.
struct Child(libc::pid_t);

impl Child {
    fn fork(bytes: &[u8]) -> Self {
        let (mut told, tell) = std::io::pipe().unwrap();
        // SAFETY: the child calls nothing but `write`, `pause` and `_exit`, which a child of a process with threads may.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let sum = bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte));
            // SAFETY: one byte, to a descriptor that the child has.
            unsafe {
                libc::write(tell.as_raw_fd(), (&raw const sum).cast(), 1);
                loop {
                    libc::pause();
                }
            }
        }
        assert!(child > 0);
        drop(tell);
        let (child, mut sum) = (Self(child), [0]);
        told.read_exact(&mut sum).expect("the child died at a byte");
        assert_eq!(sum[0], bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
        child
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child of this process that was not waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// Counts the mappings of the memory file in a process.
fn mappings(process: &str, file: &str) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let file = format!("memfd:{file} ");
    maps.lines().filter(|line| line.contains(&file)).count()
}

#[tokio::test]
async fn a_child_keeps_no_memory_of_a_store_and_reads_that_of_the_caller() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let (transport, _) = client(ShmAccess::SameUid);
    let mut memory = transport.allocate(MIB).unwrap();
    memory.as_mut_slice().copy_from_slice(&pattern(MIB, 1));
    let grant = host.grant(Access::Write, &[(0, MIB, 5)]);
    let ops = [WriteOp { range: 0, offset: 0, from: vec![memory.as_slice().into()] }];
    transport.write(&host.peer, &grant, &ops, Seal::Yes, soon()).await.remove(0).unwrap();
    read(&transport, &host, &host.peer, (0, MIB, 5)).await.unwrap();

    let files = [format!("mc-segment-{}", host.number), format!("mc-stamps-{}", host.number)];
    let files = [files[0].as_str(), &files[1], "mc-client"];
    // The store's and the client's of each, all in this process.
    assert_eq!(files.map(|file| mappings("self", file)), [2, 2, 2]);
    let child = Child::fork(memory.as_slice());
    assert_eq!(files.map(|file| mappings(&child.0.to_string(), file)), [0, 0, 1], "all but the caller's");
}
