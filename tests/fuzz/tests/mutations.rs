//! Every fuzz target over mutated valid inputs, with fixed seeds: the same inputs on every run and every machine.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mc_fuzz::{TARGETS, Target};
use mc_testkit::Seeded;
use mc_transfer::fuzz::{Counting, most_held};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SEED: u64 = 20;
/// Mutations of each valid input, unless the time is over first.
const MUTATIONS: u64 = 20_000;
const AT_MOST: Duration = Duration::from_secs(8);
/// More than its valid inputs take, a target may hold so many bytes for each byte of its input, and so many besides.
const HELD_PER_BYTE: usize = 64;
const HELD_BESIDES: usize = 64 << 10;
/// So much is enough for every valid input: the largest are snapshots, which are read through buffers of 1 MiB.
const HELD_BY_VALID: usize = 16 << 20;
/// Numbers that lengths and counts are wrong by.
const TELLING: [u64; 8] = [0, 1, 0x7f, 0x80, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];

fn mutate(valid: &[Vec<u8>], rng: &mut Seeded) -> Vec<u8> {
    let pick = |rng: &mut Seeded| valid[rng.below(valid.len() as u64) as usize].clone();
    let mut bytes = pick(rng);
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        match rng.below(7) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            2 if at < bytes.len() => bytes[at] = rng.bits() as u8,
            3 => bytes.insert(at, rng.bits() as u8),
            4 => {
                // A part of this or another one, once more.
                let other = pick(rng);
                let from = rng.below(other.len() as u64 + 1) as usize;
                let len = rng.below(64) as usize;
                let piece = &other[from..other.len().min(from + len)];
                bytes.splice(at..at, piece.iter().copied());
            }
            5 => {
                let telling = TELLING[rng.below(8) as usize];
                let width = [1, 2, 4, 8][rng.below(4) as usize];
                let end = bytes.len().min(at + width);
                bytes.splice(at..end, telling.to_be_bytes()[8 - width..].iter().copied());
            }
            _ => {
                // A number of variable length.
                let telling = TELLING[rng.below(8) as usize];
                let mut varint = Vec::new();
                prost::encoding::encode_varint(telling, &mut varint);
                let end = bytes.len().min(at + 1);
                bytes.splice(at..end, varint);
            }
        }
    }
    bytes
}

/// Reads what is valid, and returns the most bytes that were held meanwhile.
fn read_valid(target: &Target, valid: &[Vec<u8>]) -> usize {
    let name = target.name;
    assert!(!valid.is_empty(), "{name} has nothing to begin with");
    let mut most = 0;
    for (number, input) in valid.iter().enumerate() {
        // What is made once for all inputs is made before it is counted.
        assert!((target.read)(input), "valid input {number} of {name} is not read: {input:?}");
        most = most.max(most_held(|| (target.read)(input)).1);
    }
    assert!(most <= HELD_BY_VALID, "{name} held {most} bytes to read its valid inputs");
    most
}

fn read_mutated(target: &Target) {
    let (name, valid) = (target.name, (target.valid)());
    let enough = read_valid(target, &valid) + HELD_BESIDES;
    let (began, mut rng) = (Instant::now(), Seeded::new(SEED));
    let (mut tried, mut read) = (0, 0);
    while tried < MUTATIONS * valid.len() as u64 && began.elapsed() < AT_MOST {
        let input = mutate(&valid, &mut rng);
        let Ok((could, held)) = catch_unwind(|| most_held(|| (target.read)(&input))) else {
            panic!("{name}: mutation {tried} of seed {SEED} panics: {input:?}");
        };
        assert!(
            held <= enough + HELD_PER_BYTE * input.len(),
            "{name}: mutation {tried} of seed {SEED} holds {held} bytes for its {}: {input:?}",
            input.len()
        );
        tried += 1;
        read += u64::from(could);
    }
    println!("{name}: {tried} mutations of {} inputs in {:?}, {read} read", valid.len(), began.elapsed());
}

#[test]
fn no_mutation_panics_or_takes_memory_out_of_proportion() {
    let next = AtomicUsize::new(0);
    let take = || TARGETS.get(next.fetch_add(1, Ordering::Relaxed));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(target) = take() {
                    read_mutated(target);
                }
            });
        }
    });
}

#[test]
fn each_target_is_found_by_its_name() {
    for target in TARGETS {
        assert!(
            std::ptr::fn_addr_eq(mc_fuzz::named(target.name).unwrap().read, target.read),
            "{}",
            target.name
        );
    }
    let error = mc_fuzz::named("comand").unwrap_err();
    assert!(error.starts_with("no target is called `comand`; there are command, entry"), "{error}");
}

#[test]
fn an_allocation_that_is_out_of_proportion_is_seen() {
    let (_, held) = most_held(|| drop(std::hint::black_box(Vec::<u64>::with_capacity(1 << 20))));
    assert!((8 << 20..9 << 20).contains(&held), "{held}");
    let (_, held) = most_held(|| (0..100).for_each(|_| drop(std::hint::black_box(vec![0u8; 1 << 10]))));
    assert!((1 << 10..2 << 10).contains(&held), "what is given back is not counted: {held}");
}
