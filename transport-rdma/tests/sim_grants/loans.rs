//! Lent memory that servers read by themselves.

use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::bulk::{BulkRead, LendParts, Loan};
use farcall_core::client::{Call, Stub};
use farcall_core::codec::{Encode, Postcard, Raw, from_payload};
use farcall_core::config::Limits;
use farcall_core::payload::{Encoder, Payload};
use farcall_core::service::{HandlerFuture, IncomingCall, Method, Reply, Service, ServiceInfo};
use farcall_core::status::{Code, Result};
use farcall_core::transport::Cipher;
use tokio::sync::{mpsc as channel, oneshot};
use tokio::task::JoinHandle;

use crate::near::Near;
use crate::setup::{Elsewhere, Hosts, Log, PATIENCE, Setup, runtime};

pub(crate) const LEN: usize = 300_000;

fn info() -> Arc<ServiceInfo> {
    let methods = vec![Method::unary("page", "page"), Method::unary("borrow", "borrow")];
    Arc::new(ServiceInfo { name: "pages".into(), codec: "raw".into(), methods })
}

/// A loan that has arrived. Its call is answered when the sender is used or dropped.
pub(crate) type Arrived = (BulkRead, oneshot::Sender<()>);

/// `page() -> LEN bytes`, and `borrow(loan)`, which the test handles.
struct Pages {
    info: Arc<ServiceInfo>,
    arrived: channel::UnboundedSender<Arrived>,
}

impl Service for Pages {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        if method == 0 {
            return Box::pin(async { Reply::Ok(Payload::from_body(expected(0..LEN).into())) });
        }
        let loan = from_payload::<Postcard, BulkRead>(request.payload).unwrap();
        let (answer, answered) = oneshot::channel();
        let _ = self.arrived.send((loan, answer));
        Box::pin(async move {
            let _ = answered.await;
            Reply::Ok(Payload::default())
        })
    }
}

pub(crate) fn expected(range: Range<usize>) -> Vec<u8> {
    range.map(|at| (at % 251) as u8).collect()
}

/// A client that lends memory which its device can reach: what it has received from the server.
pub(crate) struct Lender {
    pub(crate) t: Setup,
    stub: Stub,
    arrived: channel::UnboundedReceiver<Arrived>,
    pub(crate) page: Bytes,
}

impl Lender {
    pub(crate) async fn new(cipher: Option<Cipher>) -> Self {
        let (arrived, arrivals) = channel::unbounded_channel();
        let pages = Pages { info: info(), arrived };
        let t = Setup::on(&Hosts::new(), vec![Arc::new(pages)], |host| Near { host, cipher });
        Self::of(t, arrivals).await
    }

    async fn of(t: Setup, arrived: channel::UnboundedReceiver<Arrived>) -> Self {
        let stub = Stub::new(t.channel.clone(), info());
        // The first ones may come before there is memory for a READ.
        let page = async {
            loop {
                let before = t.reads.load(Ordering::Relaxed);
                let call: Call<Result<Bytes>, Raw> = stub.call(0, Ok(Payload::default()));
                let page = call.await.unwrap();
                if t.reads.load(Ordering::Relaxed) > before {
                    return page;
                }
            }
        };
        let page = tokio::time::timeout(PATIENCE, page).await.expect("nothing long is read");
        assert!(page[..] == expected(0..LEN));
        Self { t, stub, arrived, page }
    }

    fn lend(&self) -> (JoinHandle<Result<Bytes>>, Loan<Bytes>) {
        self.lend_this(self.page.clone())
    }

    /// Lends memory in a call.
    pub(crate) fn lend_this<M: LendParts + Sync>(&self, memory: M) -> (JoinHandle<Result<Bytes>>, Loan<M>) {
        let (handle, loan) = BulkRead::lend(memory);
        (self.call_with(&handle), loan)
    }

    /// Makes a call that lends what the handle names.
    pub(crate) fn call_with(&self, handle: &BulkRead) -> JoinHandle<Result<Bytes>> {
        tokio::spawn(self.call(handle).into_future())
    }

    fn call(&self, handle: &BulkRead) -> Call<Result<Bytes>, Raw> {
        let mut arguments = Encoder::new().lending();
        Postcard::encode(handle, &mut arguments).unwrap();
        self.stub.call(1, Ok(arguments.finish()))
    }

