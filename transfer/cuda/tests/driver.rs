//! Recognises the memory of devices, and copies it, with a driver that keeps plain accesses out of it (see fake/libcuda.rs).
#![allow(unsafe_code, clippy::unwrap_used, reason = "a test")]

mod fake;

use std::ptr::NonNull;

use mc_cuda::{Cuda, Device, DeviceCopy, Stage, Towards};
use parking_lot::MutexGuard;

use crate::fake::{Fake, Memory};

const LEN: usize = 3 * 4096;

fn cuda() -> &'static Cuda {
    Cuda::of_this_process().unwrap().expect("it is loaded")
}

fn get() -> MutexGuard<'static, Fake> {
    Fake::get_after(|_| {
        let byte = 0u8;
        assert_eq!(cuda().device_of(&raw const byte as u64).unwrap(), None);
    })
}

fn device_of(memory: Memory) -> Device {
    cuda().device_of(memory.address()).unwrap().unwrap()
}

fn copy(memory: Memory, from: usize, at: usize, len: usize) -> DeviceCopy {
    DeviceCopy { device: device_of(memory), address: memory.address() + from as u64, at, len }
}

/// Host memory that is pinned.
struct Host {
    stage: Stage,
    bytes: Box<[u8]>,
}

impl Host {
    fn pin(device: Device) -> Self {
        let mut bytes = vec![0; LEN].into_boxed_slice();
        // SAFETY: the bytes are dropped after the stage.
        let stage = unsafe { Stage::new(device, NonNull::from(&mut *bytes).cast(), LEN) }.unwrap();
        Self { stage, bytes }
    }

    fn copy(&mut self, towards: Towards, copies: &[DeviceCopy]) -> Result<(), String> {
        // SAFETY: memory of devices that is never freed, and which nothing else uses.
        unsafe { self.stage.copy(towards, copies) }.map_err(|why| why.to_string())
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 4096 * 13) as u8).collect()
}

#[test]
fn an_address_is_of_the_device_that_it_was_allocated_on_or_of_the_host() {
    let fake = get();
    let (first, second, host) = (fake.allocate(LEN, 0), fake.allocate(2 * LEN, 1), [0u8; 8]);
    let ordinal = |address: u64| cuda().device_of(address).unwrap().map(|device| device.ordinal());
    assert_eq!(ordinal(first.address()), Some(0));
    assert_eq!(ordinal(second.address() + 2 * LEN as u64 - 1), Some(1));
    assert_eq!(ordinal(host.as_ptr() as u64), None);
    assert_eq!(ordinal(0), None);
    fake.fail(c"cuPointerGetAttributes", 0);
    let why = cuda().device_of(first.address()).unwrap_err().to_string();
    fake.fail(c"", 0);
    assert!(why.contains("the kind of an address") && why.contains("CUDA_ERROR_OF_A_TEST"), "{why}");
    assert_eq!(fake.calls(c"cuInit"), 1, "the engine's");
}

#[test]
fn a_stream_is_waited_for_in_the_context_of_its_device() {
    let fake = get();
    let (before, waits) = (fake.left(), fake.calls(c"cuStreamSynchronize"));
    let wait = |memory, stream| {
        // SAFETY: the driver knows its streams.
        unsafe { device_of(memory).wait_for(stream) }.map_err(|why| why.to_string())
    };
    let (first, second) = (fake.allocate(LEN, 0), fake.allocate(LEN, 1));
    wait(first, fake.stream(0)).unwrap();
    wait(second, fake.stream(1)).unwrap();
    assert_eq!(fake.calls(c"cuStreamSynchronize"), waits + 2);
    let why = wait(first, fake.stream(1)).unwrap_err();
    assert!(why.contains("wait for a stream") && why.contains("CUDA_ERROR_OF_A_TEST"), "{why}");
    assert_eq!(fake.left(), before);
}

