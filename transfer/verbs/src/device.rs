//! Devices and their protection domains.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::abi;
use crate::choice::{Gid, GidKind, LinkLayer, Port, PortState};
use crate::error::VerbsError;
use crate::library::Verbs;

/// Limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of one registration.
    pub region_bytes: u64,
    /// Maximum number of registrations.
    pub regions: u32,
    /// Maximum number of queue pairs.
    pub queue_pairs: u32,
    /// Maximum number of requests in a queue.
    pub requests: u32,
    /// Maximum number of local pieces of a request.
    pub pieces: u32,
    /// Maximum number of reads that a queue pair has under way at once.
    pub reads_at_once: u8,
    /// Maximum number of completions in a queue.
    pub completions: u32,
}

/// An asynchronous event of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A port, its addresses or its keys changed, by the name of the event: read them again.
    Changed(String),
    /// The device has failed. It must be opened again.
    Fatal,
    /// Something that needs no action.
    Other,
}

/// An open device.
pub struct Device {
    verbs: &'static Verbs,
    context: NonNull<abi::ibv_context>,
    name: String,
    /// Number of completion queues so far.
    queues: AtomicUsize,
}

// SAFETY: libibverbs serializes calls on one context itself.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The list of devices, freed at the end.
struct List {
    verbs: &'static Verbs,
    devices: NonNull<*mut abi::ibv_device>,
    len: usize,
}

impl List {
    fn get() -> Result<Self, VerbsError> {
        let verbs = Verbs::get()?;
        let mut len = 0;
        // SAFETY: `len` outlives the call, which writes the number of devices to it.
        let devices = unsafe { (verbs.ibv_get_device_list)(&raw mut len) };
        let devices =
            NonNull::new(devices).ok_or_else(|| VerbsError::NoDevices(io::Error::last_os_error()))?;
        Ok(Self { verbs, devices, len: usize::try_from(len).unwrap_or(0) })
    }

    fn named(&self) -> impl Iterator<Item = (*mut abi::ibv_device, String)> {
        (0..self.len).map(|nth| {
            // SAFETY: the list has `len` devices, which live as long as the list. Their names end with a zero byte.
            unsafe {
                let device = *self.devices.as_ptr().add(nth);
                let name = CStr::from_ptr((self.verbs.ibv_get_device_name)(device));
                (device, name.to_string_lossy().into_owned())
            }
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list of `get`; devices that were opened stay open.
        unsafe { (self.verbs.ibv_free_device_list)(self.devices.as_ptr()) };
    }
}

/// Lets libibverbs keep its own memory from children of this process, where the kernel does not copy pinned pages at a fork (Linux
/// before 5.12): otherwise the first write after a fork would separate the queues here from those that a device reads.
///
/// It works before the first registration only, and a second call changes nothing.
fn prepare_for_forks(verbs: &Verbs) {
    // SAFETY: both only look at the process, or change the library's bookkeeping.
    let failed = unsafe {
        match (verbs.ibv_is_fork_initialized)() {
            abi::IBV_FORK_DISABLED => (verbs.ibv_fork_init)(),
            _ => 0,
        }
    };
    if failed != 0 {
        let error = io::Error::from_raw_os_error(failed.abs());
        tracing::warn!(%error, "cannot prepare RDMA for forks: a process that forks must not use RDMA");
    }
}

/// Returns the names of this machine's devices.
///
/// # Errors
/// [`VerbsError::NoDevices`] when the system has no RDMA.
pub fn device_names() -> Result<Vec<String>, VerbsError> {
    Ok(List::get()?.named().map(|(_, name)| name).collect())
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        let verbs = Verbs::get()?;
        prepare_for_forks(verbs);
        let list = List::get()?;
        let Some((device, _)) = list.named().find(|(_, there)| there == name) else {
            let there: Vec<_> = list.named().map(|(_, name)| name).collect();
            let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
            return Err(VerbsError::NoSuchDevice { name: name.to_owned(), there });
        };
        // SAFETY: a device of the list, which is still there.
        let context = unsafe { (verbs.ibv_open_device)(device) };
        let source = io::Error::last_os_error();
        match NonNull::new(context) {
            Some(context) => {
                Ok(Arc::new(Self { verbs, context, name: name.to_owned(), queues: AtomicUsize::new(0) }))
            }
            None => Err(VerbsError::Step { device: name.to_owned(), step: "open it", source }),
        }
    }

    /// Name of the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Completion vector for another queue. Each vector interrupts a processor of its own, so queues take them by turns.
    pub(crate) fn next_vector(&self) -> i32 {
        // SAFETY: an open context.
        let vectors = unsafe { self.context.as_ref() }.num_comp_vectors.max(1);
        let nth = self.queues.fetch_add(1, Ordering::Relaxed) % vectors.unsigned_abs() as usize;
        i32::try_from(nth).unwrap_or(0)
    }

    pub(crate) fn verbs(&self) -> &'static Verbs {
        self.verbs
    }