    pub(crate) async fn arrived(&mut self) -> Arrived {
        tokio::time::timeout(PATIENCE, self.arrived.recv()).await.expect("it does not arrive").unwrap()
    }

    /// Lends memory again and again, until the server reads it by itself.
    pub(crate) async fn lend_until_direct<M>(
        &mut self,
        lend: impl Fn() -> (BulkRead, Loan<M>),
    ) -> (JoinHandle<Result<Bytes>>, Loan<M>, Arrived) {
        loop {
            let (handle, loan) = lend();
            let call = self.call_with(&handle);
            drop(handle);
            let arrived = self.arrived().await;
            if self.is_direct(&arrived.0).await {
                return (call, loan, arrived);
            }
            drop(arrived);
            call.await.unwrap().unwrap();
            tokio::time::timeout(PATIENCE, loan.reclaim()).await.expect("it does not come back");
        }
    }

    async fn lend_directly(&mut self) -> (JoinHandle<Result<Bytes>>, Loan<Bytes>, Arrived) {
        let page = self.page.clone();
        self.lend_until_direct(|| BulkRead::lend(page.clone())).await
    }

    /// So short a read takes a READ only if the server does it by itself.
    pub(crate) async fn is_direct(&self, loan: &BulkRead) -> bool {
        let before = self.t.reads.load(Ordering::Relaxed);
        assert!(loan.read(5..9).await.unwrap()[..] == expected(5..9));
        self.t.reads.load(Ordering::Relaxed) > before
    }
}

async fn reclaimed(loan: Loan<Bytes>) {
    let page = tokio::time::timeout(PATIENCE, loan.reclaim()).await.expect("it does not come back");
    assert_eq!(page.len(), LEN);
}

#[tokio::test]
async fn lent_memory_is_read_while_its_lender_does_nothing() {
    let (server, thread, stop) = runtime();
    let (arrived, arrivals) = channel::unbounded_channel();
    let pages = Pages { info: info(), arrived };
    let on_server = server.clone();
    let connector = |host| Elsewhere { host, runtime: on_server };
    let t = Setup::on(&Hosts::new(), vec![Arc::new(pages)], connector);
    let mut lender = Lender::of(t, arrivals).await;
    let (call, loan, (lent, answer)) = lender.lend_directly().await;
    let (done, is_done) = mpsc::channel();
    server.spawn(async move {
        for range in [0..1, 3..17, 0..8192, 7..90_000, 65_530..200_001, 0..LEN] {
            let read = lent.read(range.clone()).await.unwrap();
            assert!(read[..] == expected(range.clone()), "{range:?}");
        }
        done.send(answer).unwrap();
    });
    // This blocks the lender's only thread.
    let answer = is_done.recv_timeout(PATIENCE).expect("the lender must act");
    drop(answer);
    call.await.unwrap().unwrap();
    reclaimed(loan).await;
    drop(stop);
    thread.join().unwrap();
}

#[tokio::test]
async fn a_read_by_the_device_copies_nothing() {
    let mut lender = Lender::new(None).await;
    let (call, loan, (lent, answer)) = lender.lend_directly().await;
    let ends = [lender.t.channel.connection().await.unwrap(), lender.t.host.connections()[0].clone()];
    let copied = || ends.each_ref().map(|end| end.traffic().upgraded.bytes_copied);
    let before = copied();
    assert!(lent.read(..).await.unwrap()[..] == expected(0..LEN));
    drop(answer);
    call.await.unwrap().unwrap();
    reclaimed(loan).await;
    let copied: Vec<_> = copied().iter().zip(before).map(|(now, before)| now - before).collect();
    // The answer is short, and is copied.
    assert!(copied.iter().all(|bytes| *bytes < 1000), "{copied:?} of {LEN} bytes");
}

