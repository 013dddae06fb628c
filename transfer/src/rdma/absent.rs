//! Stand-ins for a build without RDMA: there are no values of these types, and only this module knows it.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use mc_types::Access;

use super::{DeviceReport, Direction, Failed, NoRdma, RdmaDevices, RdmaOptions};
use crate::areas::Reached;
use crate::checksum::RunningChecksum;
use crate::fence::CutOff;
use crate::mapping::Mapping;
use crate::segment::Segment;
use crate::wire::End;
use crate::{ReadBuffer, WriteBuffer};

/// The RDMA devices that this process uses, open. This build has no RDMA, so there are none.
#[derive(Debug)]
pub struct Rdma(Infallible);
pub(crate) struct Registered(Infallible);
pub(crate) struct Exposed(Infallible);
pub(crate) struct StoreEnd(Infallible);
pub(crate) struct Part(Infallible);
pub(crate) struct ClientEnd(Infallible);
pub(crate) struct Buffers(Infallible);
pub(crate) struct Staging(Infallible);

impl Rdma {
    /// Opens the devices.
    ///
    /// # Errors
    /// Always.
    pub fn open(_: &RdmaDevices, _: &RdmaOptions) -> Result<Arc<Self>, NoRdma> {
        Err(NoRdma("this build has no RDMA: build it with --features rdma".to_owned()))
    }

    /// Reports on the devices.
    ///
    /// # Errors
    /// Always.
    pub fn report(devices: &RdmaDevices, options: &RdmaOptions) -> Result<Vec<DeviceReport>, NoRdma> {
        Self::open(devices, options).map(|rdma| match rdma.0 {})
    }

    /// Names of the devices that can be used at present.
    pub fn names(&self) -> std::iter::Empty<&str> {
        match self.0 {}
    }

    /// Why other devices can't be used at present.
    #[must_use]
    pub fn lacks(&self) -> Vec<String> {
        match self.0 {}
    }

    pub(crate) fn len(&self) -> usize {
        match self.0 {}
    }

    /// Maximum number of queue pairs of a store.
    #[must_use]
    pub fn max_pairs(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn why_not(&self) -> Option<NoRdma> {
        match self.0 {}
    }

    /// Why none of the devices can be used at present.
    #[must_use]
    pub fn why_down(&self) -> Option<NoRdma> {
        match self.0 {}
    }
}

impl Registered {
    pub(crate) fn new(rdma: &Arc<Rdma>) -> Self {
        match rdma.0 {}
    }

    pub(crate) unsafe fn register(&self, _: std::ptr::NonNull<u8>, _: u64) -> Result<(), NoRdma> {
        match self.0 {}
    }

    pub(crate) fn count(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn lacks(&self) -> Option<NoRdma> {
        match self.0 {}
    }
}

impl Exposed {
    pub(crate) fn beside_buffers(rdma: &Rdma, _: &Arc<Mapping>, _: Access) -> Result<Self, NoRdma> {
        match rdma.0 {}
    }

    pub(crate) fn key(&self, _: usize) -> Option<u32> {
        match self.0 {}
    }
}

impl StoreEnd {
    pub(crate) fn new(rdma: &Arc<Rdma>, _: &[Arc<Segment>], _: &End) -> Result<(Self, End), NoRdma> {
        match rdma.0 {}
    }

    pub(crate) fn probe_part(&self, _: u64, _: (u64, u32)) -> Part {
        match self.0 {}
    }

    pub(crate) fn add_parts(
        &self,
        _: &Segment,
        _: (u64, u64),
        _: (u64, u32),
        _: &mut Vec<Part>,
    ) -> Result<(), NoRdma> {
        match self.0 {}
    }

    pub(crate) async fn carry<K>(
        &mut self,
        _: Direction,
        _: &[Part],
        _: K,
        _: &CutOff,
        _: impl Future<Output = ()>,
        _: (Duration, impl Fn()),
    ) -> Result<(), Failed> {
        match self.0 {}
    }
}

impl ClientEnd {
    pub(crate) fn new(rdma: &Rdma, _: usize, _: u16) -> Result<Self, NoRdma> {
        match rdma.0 {}
    }

    pub(crate) fn end(&self) -> End {
        match self.0 {}
    }

    pub(crate) fn connect(&self, _: &End) -> Result<(), NoRdma> {
        match self.0 {}
    }
}

impl Staging {
    pub(crate) async fn take(rdma: &Arc<Rdma>, _: u64) -> Result<Self, NoRdma> {
        match rdma.0 {}
    }
}

impl Buffers {
    pub(crate) fn new(end: ClientEnd, _: Staging, _: Vec<Reached>) -> Self {
        match end.0 {}
    }

    pub(crate) fn way(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn parts(&self, _: u64, _: u64) -> std::iter::Empty<(u64, u64, u32, u64)> {
        match self.0 {}
    }

    pub(crate) fn put(&mut self, _: u64, _: WriteBuffer<'_>, _: &mut RunningChecksum) {
        match self.0 {}
    }

    pub(crate) fn get(&self, _: u64, _: &mut ReadBuffer<'_>) {
        match self.0 {}
    }

    pub(crate) async fn told(&mut self, _: u32) -> Result<(), NoRdma> {
        match self.0 {}
    }

    pub(crate) fn check(&self) -> Result<(), NoRdma> {
        match self.0 {}
    }

    pub(crate) async fn abandon(self) -> Result<(), NoRdma> {
        match self.0 {}
    }

    pub(crate) fn settled(self) -> Option<ClientEnd> {
        match self.0 {}
    }
}
