//! Completion queues.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::abi;
use crate::device::Device;
use crate::error::VerbsError;
use crate::library::Verbs;

/// Maximum number of completions taken with one call.
const AT_ONCE: usize = 64;
/// Longest wait for a wake-up: longer ones end early.
const LONGEST: Duration = Duration::from_secs(3600);

/// A queue into which the requests of queue pairs complete, with a channel that wakes a waiting thread.
pub struct CompletionQueue {
    queue: NonNull<abi::ibv_cq>,
    channel: NonNull<abi::ibv_comp_channel>,
    device: Arc<Device>,
}

// SAFETY: libibverbs serializes calls on one queue itself.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Number that the request was posted with.
    pub id: u64,
    /// Number of its queue pair.
    pub pair: u32,
    /// Kind of the request, or why it failed.
    pub result: Result<Kind, Failure>,
}

/// Kind of a request that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request of this process.
    Sent,
    /// A message of the peer, with the number that it carries.
    Received(u32),
}

/// Why a request failed. Its queue pair is unusable then, and its other requests fail as well.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    status: u32,
    vendor: u32,
    /// The library's words for the status.
    text: &'static CStr,
}

impl Failure {
    /// Whether the request was only flushed: another one failed first, or this process ended the queue pair.
    #[must_use]
    pub fn is_flushed(self) -> bool {
        self.status == abi::IBV_WC_WR_FLUSH_ERR
    }

    /// Whether the peer refused the access: a key that is not valid any more, or bytes outside of its memory.
    #[must_use]
    pub fn is_refused_access(self) -> bool {
        self.status == abi::IBV_WC_REM_ACCESS_ERR
    }

    /// Whether the peer did not answer.
    #[must_use]
    pub fn is_silence(self) -> bool {
        self.status == abi::IBV_WC_RETRY_EXC_ERR
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, vendor, text } = self;
        write!(f, "{} (status {status}, vendor {vendor:#x})", text.to_string_lossy())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl CompletionQueue {
    /// Creates a queue of at least `entries` entries. It must never overflow: its queue pairs must have fewer requests
    /// under way together.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn new(device: &Arc<Device>, entries: u32) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: an open context.
        let channel = unsafe { (device.verbs().ibv_create_comp_channel)(device.context()) };
        let failed = || device.failed("make a completion channel", io::Error::last_os_error());
        let channel = NonNull::new(channel).ok_or_else(failed)?;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: an open context and its channel.
        let queue = unsafe {
            let vector = device.next_vector();
            (device.verbs().ibv_create_cq)(
                device.context(),
                entries,
                std::ptr::null_mut(),
                channel.as_ptr(),
                vector,
            )
        };
        let source = io::Error::last_os_error();
        let Some(queue) = NonNull::new(queue) else {
            // SAFETY: made above, and nothing uses it.
            unsafe { (device.verbs().ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(device.failed("make a completion queue", source));
        };
        let made = Self { queue, channel, device: device.clone() };
        rustix::io::ioctl_fionbio(made.as_fd(), true)
            .map_err(|error| device.failed("make a completion channel non-blocking", error.into()))?;
        Ok(Arc::new(made))
    }

    pub(crate) fn as_ptr(&self) -> *mut abi::ibv_cq {
        self.queue.as_ptr()
    }

    /// Appends the completions that there are to `into`.
    ///
    /// # Errors
    /// [`VerbsError`] when the queue is broken, which an overflow does.
    pub fn take(&self, into: &mut Vec<Completion>) -> Result<(), VerbsError> {
        loop {
            let mut taken = [abi::ibv_wc::default(); AT_ONCE];
            // SAFETY: a live queue, whose context has the operation, and room for as many completions as are asked for.
            let n = unsafe {
                let operations = &(*self.device.context()).ops;
                match operations.poll_cq {
                    Some(poll_cq) => poll_cq(self.as_ptr(), AT_ONCE as i32, taken.as_mut_ptr()),
                    None => -1,
                }
            };
            let Ok(n) = usize::try_from(n) else {
                return Err(self.device.failed("take completions", io::Error::other("the queue is broken")));
            };
            into.extend(taken[..n].iter().map(|done| completion(self.device.verbs(), done)));
            if n < AT_ONCE {
                return Ok(());
            }
        }
    }

    /// Asks for a wake-up at the next completion. Completions that came before cause no wake-up, so take them after
    /// this call.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn arm(&self) -> Result<(), VerbsError> {
        // SAFETY: a live queue, whose context has the operation.
        let done = unsafe {
            let operations = &(*self.device.context()).ops;
            operations.req_notify_cq.map_or(libc_enosys(), |arm| arm(self.as_ptr(), 0))
        };
        self.device.check("arm a completion queue", done)
    }

    /// Waits until an armed queue wakes, or `timeout` has passed. It may wake without a completion.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn wait(&self, timeout: Duration) -> Result<(), VerbsError> {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        let timeout = Timespec::try_from(timeout.min(LONGEST)).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(self.device.failed("wait for completions", error.into())),
        }
        self.clear();
        Ok(())
    }

    /// Clears the pending wake-ups. A caller that polls the queue's descriptor itself calls this afterwards.
    pub fn clear(&self) {
        let mut wakes = 0;
        loop {
            let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: a live channel that does not block, and room for the answer.
            let done = unsafe {
                (self.device.verbs().ibv_get_cq_event)(
                    self.channel.as_ptr(),
                    &raw mut queue,
                    &raw mut context,
                )
            };
            if done != 0 {
                break;
            }
            wakes += 1;
        }
        if wakes > 0 {
            // SAFETY: a live queue, the only one of its channel.
            unsafe { (self.device.verbs().ibv_ack_cq_events)(self.as_ptr(), wakes) };
        }
    }
}

/// Error number of an operation that a driver lacks.
fn libc_enosys() -> i32 {
    rustix::io::Errno::NOSYS.raw_os_error()
}

fn completion(verbs: &Verbs, done: &abi::ibv_wc) -> Completion {
    let abi::ibv_wc { status, opcode, vendor_err: vendor, .. } = *done;
    let result = if status != abi::IBV_WC_SUCCESS {
        // SAFETY: it returns a constant text for any number.
        let text = unsafe { CStr::from_ptr((verbs.ibv_wc_status_str)(status)) };
        Err(Failure { status, vendor, text })
    } else if opcode & abi::IBV_WC_RECV != 0 {
        let has_number = done.wc_flags & abi::IBV_WC_WITH_IMM != 0;
        Ok(Kind::Received(if has_number { u32::from_be(done.imm_data) } else { 0 }))
    } else {
        Ok(Kind::Sent)
    };
    Completion { id: done.wr_id, pair: done.qp_num, result }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel and its descriptor live as long as this value.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }
}

impl AsRawFd for CompletionQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.clear();
        // SAFETY: made in `new`; its queue pairs keep it, so there are none.
        let done = unsafe { (self.device.verbs().ibv_destroy_cq)(self.as_ptr()) };
        // SAFETY: as above, and its queue is gone.
        let done = if done == 0 {
            unsafe { (self.device.verbs().ibv_destroy_comp_channel)(self.channel.as_ptr()) }
        } else {
            done
        };
        if done != 0 {
            let error = io::Error::from_raw_os_error(done);
            tracing::error!(device = self.device.name(), %error, "cannot destroy a completion queue");
        }
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("device", &self.device.name()).finish_non_exhaustive()
    }
}