#[tokio::test]
async fn memory_of_a_call_that_was_not_made_comes_back_when_no_device_reaches_it() {
    let (arrived, arrivals) = channel::unbounded_channel();
    let pages = Pages { info: info(), arrived };
    let one_call = |limits: &mut Limits| limits.concurrent_calls = 1;
    let near = |host| Near { host, cipher: None };
    let t = Setup::limited(&Hosts::new(), vec![Arc::new(pages)], one_call, near);
    let mut lender = Lender::of(t, arrivals).await;
    let (call, loan, (lent, answer)) = lender.lend_directly().await;
    assert_eq!(lender.t.bound(), 1);
    // It finds no place, although the device was told already to let the server read the memory.
    let (handle, not_made) = BulkRead::lend(lender.page.clone());
    let mut without_a_place = pin!(lender.call(&handle).into_future());
    let (mut coming_back, mut cx) = (pin!(reclaimed(not_made)), Context::from_waker(Waker::noop()));
    assert!(without_a_place.as_mut().poll(&mut cx).is_pending());
    drop(handle);
    assert!(coming_back.as_mut().poll(&mut cx).is_pending(), "the device had no turn to let go of it");
    coming_back.await;
    assert_eq!(lender.t.bound(), 1);
    assert!(lender.arrived.try_recv().is_err(), "the call was made");
    assert!(lent.read(..).await.unwrap()[..] == expected(0..LEN));
    drop((lent, answer));
    call.await.unwrap().unwrap();
    reclaimed(loan).await;
}

#[tokio::test]
async fn a_read_by_the_device_counts_until_it_is_dropped() {
    let mut lender = Lender::new(None).await;
    let (_call, _loan, (lent, _answer)) = lender.lend_directly().await;
    let host = lender.t.host.clone();
    let held = || host.memory().peers().iter().map(|peer| peer.arguments).sum::<usize>();
    let (before, of_call) = (lender.t.reads.load(Ordering::Relaxed), held());
    let read = lent.read(..).await.unwrap();
    assert!(lender.t.reads.load(Ordering::Relaxed) > before, "it is read by messages");
    assert!((LEN..LEN + LEN / 8).contains(&(held() - of_call)), "{} besides {of_call}", held());
    drop(read);
    assert_eq!(held(), of_call);
}

#[tokio::test]
async fn memory_comes_back_after_the_answer_and_is_read_no_more() {
    let mut lender = Lender::new(None).await;
    let links = lender.t.fabric.queue_pairs();
    for _ in 0..20 {
        let (call, loan, (lent, answer)) = lender.lend_directly().await;
        drop(answer);
        call.await.unwrap().unwrap();
        // The handler has answered and keeps the handle, so the lender has to ask for the memory.
        reclaimed(loan).await;
        let status = lent.read(..).await.unwrap_err();
        assert_eq!(status.code(), Code::Cancelled, "{status}");
    }
    lender.t.until(|t| t.bound() == 0).await;
    assert_eq!(lender.t.fabric.queue_pairs(), links, "a link has failed");
}

#[tokio::test]
async fn a_handler_that_is_done_gives_the_memory_back_with_its_answer() {
    let mut lender = Lender::new(None).await;
    let (call, loan, (lent, answer)) = lender.lend_directly().await;
    drop(lent);
    // The call goes on, and nothing else keeps the window.
    lender.t.until(|t| t.bound() == 0).await;
    assert!(!call.is_finished());
    drop(answer);
    call.await.unwrap().unwrap();
    reclaimed(loan).await;
}

#[tokio::test]
async fn a_read_that_is_under_way_when_the_call_ends_harms_no_link() {
    let mut lender = Lender::new(None).await;
    let links = lender.t.fabric.queue_pairs();
    for is_cancelled in [true, false] {
        let (call, loan, (lent, answer)) = lender.lend_directly().await;
        lender.t.fabric.set_reads(false);
        let reading = tokio::spawn(async move { lent.read(..).await });
        tokio::task::yield_now().await;
        if is_cancelled {
            call.abort();
            assert!(call.await.unwrap_err().is_cancelled());
        } else {
            drop(answer);
            call.await.unwrap().unwrap();
        }
        let mut reclaiming = std::pin::pin!(reclaimed(loan));
        for _ in 0..100 {
            tokio::select! {
                biased;
                () = &mut reclaiming => panic!("the server's device reads the memory"),
                () = tokio::task::yield_now() => {}
            }
        }
        lender.t.fabric.set_reads(true);
        let (read, ()) = tokio::join!(reading, reclaiming);
        assert!(read.unwrap().unwrap()[..] == expected(0..LEN));
    }
    lender.t.until(|t| t.bound() == 0).await;
    assert_eq!(lender.t.fabric.queue_pairs(), links, "a link has failed");
}

