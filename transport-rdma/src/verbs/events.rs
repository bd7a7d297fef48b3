//! Waiting, on tokio's reactor, for what a device reports by file descriptor.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::device::Hca;
use super::queues::Inner;
use super::sys::{self, Plain as _, ibv_async_event};
use super::{last_errno, returned_errno};
use crate::device::{Channel, DeviceEvent, DeviceEvents};

/// Reads must not block, because the reactor's readiness may be out of date.
pub(super) fn set_nonblocking(fd: RawFd) -> Result<(), i32> {
    // SAFETY: asks for the flags of a descriptor.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(last_errno());
    }
    // SAFETY: sets the flags of a descriptor.
    returned_errno(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) })
}

/// A descriptor together with what owns it, so that it is not closed before the reactor forgets it.
#[derive(Debug)]
struct Owned<T> {
    fd: RawFd,
    owner: Arc<T>,
}

impl<T> AsRawFd for Owned<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.fd
    }
}

impl<T> Owned<T> {
    /// Watches a descriptor that is open as long as the owner exists.
    ///
    /// # Safety
    /// It is, and it is always the same file.
    unsafe fn watch(fd: RawFd, owner: Arc<T>) -> io::Result<AsyncFd<Self>> {
        // SAFETY: as the caller says.
        Ok(unsafe { AsyncFd::register_with_interest(Self { fd, owner }, Interest::READABLE) }?)
    }
}

/// How often the channel is read until it is empty.
const READ_ALL_EVERY: usize = 64;

/// A shard's completion channel.
#[derive(Debug)]
pub(super) struct VerbsChannel {
    fd: AsyncFd<Owned<Inner>>,
    /// How often one event was read, and no more.
    reads: usize,
}

impl VerbsChannel {
    pub(super) fn new(queues: Arc<Inner>) -> io::Result<Self> {
        // SAFETY: the channel's descriptor is open until the queues are dropped.
        Ok(Self { fd: unsafe { Owned::watch(queues.channel_fd(), queues) }?, reads: 0 })
    }
}

impl Channel for VerbsChannel {
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut ready = ready!(self.fd.poll_read_ready(cx))?;
        // One, although there may be others: they stay for later, and who is woken polls both queues. Reading once more, to
        // learn that there is none, would take another system call each time; and the reactor tells of edges, of which every
        // event makes one, whether or not those before were read.
        self.reads = (self.reads + 1) % READ_ALL_EVERY;
        let max = if self.reads == 0 { usize::MAX } else { 1 };
        let read = ready.get_inner().owner.read_events(max);
        ready.clear_ready();
        Poll::Ready(read.map(drop).map_err(io::Error::from_raw_os_error))
    }
}

/// A device's asynchronous events.
#[derive(Debug)]
pub(super) struct VerbsDeviceEvents(AsyncFd<Owned<Hca>>);

impl VerbsDeviceEvents {
    pub(super) fn new(hca: Arc<Hca>) -> io::Result<Self> {
        // SAFETY: an open context; the descriptor does not change.
        let fd = unsafe { (*hca.context()).async_fd };
        set_nonblocking(fd).map_err(io::Error::from_raw_os_error)?;
        // SAFETY: the context's descriptor is open until the device is dropped.
        Ok(Self(unsafe { Owned::watch(fd, hca) }?))
    }
}

impl DeviceEvents for VerbsDeviceEvents {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<DeviceEvent>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(cx))?;
            match next_event(&ready.get_inner().owner) {
                Ok(event) => return Poll::Ready(Ok(event)),
                Err(libc::EAGAIN) => ready.clear_ready(),
                Err(libc::EINTR) => {}
                Err(errno) => return Poll::Ready(Err(io::Error::from_raw_os_error(errno))),
            }
        }
    }
}

fn next_event(hca: &Hca) -> Result<DeviceEvent, i32> {
    let mut raw = ibv_async_event::zeroed();
    // SAFETY: an open context; the event is written on success.
    if unsafe { (hca.verbs().ibv_get_async_event)(hca.context(), &raw mut raw) } != 0 {
        return Err(last_errno());
    }
    // SAFETY: an event that was just read, whose object cannot be destroyed before it is acknowledged.
    let event = unsafe { translate(&raw) };
    // SAFETY: this event, once.
    unsafe { (hca.verbs().ibv_ack_async_event)(&raw mut raw) };
    Ok(event)
}

/// Translates an event into one without pointers.
///
/// # Safety
/// The event was read from a device and is not acknowledged yet.
unsafe fn translate(raw: &ibv_async_event) -> DeviceEvent {
    match raw.event_type {
        sys::IBV_EVENT_QP_FATAL | sys::IBV_EVENT_QP_REQ_ERR | sys::IBV_EVENT_QP_ACCESS_ERR => {
            // SAFETY: of these types, the element is a queue pair.
            let qp = unsafe { raw.element.qp };
            // SAFETY: which exists until the event is acknowledged.
            DeviceEvent::QpFailed { qp_num: unsafe { (*qp).qp_num } }
        }
        sys::IBV_EVENT_CQ_ERR => {
            // SAFETY: of this type, the element is a completion queue.
            let cq = unsafe { raw.element.cq };
            // SAFETY: which exists until the event is acknowledged.
            DeviceEvent::QueueFailed { queue_id: unsafe { (*cq).cq_context } as u64 }
        }
        sys::IBV_EVENT_SRQ_ERR => {
            // SAFETY: of this type, the element is a shared receive queue.
            let srq = unsafe { raw.element.srq };
            // SAFETY: which exists until the event is acknowledged.
            DeviceEvent::QueueFailed { queue_id: unsafe { (*srq).srq_context } as u64 }
        }
        sys::IBV_EVENT_DEVICE_FATAL => DeviceEvent::DeviceFailed,
        // SAFETY: of these types, the element is a port's number.
        sys::IBV_EVENT_PORT_ERR => DeviceEvent::PortDown { port: unsafe { port(raw) } },
        // SAFETY: as above.
        sys::IBV_EVENT_PORT_ACTIVE => DeviceEvent::PortUp { port: unsafe { port(raw) } },
        sys::IBV_EVENT_LID_CHANGE
        | sys::IBV_EVENT_PKEY_CHANGE
        | sys::IBV_EVENT_SM_CHANGE
        | sys::IBV_EVENT_CLIENT_REREGISTER
        // SAFETY: as above.
        | sys::IBV_EVENT_GID_CHANGE => DeviceEvent::PortChanged { port: unsafe { port(raw) } },
        // Connection and path events are of no use here, SRQ limits are not set, and Soft-RoCE does not tell of the last
        // request of a shared receive queue; what is newer than this program is for its log.
        code => DeviceEvent::Other { code },
    }
}

/// # Safety
/// The event's type is one about a port.
unsafe fn port(raw: &ibv_async_event) -> u8 {
    // SAFETY: as the caller says.
    u8::try_from(unsafe { raw.element.port_num }).unwrap_or(0)
}
