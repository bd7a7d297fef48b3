//! Many streams of all kinds at once, by one connection and on several threads, some of them given up on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farcall::{Bytes, Channel, Result, Server, Stream, Streaming, stream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::{Map, all};

/// It takes far less.
const HANGS: Duration = Duration::from_secs(60);

#[farcall::service(package = "crowd")]
trait Crowd {
    fn count(&self, items: u64, bytes: u64) -> impl Stream<Item = Result<Bytes>>;
    async fn sum(&self, parts: Streaming<Bytes>) -> Result<u64>;
    async fn back(&self, parts: Streaming<Bytes>) -> Result<impl Stream<Item = Result<Bytes>>>;
    async fn len(&self, part: Bytes) -> Result<u64>;
}

/// How many handlers there are, and streams of theirs.
#[derive(Clone, Default)]
struct Here(Arc<(AtomicUsize, Notify)>);

struct Running(Here);

impl Here {
    fn enter(&self) -> Running {
        self.0.0.fetch_add(1, Ordering::Relaxed);
        Running(self.clone())
    }

    async fn all_gone(&self) {
        let (running, left) = &*self.0;
        while running.load(Ordering::Relaxed) > 0 {
            left.notified().await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let (running, left) = &*self.0.0;
        running.fetch_sub(1, Ordering::Relaxed);
        left.notify_one();
    }
}

fn part(i: u64, bytes: u64) -> Bytes {
    Bytes::from(vec![i as u8; bytes as usize])
}

fn parts(items: u64, bytes: u64) -> impl Stream<Item = Bytes> + Send + 'static {
    stream::iter((0..items).map(move |i| part(i, bytes)))
}

impl Crowd for Here {
    fn count(&self, items: u64, bytes: u64) -> impl Stream<Item = Result<Bytes>> {
        let running = self.enter();
        stream::iter((0..items).map(move |i| {
            let _ = &running;
            Ok(part(i, bytes))
        }))
    }

    async fn sum(&self, mut parts: Streaming<Bytes>) -> Result<u64> {
        let _running = self.enter();
        let mut sum = 0;
        while let Some(part) = parts.message().await? {
            sum += part.len() as u64;
        }
        Ok(sum)
    }

    async fn back(&self, parts: Streaming<Bytes>) -> Result<impl Stream<Item = Result<Bytes>>> {
        let running = self.enter();
        Ok(Map(parts, move |part| {
            let _ = &running;
            part
        }))
    }

    async fn len(&self, part: Bytes) -> Result<u64> {
        Ok(part.len() as u64)
    }
}

/// A call of the `n`th kind and size, that is given up in some cases.
async fn call(crowd: CrowdClient, n: u64) {
    let (items, bytes) = (n % 97, [0, 1, 64, 1000, 8192, 70_000][n as usize % 6]);
    let is_whole = |parts: &[Bytes]| {
        parts.len() as u64 == items && parts.iter().zip(0..).all(|(p, i)| *p == part(i, bytes))
    };
    match n / 6 % 7 {
        0 => assert!(is_whole(&all(crowd.count(items, bytes).await.unwrap()).await.0)),
        1 => assert_eq!(crowd.sum(parts(items, bytes)).await.unwrap(), items * bytes),
        2 => assert!(is_whole(&all(crowd.back(parts(items, bytes)).await.unwrap()).await.0)),
        3 => {
            let mut endless = crowd.count(u64::MAX, bytes).await.unwrap();
            for i in 0..items {
                assert_eq!(endless.message().await.unwrap().unwrap(), part(i, bytes));
            }
        }
        4 => {
            let mut endless = crowd.back(parts(u64::MAX, bytes)).await.unwrap();
            for i in 0..items {
                assert_eq!(endless.message().await.unwrap().unwrap(), part(i, bytes));
            }
        }
        5 => {
            let some_time = async {
                for _ in 0..items {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                sum = crowd.sum(parts(u64::MAX, bytes)) => panic!("the sum of an endless stream is {sum:?}"),
                () = some_time => {}
            }
        }
        _ => assert_eq!(crowd.len(part(1, bytes)).await.unwrap(), bytes),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_of_streams_comes_whole_or_leaves_nothing() {
    let here = Here::default();
    let server = Server::builder().add(CrowdServer::new(here.clone())).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let crowd = CrowdClient::new(Channel::connect(&address).await.unwrap());

    let mut calls = JoinSet::new();
    for n in 0..1500 {
        let call = tokio::time::timeout(HANGS, call(crowd.clone(), n));
        calls.spawn(async move { call.await.unwrap_or_else(|_| panic!("call {n} hangs")) });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    let gone = tokio::time::timeout(HANGS, here.all_gone()).await;
    assert!(gone.is_ok(), "{} handlers are still there", here.0.0.load(Ordering::Relaxed));
}