#[test]
fn a_batch_of_copies_is_of_several_devices_and_done_when_it_returns() {
    let fake = get();
    let (before, bytes) = (fake.left(), pattern(LEN));
    let (one, two) = (fake.holding(&bytes, 1), fake.holding(&bytes[..100], 0));
    let mut host = Host::pin(device_of(one));
    let copies = [copy(one, 10, 0, 4000), copy(two, 0, 4000, 100), copy(one, 0, 4100, 1)];
    host.copy(Towards::Host, &copies).unwrap();
    assert_eq!(host.bytes[..4101], [&bytes[10..4010], &bytes[..100], &bytes[..1]].concat());

    host.bytes.fill(7);
    host.copy(Towards::Devices, &[copy(two, 1, 8000, 2), copy(one, LEN - 1, LEN - 1, 1)]).unwrap();
    assert_eq!(fake.bytes(two)[..4], [bytes[0], 7, 7, bytes[3]]);
    assert_eq!(fake.bytes(one)[LEN - 2..], [bytes[LEN - 2], 7]);
    drop(host);
    assert_eq!(fake.left(), before);
}

#[test]
fn a_copy_that_would_go_beyond_the_host_memory_panics() {
    let fake = get();
    let memory = fake.allocate(2 * LEN, 0);
    for (at, len) in [(LEN, 1), (0, LEN + 1), (usize::MAX, 2)] {
        let mut host = Host::pin(device_of(memory));
        let copies = [copy(memory, 0, at, len)];
        let run = std::panic::AssertUnwindSafe(|| host.copy(Towards::Host, &copies));
        std::panic::catch_unwind(run).unwrap_err();
    }
}

#[test]
fn a_copy_that_fails_leaves_none_under_way() {
    let fake = get();
    let memory = fake.allocate(LEN, 0);
    for (towards, function) in
        [(Towards::Host, c"cuMemcpyDtoHAsync_v2"), (Towards::Devices, c"cuMemcpyHtoDAsync_v2")]
    {
        let before = fake.left();
        let mut host = Host::pin(device_of(memory));
        fake.fail(function, 1);
        let why = host.copy(towards, &[copy(memory, 0, 0, 1), copy(memory, 1, 1, 1)]).unwrap_err();
        assert!(why.contains("CUDA cannot copy") && why.contains("CUDA_ERROR_OF_A_TEST"), "{why}");
        assert_eq!(fake.under_way(), 0);
        fake.fail(c"", 0);
        host.copy(towards, &[copy(memory, 0, 0, LEN)]).unwrap();
        drop(host);
        assert_eq!(fake.left(), before);
    }
}

#[test]
fn memory_of_a_copy_that_cannot_be_waited_for_is_never_used_again() {
    let fake = get();
    let (memory, before) = (fake.allocate(LEN, 0), fake.left());
    let mut host = Host::pin(device_of(memory));
    let copies = [copy(memory, 0, 0, LEN)];
    fake.fail(c"cuStreamSynchronize", 0);
    let why = host.copy(Towards::Host, &copies).unwrap_err();
    assert!(why.contains("wait for a copy") && why.contains("CUDA_ERROR_OF_A_TEST"), "{why}");
    fake.fail(c"", 0);
    assert!(host.stage.is_lost());
    let why = host.copy(Towards::Host, &copies).unwrap_err();
    assert!(why.contains("an earlier copy did not end"), "{why}");
    std::mem::forget(std::mem::take(&mut host.bytes));
    drop(host);
    // The driver frees them with the context, after whatever it does there.
    let [contexts, currents, pinned, streams, copies] = before;
    assert_eq!(fake.left(), [contexts + 1, currents, pinned + 1, streams + 1, copies]);
}

#[test]
fn nothing_is_left_of_memory_that_could_not_be_pinned_or_used() {
    let fake = get();
    let (memory, before) = (fake.allocate(LEN, 0), fake.left());
    let device = device_of(memory);
    let mut bytes = vec![0u8; LEN];
    for step in [c"cuDevicePrimaryCtxRetain", c"cuCtxPushCurrent_v2", c"cuMemHostRegister_v2"] {
        fake.fail(step, 0);
        // SAFETY: the bytes outlive the stage.
        unsafe { Stage::new(device, NonNull::from(&mut *bytes).cast(), LEN) }.unwrap_err();
        fake.fail(c"", 0);
        assert_eq!(fake.left(), before, "{step:?}");
    }
    let mut host = Host::pin(device);
    fake.fail(c"cuStreamCreate", 0);
    host.copy(Towards::Host, &[copy(memory, 0, 0, 1)]).unwrap_err();
    fake.fail(c"", 0);
    drop(host);
    assert_eq!(fake.left(), before);
}
