//! Two engines, and what goes wrong between them.
#![allow(unsafe_code)]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use mc_engine::{Direction, Engine, Limits, Notice, Peer, Piece, Range, RegisterError, TransferError};

const HELLO: &[u8; 8] = b"mc-eng\x01\0";

fn engine() -> Engine {
    Engine::listen("127.0.0.1", Limits::default()).expect("there is a free port")
}

fn peer(engine: &Engine) -> Peer {
    peer_at(engine.address().port())
}

fn peer_at(port: u16) -> Peer {
    Peer { host: "127.0.0.1".to_owned(), port }
}

/// Bytes that differ from each other and from those of another seed.
fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31 + at / 251 + seed * 17) % 256) as u8).collect()
}

/// Memory that is shared by the engine for as long as the test lasts.
fn shared(engine: &Engine, bytes: Vec<u8>) -> &'static mut [u8] {
    let memory = bytes.leak();
    // SAFETY: leaked; the test looks at it between transfers only.
    unsafe { engine.register(memory.as_ptr() as usize, memory.len(), true) }.expect("it overlaps nothing");
    memory
}

/// A byte that another thread may be writing.
fn byte(memory: &[u8], at: usize) -> u8 {
    // SAFETY: inside of the slice.
    unsafe { std::ptr::read_volatile(&raw const memory[at]) }
}

fn address(memory: &[u8]) -> usize {
    memory.as_ptr() as usize
}

fn piece(local: &[u8], at: usize, remote: &[u8], remote_at: usize, len: usize) -> Piece {
    Piece { local: address(local) + at, remote: (address(remote) + remote_at) as u64, len }
}

fn transfer(
    engine: &Engine,
    peer: &Peer,
    direction: Direction,
    pieces: &[Piece],
) -> Result<(), TransferError> {
    // SAFETY: leaked memory, or addresses that the test knows to be none.
    unsafe { engine.transfer(peer, direction, pieces) }
}

#[test]
fn pieces_go_both_ways() {
    let (here, there) = (engine(), engine());
    let remote = shared(&there, bytes(1 << 20, 1));
    // Not registered: one's own memory need not be.
    let local = bytes(1 << 20, 2).leak();
    let expected = bytes(1 << 20, 1);

    let pieces: Vec<_> =
        (0..1 << 10).map(|n| piece(local, n << 10, remote, (1023 - n) << 10, 1 << 10)).collect();
    transfer(&here, &peer(&there), Direction::Read, &pieces).unwrap();
    for n in 0..1 << 10 {
        assert_eq!(local[n << 10..][..1 << 10], expected[(1023 - n) << 10..][..1 << 10], "piece {n}");
    }
    transfer(&here, &peer(&there), Direction::Write, &[piece(local, 0, remote, 0, 1 << 20)]).unwrap();
    assert!(local == remote);
    transfer(&here, &peer(&there), Direction::Write, &[]).unwrap();
    transfer(&here, &peer(&there), Direction::Write, &[piece(local, 0, &[], 0, 0)]).unwrap();
}

#[test]
fn more_pieces_than_one_request_has() {
    let (here, there) = (engine(), engine());
    let remote = shared(&there, vec![0; 20_000]);
    let local = bytes(20_000, 3).leak();
    let pieces: Vec<_> = (0..20_000).map(|n| piece(local, n, remote, n, 1)).collect();
    transfer(&here, &peer(&there), Direction::Write, &pieces).unwrap();
    assert!(local == remote);
}

#[test]
fn submitted_transfers_go_on_by_themselves() {
    let (here, there) = (engine(), engine());
    let remote = shared(&there, bytes(8 << 20, 4));
    let local = vec![0; 8 << 20].leak();
    let pieces = |n: usize| vec![piece(local, n << 20, remote, n << 20, 1 << 20)];
    // SAFETY: leaked memory.
    let submit = |n| unsafe { here.submit(peer(&there), Direction::Read, pieces(n)) }.unwrap();
    let submitted: Vec<_> = (0..8).map(submit).collect();
    submitted.into_iter().for_each(|transfer| transfer.wait().unwrap());
    assert!(local == remote);
}

