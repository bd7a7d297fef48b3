//! Lent memory that servers write by themselves.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Waker};

use bytes::Bytes;
use farcall_core::bulk::{BulkWrite, Lend, Loan};
use farcall_core::client::{Call, Connector, Stub};
use farcall_core::codec::{Encode, Postcard, Raw, from_payload};
use farcall_core::payload::Encoder;
use farcall_core::region::Exportable;
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Method, Service, ServiceInfo};
use farcall_core::status::{Code, Result, Status};
use farcall_core::transport::words;
use farcall_rdma::{Registered, SharedExtent};
use tokio::sync::mpsc as channel;
use tokio::task::JoinHandle;

use crate::near::Near;
use crate::setup::{Elsewhere, Hosts, PATIENCE, Setup, block, runtime};

pub(crate) const LEN: usize = 100_000;

const CANARY: usize = 64;

/// A registered buffer of which a part is lent, with canaries around that part.
pub(crate) enum Page {
    Ours(Registered),
    /// A device may write to it.
    Shared(Arc<SharedExtent>),
    Taken,
}

/// The words of a buffer from those on that are lent.
struct LentWords(Arc<SharedExtent>);

impl AsRef<[AtomicU64]> for LentWords {
    fn as_ref(&self) -> &[AtomicU64] {
        &(*self.0).as_ref()[CANARY / 8..]
    }
}

impl Exportable for LentWords {}

impl Page {
    /// Takes memory of the client's device.
    pub(crate) async fn take(t: &Setup) -> Self {
        let taken = async {
            loop {
                if let Some(memory) = t.upgrade.take(LEN + 2 * CANARY) {
                    return memory;
                }
                tokio::task::yield_now().await;
            }
        };
        let mut memory = tokio::time::timeout(PATIENCE, taken).await.expect("there is no memory");
        memory.fill(0xc5);
        Self::Ours(memory)
    }

    /// Returns the whole buffer.
    fn whole(&mut self) -> &mut [u8] {
        match self {
            Self::Ours(memory) => &mut memory[..LEN + 2 * CANARY],
            _ => panic!("the memory is lent"),
        }
    }
}

impl Lend for Page {
    fn parts(&mut self) -> Vec<&mut [u8]> {
        vec![&mut self.whole()[CANARY..CANARY + LEN]]
    }

    fn share(&mut self) -> Vec<(Arc<dyn Exportable>, usize)> {
        let words = match std::mem::replace(self, Self::Taken) {
            Self::Ours(memory) => memory.share(),
            Self::Shared(words) => words,
            Self::Taken => unreachable!("it was lent when it was there"),
        };
        *self = Self::Shared(Arc::clone(&words));
        vec![(Arc::new(LentWords(words)), LEN)]
    }

    fn unshare(&mut self) {
        if let Self::Shared(words) = std::mem::replace(self, Self::Taken) {
            *self = Self::Ours(Registered::unshare(words).expect("a device has the words"));
        }
    }

    fn fill(&mut self, offset: usize, bytes: Bytes) -> Bytes {
        match self {
            Self::Shared(memory) => words::copy_in((**memory).as_ref(), CANARY + offset, &bytes),
            _ => self.whole()[CANARY + offset..][..bytes.len()].copy_from_slice(&bytes),
        }
        Bytes::new()
    }
}

fn info() -> Arc<ServiceInfo> {
    let methods = vec![Method::unary("borrow", "borrow")];
    Arc::new(ServiceInfo { name: "pages".into(), codec: "raw".into(), methods })
}

/// `borrow(loan)`, which the test handles. Its call has no end.
struct Pages {
    info: Arc<ServiceInfo>,
    arrived: channel::UnboundedSender<BulkWrite>,
}

impl Service for Pages {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, _: usize, request: IncomingCall) -> HandlerFuture {
        let _ = self.arrived.send(from_payload::<Postcard, BulkWrite>(request.payload).unwrap());
        Box::pin(std::future::pending())
    }
}

pub(crate) struct Lender {
    pub(crate) t: Setup,
    stub: Stub,
    arrived: channel::UnboundedReceiver<BulkWrite>,
}

impl Lender {
    pub(crate) fn new<C: Connector>(connector: impl FnOnce(Arc<ServerCore>) -> C) -> Self {
        let (arrived, arrivals) = channel::unbounded_channel();
        let t = Setup::on(&Hosts::new(), vec![Arc::new(Pages { info: info(), arrived })], connector);
        let stub = Stub::new(t.channel.clone(), info());
        Self { t, stub, arrived: arrivals }
    }

    /// Lends a page until the server writes it by itself.
    async fn lend_directly(&mut self) -> (JoinHandle<Result<Bytes>>, Loan<Page>, BulkWrite) {
        self.lend_this_directly(async |t| Page::take(t).await).await
    }