#[tokio::test]
async fn a_read_whose_link_fails_goes_on_by_messages() {
    let mut lender = Lender::new(None).await;
    let (call, loan, (lent, answer)) = lender.lend_directly().await;
    lender.t.fabric.set_reads(false);
    let reading = tokio::spawn(async move { (lent.read(..).await, lent) });
    tokio::task::yield_now().await;
    lender.t.fabric.kill_qp(lender.t.fabric.queue_pairs()[0]);
    lender.t.fabric.set_reads(true);
    let (read, lent) = tokio::time::timeout(PATIENCE, reading).await.expect("the read is lost").unwrap();
    assert!(read.unwrap()[..] == expected(0..LEN));
    drop((lent, answer));
    call.await.unwrap().unwrap();
    reclaimed(loan).await;
}

#[tokio::test]
async fn more_loans_than_there_are_windows_are_read_by_messages() {
    let mut lender = Lender::new(None).await;
    let (first_call, first_loan, first) = lender.lend_directly().await;
    let (mut calls, mut loans, mut lent) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..80 {
        let (call, loan) = lender.lend_this(vec![lender.page.slice(..LEN / 2), lender.page.slice(LEN / 2..)]);
        calls.push(call);
        loans.push(loan);
        lent.push(lender.arrived().await);
    }
    let mut direct = 0;
    for (loan, _) in &lent {
        direct += usize::from(lender.is_direct(loan).await);
        assert!(loan.read(..).await.unwrap()[..] == expected(0..LEN));
    }
    assert!((1..=31).contains(&direct), "{direct}");
    // One, and two for each of the others. The last long message has one until its reader has said that it has read.
    lender.t.until(|t| t.bound() == 1 + 2 * direct).await;
    drop((first, lent));
    first_call.await.unwrap().unwrap();
    reclaimed(first_loan).await;
    for (call, loan) in calls.into_iter().zip(loans) {
        call.await.unwrap().unwrap();
        tokio::time::timeout(PATIENCE, loan.reclaim()).await.expect("it does not come back");
    }
    lender.t.until(|t| t.bound() == 0).await;
}

#[tokio::test]
async fn a_sealed_link_lets_nobody_read_what_is_lent() {
    let mut lender = Lender::new(Some(Cipher::Aes256Gcm)).await;
    for _ in 0..10 {
        let (call, loan) = lender.lend();
        let (lent, answer) = lender.arrived().await;
        assert!(!lender.is_direct(&lent).await);
        assert!(lent.read(..).await.unwrap()[..] == expected(0..LEN));
        drop((lent, answer));
        call.await.unwrap().unwrap();
        reclaimed(loan).await;
    }
}

#[tokio::test]
async fn a_device_without_windows_exposes_no_loan() {
    let hosts = Hosts::new();
    let (arrived, arrivals) = channel::unbounded_channel();
    let pages = Pages { info: info(), arrived };
    let t = Setup::on(&hosts, vec![Arc::new(pages)], |host| Near { host, cipher: None });
    // The page lies in registered memory.
    let mut lender = Lender::of(t, arrivals).await;
    lender.t.until(|t| t.bound() == 0).await;
    let windows = lender.t.fabric.windows();
    hosts.client.limit_windows(0);
    let (log, _guard) = Log::start();
    for _ in 0..20 {
        let (call, loan) = lender.lend();
        let (lent, answer) = lender.arrived().await;
        assert!(!lender.is_direct(&lent).await);
        assert_eq!(lender.t.fabric.windows(), windows);
        drop((lent, answer));
        call.await.unwrap().unwrap();
        reclaimed(loan).await;
    }
    assert_eq!(lender.t.channel.connection().await.unwrap().transport().name, "rdma");
    let said = log.said();
    assert_eq!(said.matches("the peer can't use some regions or lent memory by itself").count(), 1, "{said}");
    assert!(said.contains("ibv_alloc_mw"), "{said}");

    // When there are windows again, loans get some.
    hosts.client.limit_windows(4096);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(1)).await;
    tokio::time::resume();
    let again = tokio::time::timeout(PATIENCE, lender.lend_directly()).await;
    let (call, loan, arrived) = again.expect("no read is direct");
    drop(arrived);
    call.await.unwrap().unwrap();
    reclaimed(loan).await;
}