#[test]
fn only_shared_memory_is_reached() {
    let (here, there) = (engine(), engine());
    let remote = shared(&there, vec![7; 100]);
    let own = vec![8; 100].leak();
    // SAFETY: leaked.
    unsafe { there.register(address(own), 100, false) }.unwrap();
    let local = vec![0; 200].leak();
    let unreachable = [
        piece(local, 0, remote, 50, 51),
        piece(local, 0, own, 0, 1),
        Piece { remote: 8, ..piece(local, 0, own, 0, 1) },
    ];
    for direction in [Direction::Read, Direction::Write] {
        for bad in unreachable {
            let pieces = [piece(local, 100, remote, 0, 1), bad];
            let refused = transfer(&here, &peer(&there), direction, &pieces);
            assert!(matches!(refused, Err(TransferError::Refused { .. })), "{refused:?}");
        }
    }
    assert!(remote.iter().all(|byte| *byte == 7) && own.iter().all(|byte| *byte == 8), "nothing was written");
    // On the same connection.
    transfer(&here, &peer(&there), Direction::Read, &[piece(local, 0, remote, 0, 100)]).unwrap();
    assert_eq!(
        here.first_of(&peer(&there)).unwrap(),
        Some(Range { address: address(remote) as u64, len: 100 })
    );
    assert_eq!(there.first_of(&peer(&here)).unwrap(), None);
}

#[test]
fn an_address_that_is_none_is_an_error_of_the_call() {
    let (here, there) = (engine(), engine());
    let remote = shared(&there, vec![7; 100]);
    for direction in [Direction::Read, Direction::Write] {
        let piece = Piece { local: 16, ..piece(&[], 0, remote, 0, 100) };
        let failed = transfer(&here, &peer(&there), direction, &[piece]);
        assert!(matches!(failed, Err(TransferError::NotOfTheHost(_))), "{failed:?}");
    }
    // Registered there, and no memory any more: the peer's side goes on, too.
    // SAFETY: the kernel alone would reach it, and finds nothing.
    unsafe { there.register(16, 100, true) }.unwrap();
    let local = vec![0; 100].leak();
    let lost = transfer(
        &here,
        &peer(&there),
        Direction::Read,
        &[Piece { remote: 16, ..piece(local, 0, remote, 0, 100) }],
    );
    assert!(matches!(lost, Err(TransferError::Lost { .. })), "{lost:?}");
    transfer(&here, &peer(&there), Direction::Read, &[piece(local, 0, remote, 0, 100)]).unwrap();
    assert_eq!(local, remote);
}

#[test]
fn a_peer_that_was_started_again_is_found_again() {
    let here = engine();
    let there = engine();
    let peer = peer(&there);
    here.probe(&peer).unwrap();
    drop(there);
    assert!(matches!(here.probe(&peer), Err(TransferError::NoConnection { .. })));
    // Another one at the same port, which ends the connection after an answer.
    let listener = TcpListener::bind(("127.0.0.1", peer.port)).unwrap();
    let (has_ended, ended) = std::sync::mpsc::channel();
    let served = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            answer_a_probe(&mut stream);
            drop(stream);
            has_ended.send(()).unwrap();
        }
    });
    for _ in 0..2 {
        here.probe(&peer).unwrap();
        ended.recv().unwrap();
    }
    served.join().unwrap();
}

/// Plays an engine to which a peer connects and sends a probe.
fn answer_a_probe(stream: &mut TcpStream) {
    stream.write_all(HELLO).expect("the peer is there");
    stream.read_exact(&mut [0; 16]).expect("it asks");
    stream.write_all(&[0; 16]).expect("it listens");
}

#[test]
fn a_transfer_whose_memory_is_unregistered_does_not_begin_again() {
    let here = engine();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = peer_at(listener.local_addr().unwrap().port());
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        answer_a_probe(&mut stream);
        // The request of the transfer gets no answer on this connection, and would get one on another.
        let _ = stream.read_to_end(&mut Vec::new());
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(HELLO);
        if stream.read_exact(&mut [0; 32]).is_ok() {
            let _ = stream.write_all(&[&[0; 8][..], &100u64.to_le_bytes(), &[9; 100]].concat());
        }
    });
    here.probe(&peer).unwrap();
    let local = vec![0; 100].leak();
    // SAFETY: leaked memory.
    unsafe { here.register(address(local), 100, true) }.unwrap();
    // SAFETY: leaked memory.
    let submitted =
        unsafe { here.submit(peer.clone(), Direction::Read, vec![piece(local, 0, local, 0, 100)]) }.unwrap();
    here.unregister(address(local)).unwrap();
    assert!(submitted.wait().is_err());
    assert_eq!(local, [0; 100]);
    // So that the other side ends.
    drop(TcpStream::connect(("127.0.0.1", peer.port)));
    drop(here);
    served.join().unwrap();
}