    /// Lends memory until the server writes it by itself.
    pub(crate) async fn lend_this_directly<M: Lend>(
        &mut self,
        take: impl AsyncFn(&Setup) -> M,
    ) -> (JoinHandle<Result<Bytes>>, Loan<M>, BulkWrite) {
        let direct = async {
            self.t.channel.connection().await.unwrap();
            loop {
                let (handle, loan) = BulkWrite::lend(take(&self.t).await);
                let mut arguments = Encoder::new().lending();
                Postcard::encode(&handle, &mut arguments).unwrap();
                let call: Call<Result<Bytes>, Raw> = self.stub.call(0, Ok(arguments.finish()));
                let call = tokio::spawn(call.into_future());
                let lent = self.arrived.recv().await.unwrap();
                // The device is done with so short a write when the writer looks for the first time.
                let at_once = pin!(lent.write(8, vec![1; 8])).poll(&mut Context::from_waker(Waker::noop()));
                if at_once.is_ready() {
                    return (call, loan, lent);
                }
                call.abort();
                let _ = call.await;
                loan.reclaim().await;
            }
        };
        tokio::time::timeout(PATIENCE, direct).await.expect("no write is direct")
    }
}

/// Takes the memory back, and looks at its canaries.
async fn reclaimed(loan: Loan<Page>) -> (Page, Vec<u8>) {
    looked_at(tokio::time::timeout(PATIENCE, loan.reclaim()).await.expect("it does not come back"))
}

pub(crate) fn looked_at(mut page: Page) -> (Page, Vec<u8>) {
    let whole = page.whole().to_vec();
    let canaries = whole[..CANARY].iter().chain(&whole[CANARY + LEN..]);
    assert!(canaries.copied().all(|byte| byte == 0xc5), "something was written beside what is lent");
    (page, whole)
}

/// Writes until that fails.
async fn flood(lent: BulkWrite) -> Status {
    for byte in (0..=u8::MAX).cycle() {
        if let Err(status) = lent.write(0, vec![byte; LEN]).await {
            return status;
        }
    }
    unreachable!("the loop has no end")
}

#[tokio::test]
async fn nothing_changes_in_reclaimed_memory_though_the_server_goes_on_writing() {
    let mut lender = Lender::new(|host| Near { host, cipher: None });
    for round in 0..20 {
        let (call, loan, lent) = lender.lend_directly().await;
        let links = lender.t.fabric.queue_pairs();
        let writing = tokio::spawn(flood(lent));
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        let (mut page, taken_back) = reclaimed(loan).await;
        let status = tokio::time::timeout(PATIENCE, writing).await.expect("it is written for ever").unwrap();
        assert_eq!(status.code(), Code::Cancelled, "{status}");
        assert!(page.whole() == taken_back, "it was written after it was reclaimed");
        assert_eq!(lender.t.fabric.queue_pairs(), links, "a link has failed");
    }
    lender.t.until(|t| t.bound() == 0).await;
}

#[tokio::test]
async fn a_write_by_the_device_is_copied_by_the_writer_alone() {
    let mut lender = Lender::new(|host| Near { host, cipher: None });
    let (call, loan, lent) = lender.lend_directly().await;
    let ends = [lender.t.channel.connection().await.unwrap(), lender.t.host.connections()[0].clone()];
    let copied = || ends.each_ref().map(|end| end.traffic().upgraded.bytes_copied);
    let before = copied();
    lent.write(0, vec![7; LEN]).await.unwrap();
    let [lender_copied, writer_copied] = [0, 1].map(|end| copied()[end] - before[end]);
    assert!(lender_copied < 1000 && writer_copied == LEN as u64, "{lender_copied}, {writer_copied}");
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    let (_, written) = reclaimed(loan).await;
    assert!(written[CANARY..CANARY + LEN] == [7; LEN]);
}

/// The server's program is stopped, so it does not answer the withdrawal. When it goes on it writes at first.
#[tokio::test]
async fn a_write_that_begins_after_the_memory_was_reclaimed_changes_nothing() {
    let (server, thread, stop) = runtime();
    let on_server = server.clone();
    let mut lender = Lender::new(|host| Elsewhere { host, runtime: on_server });
    let (call, loan, lent) = lender.lend_directly().await;
    let blocked = block(&server);
    // In front of everything that the server hears of from now on.
    let writing = server.spawn(flood(lent));
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    // The clock runs ahead when this runtime does nothing, also while it waits for other threads: so there is no limit.
    tokio::time::pause();
    let (mut page, taken_back) = looked_at(loan.reclaim().await);
    tokio::time::resume();
    drop(blocked);
    let status = tokio::time::timeout(PATIENCE, writing).await.expect("it is written for ever").unwrap();
    // The connection may have been closed, too, because the server was silent.
    assert!([Code::Cancelled, Code::Unavailable].contains(&status.code()), "{status}");
    assert!(page.whole() == taken_back, "it was written after it was reclaimed");
    drop((stop, lender));
    thread.join().unwrap();
}