    pub(crate) fn context(&self) -> *mut abi::ibv_context {
        self.context.as_ptr()
    }

    pub(crate) fn failed(&self, step: &'static str, source: io::Error) -> VerbsError {
        VerbsError::Step { device: self.name.clone(), step, source }
    }

    /// Turns the result of a call that returns an error number into an error of this device.
    pub(crate) fn check(&self, step: &'static str, errno: i32) -> Result<(), VerbsError> {
        if errno == 0 { Ok(()) } else { Err(self.failed(step, io::Error::from_raw_os_error(errno.abs()))) }
    }

    fn attributes(&self) -> Result<abi::ibv_device_attr, VerbsError> {
        let mut attributes = abi::ibv_device_attr::default();
        // SAFETY: an open context, and room for the answer.
        let done = unsafe { (self.verbs.ibv_query_device)(self.context(), &raw mut attributes) };
        self.check("ask for its limits", done)?;
        Ok(attributes)
    }

    /// Returns the next event, or `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn next_event(&self, timeout: Duration) -> Result<Option<Event>, VerbsError> {
        // SAFETY: an open context, whose descriptor stays open as long.
        let events = unsafe { BorrowedFd::borrow_raw(self.context.as_ref().async_fd) };
        let failed = |error: rustix::io::Errno| self.failed("wait for its events", error.into());
        let mut fds = [PollFd::new(&events, PollFlags::IN)];
        match poll(&mut fds, Timespec::try_from(timeout).ok().as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(failed(error)),
        }
        let mut event = abi::ibv_async_event::default();
        // SAFETY: an open context, and room for the answer. There is an event, so the call does not wait.
        if unsafe { (self.verbs.ibv_get_async_event)(self.context(), &raw mut event) } != 0 {
            return Err(self.failed("take an event", io::Error::last_os_error()));
        }
        let kind = event.event_type;
        // SAFETY: taken above. Queue pairs and queues wait for this before they end.
        unsafe { (self.verbs.ibv_ack_async_event)(&raw mut event) };
        Ok(Some(match kind {
            abi::IBV_EVENT_PORT_ACTIVE
            | abi::IBV_EVENT_PORT_ERR
            | abi::IBV_EVENT_LID_CHANGE
            | abi::IBV_EVENT_PKEY_CHANGE
            | abi::IBV_EVENT_SM_CHANGE
            | abi::IBV_EVENT_CLIENT_REREGISTER
            | abi::IBV_EVENT_GID_CHANGE => {
                // SAFETY: it returns a constant text.
                let name = unsafe { CStr::from_ptr((self.verbs.ibv_event_type_str)(kind)) };
                Event::Changed(name.to_string_lossy().into_owned())
            }
            abi::IBV_EVENT_DEVICE_FATAL => Event::Fatal,
            _ => Event::Other,
        }))
    }

    /// Returns its limits.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn limits(&self) -> Result<Limits, VerbsError> {
        let attributes = self.attributes()?;
        let most = |limit: i32| u32::try_from(limit).unwrap_or(0);
        Ok(Limits {
            region_bytes: attributes.max_mr_size,
            regions: most(attributes.max_mr),
            queue_pairs: most(attributes.max_qp),
            requests: most(attributes.max_qp_wr),
            pieces: most(attributes.max_sge),
            reads_at_once: u8::try_from(attributes.max_qp_rd_atom.min(attributes.max_qp_init_rd_atom))
                .unwrap_or(u8::MAX),
            completions: most(attributes.max_cqe),
        })
    }

    /// Returns its ports, with their addresses.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn ports(&self) -> Result<Vec<Port>, VerbsError> {
        let attributes = self.attributes()?;
        let gids = self.gids()?;
        let port = |number: u8| {
            let mut port = abi::ibv_port_attr::default();
            // SAFETY: an open context, and room for the answer. The symbol fills the fields of its first version only; the
            // others stay zero.
            let done = unsafe { (self.verbs.ibv_query_port)(self.context(), number, &raw mut port) };
            self.check("ask for a port", done)?;
            let is_ethernet = port.link_layer == abi::IBV_LINK_LAYER_ETHERNET;
            Ok(Port {
                number,
                state: match port.state {
                    abi::IBV_PORT_ACTIVE => PortState::Active,
                    abi::IBV_PORT_DOWN => PortState::Not("down"),
                    abi::IBV_PORT_INIT => PortState::Not("initializing"),
                    abi::IBV_PORT_ARMED => PortState::Not("armed"),
                    _ => PortState::Not("not active"),
                },
                link: if is_ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand },
                // 1 stands for 256 bytes; each further number doubles the size.
                active_mtu: 128 << port.active_mtu.min(5),
                lid: port.lid,
                gids: gids.iter().filter(|(of, _)| *of == number).map(|(_, gid)| *gid).collect(),
            })
        };
        (1..=attributes.phys_port_cnt).map(port).collect()
    }

    /// Returns the index of a partition key in the table of a port; `None` if it is not there. The highest bit, which tells full
    /// members, does not count.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn pkey_index(&self, port: u8, pkey: u16) -> Result<Option<u16>, VerbsError> {
        let mut attributes = abi::ibv_port_attr::default();
        // SAFETY: as in `ports`.
        let done = unsafe { (self.verbs.ibv_query_port)(self.context(), port, &raw mut attributes) };
        self.check("ask for a port", done)?;
        for index in 0..attributes.pkey_tbl_len {
            let mut found = 0;
            // SAFETY: an open context, and room for the answer.
            let done = unsafe {
                (self.verbs.ibv_query_pkey)(self.context(), port, i32::from(index), &raw mut found)
            };
            if done == 0 && (u16::from_be(found) ^ pkey) & 0x7fff == 0 {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Returns the addresses of all ports, each with the number of its port.
    fn gids(&self) -> Result<Vec<(u8, Gid)>, VerbsError> {
        const MOST: usize = 1024;
        let mut entries = vec![abi::ibv_gid_entry::default(); MOST];
        // SAFETY: an open context, and room for `MOST` entries of this size.
        let found = unsafe {
            (self.verbs._ibv_query_gid_table)(
                self.context(),
                entries.as_mut_ptr(),
                MOST,
                0,
                size_of::<abi::ibv_gid_entry>(),
            )
        };
        let Ok(found) = usize::try_from(found) else {
            let errno = i32::try_from(found.unsigned_abs()).unwrap_or(0);
            return Err(self.failed("ask for its addresses", io::Error::from_raw_os_error(errno)));
        };
        let gid = |entry: &abi::ibv_gid_entry| {
            let kind = match entry.gid_type {
                0 => GidKind::InfiniBand,
                1 => GidKind::RoceV1,
                _ => GidKind::RoceV2,
            };
            let gid = Gid { index: u8::try_from(entry.gid_index).ok()?, kind, bytes: entry.gid.raw };
            Some((u8::try_from(entry.port_num).ok()?, gid))
        };
        Ok(entries.iter().take(found).filter_map(gid).collect())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: opened in `open`; everything made of it keeps it, so nothing is left.
        let done = unsafe { (self.verbs.ibv_close_device)(self.context()) };
        if done != 0 {
            tracing::error!(
                device = self.name,
                "cannot close the RDMA device: {}",
                io::Error::last_os_error()
            );
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name).finish()
    }
}

/// A protection domain: memory is registered in one, and queue pairs reach only memory of theirs.
pub struct Domain {
    domain: NonNull<abi::ibv_pd>,
    device: Arc<Device>,
}

// SAFETY: libibverbs serializes calls on one domain itself.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// Creates a domain on a device.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn new(device: Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: an open context.
        let domain = unsafe { (device.verbs.ibv_alloc_pd)(device.context()) };
        let failed = || device.failed("make a protection domain", io::Error::last_os_error());
        let domain = NonNull::new(domain).ok_or_else(failed)?;
        Ok(Arc::new(Self { domain, device }))
    }

    /// The device that it is on.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn as_ptr(&self) -> *mut abi::ibv_pd {
        self.domain.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: made in `new`; its regions and queue pairs keep it, so there are none.
        let done = unsafe { (self.device.verbs.ibv_dealloc_pd)(self.as_ptr()) };
        if done != 0 {
            let error = io::Error::from_raw_os_error(done);
            tracing::error!(device = self.device.name, %error, "cannot free an RDMA protection domain");
        }
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Domain").field(&self.device.name).finish()
    }
}