#[test]
fn memory_is_out_of_use_once_it_is_unregistered() {
    let there = engine();
    let remote = shared(&there, vec![0; 1 << 20]);
    // A peer that stops in the middle of a write.
    let mut stream = TcpStream::connect(there.address()).unwrap();
    stream.read_exact(&mut [0; 8]).unwrap();
    let mut request = vec![2, 0, 0, 0, 1, 0, 0, 0];
    request.extend((1u64 << 20).to_le_bytes());
    request.extend((address(remote) as u64).to_le_bytes());
    request.extend((1u64 << 20).to_le_bytes());
    request.extend([9; 1 << 16]);
    stream.write_all(&request).unwrap();
    while byte(remote, (1 << 16) - 1) != 9 {
        std::thread::yield_now();
    }
    there.unregister(address(remote)).unwrap();
    remote.fill(0);
    // Bytes that it sends from now on are dropped.
    while stream.write_all(&[9; 1 << 16]).is_ok() {}
    assert!(remote.iter().all(|byte| *byte == 0));
    assert_eq!(there.unregister(address(remote)), Err(RegisterError::Unknown(address(remote))));
}

#[test]
fn nothing_reaches_memory_once_the_engine_is_gone() {
    let (here, there) = (engine(), engine());
    let remote = shared(&there, bytes(64 << 20, 5));
    let local = vec![0; 64 << 20].leak();
    // SAFETY: leaked memory.
    let under_way =
        unsafe { here.submit(peer(&there), Direction::Read, vec![piece(local, 0, remote, 0, 64 << 20)]) }
            .unwrap();
    while byte(local, 1) == 0 && !under_way.is_finished() {
        std::thread::yield_now();
    }
    drop(here);
    local.fill(0);
    // It may have been done before.
    let _ = under_way.wait();
    assert!(local.iter().all(|byte| *byte == 0));
}

#[test]
fn each_call_ends_though_the_peer_says_nothing() {
    let limits = Limits { connect: Duration::from_millis(50), transfer: Duration::from_millis(50) };
    let here = Engine::listen("127.0.0.1", limits).unwrap();
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = peer_at(mute.local_addr().unwrap().port());
    let local = vec![0; 100].leak();
    let lost = transfer(&here, &peer, Direction::Read, &[piece(local, 0, local, 0, 100)]);
    assert!(
        matches!(&lost, Err(TransferError::Lost { why, .. }) if why.kind() == std::io::ErrorKind::TimedOut),
        "{lost:?}"
    );
    assert!(matches!(here.probe(&peer), Err(TransferError::Lost { .. })));

    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = peer_at(stranger.local_addr().unwrap().port());
    let saying =
        std::thread::spawn(move || stranger.accept().unwrap().0.write_all(b"SSH-2.0-other").unwrap());
    assert!(matches!(here.probe(&peer), Err(TransferError::Stranger { .. } | TransferError::Lost { .. })));
    saying.join().unwrap();
}

#[test]
fn nonsense_ends_a_connection_and_no_more() {
    let there = engine();
    let long = |kind: u8, ranges: u32, bytes: u64| {
        let mut request = vec![kind, 0, 0, 0];
        request.extend(ranges.to_le_bytes());
        request.extend(bytes.to_le_bytes());
        request
    };
    for request in
        [long(9, 0, 0), long(1, u32::MAX, 0), long(5, 0, u64::MAX), long(1, 0, 1), long(2, 0, u64::MAX)]
    {
        let mut stream = TcpStream::connect(there.address()).unwrap();
        stream.write_all(&request).unwrap();
        let mut said = Vec::new();
        // It ends, in whatever way.
        let _ = stream.read_to_end(&mut said);
        assert_eq!(said, HELLO, "{request:?}");
    }
    engine().probe(&peer(&there)).unwrap();
}

#[test]
fn notices_arrive_in_order_and_not_without_end() {
    let (here, there) = (engine(), engine());
    let notice = |n: usize| Notice { name: format!("name {n}"), message: "ärger".to_owned() };
    here.notify(&peer(&there), &notice(1)).unwrap();
    here.notify(&peer(&there), &notice(2)).unwrap();
    assert_eq!(there.notices(), [notice(1), notice(2)]);
    assert_eq!(there.notices(), []);
    let long = Notice { name: String::new(), message: "x".repeat(1 << 20) };
    assert!(matches!(here.notify(&peer(&there), &long), Err(TransferError::TooLong(_))));
    for n in 0..4_096 {
        here.notify(&peer(&there), &notice(n)).unwrap();
    }
    assert!(matches!(here.notify(&peer(&there), &notice(0)), Err(TransferError::Refused { .. })));
}

#[test]
fn a_name_without_an_address_is_an_error() {
    let peer = Peer { host: "no-such-host.invalid".to_owned(), port: 1 };
    assert!(matches!(engine().probe(&peer), Err(TransferError::NoAddress { .. })));
    let other = Engine::listen("no-such-host.invalid", Limits::default()).unwrap();
    engine().probe(&peer_at(other.address().port())).unwrap();
}
