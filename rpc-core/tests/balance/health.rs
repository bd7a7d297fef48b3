//! Servers that say whether they serve.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use farcall_core::client::{Answers, RawChannel, Readiness, WatchHealth};
use farcall_core::config::BalancePolicy;
use farcall_core::status::{Code, Status};
use tokio::sync::mpsc;

use super::support::streaming::FromFn;
use super::support::{HANG, call, info, until};
use super::{Cluster, cluster, settings};

const HOUR: Duration = Duration::from_secs(3600);

/// The word of a server on whether it serves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Word {
    /// None yet.
    Silence,
    Serves(bool),
    /// Its answers end.
    End,
    Fails(Code),
}

use Word::{End, Fails, Serves, Silence};

/// A server that is asked. Each watch hears its word at first, and each later one.
#[derive(Debug)]
struct Says(Mutex<(Word, Vec<mpsc::UnboundedSender<Word>>)>, AtomicUsize);

impl Says {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new((Silence, Vec::new())), AtomicUsize::new(0)))
    }

    fn say(&self, word: Word) {
        let mut said = self.0.lock().unwrap();
        said.0 = word;
        // A watch may be over.
        said.1.retain(|watch| watch.send(word).is_ok());
    }

    /// Returns how often it was asked.
    fn asked(&self) -> usize {
        self.1.load(Ordering::Relaxed)
    }
}

impl WatchHealth for Says {
    /// Makes a call that hangs for as long as the answers are read, by which the server knows that it is asked.
    fn watch(&self, server: RawChannel) -> Answers {
        self.1.fetch_add(1, Ordering::Relaxed);
        let (tell, mut words) = mpsc::unbounded_channel();
        let mut said = self.0.lock().unwrap();
        tell.send(said.0).unwrap();
        said.1.push(tell);
        let mut asking = Box::pin(call(&server, &info("test"), HANG, "").into_future());
        Box::pin(FromFn(move |cx: &mut TaskContext<'_>| {
            if let Poll::Ready(failed) = asking.as_mut().poll(cx) {
                return Poll::Ready(Some(failed.map(|_| true)));
            }
            loop {
                match ready!(words.poll_recv(cx)) {
                    Some(Silence) => {}
                    Some(Serves(serves)) => return Poll::Ready(Some(Ok(serves))),
                    Some(Fails(code)) => {
                        return Poll::Ready(Some(Err(Status::new(code, "as it was told to"))));
                    }
                    Some(End) | None => return Poll::Ready(None),
                }
            }
        }))
    }
}

/// Returns servers that are asked, and that say this at first.
async fn asked(policy: BalancePolicy, connections: u32, words: &[Word]) -> (Cluster, Vec<Arc<Says>>) {
    let mut settings = settings(policy);
    settings.balance.connections = connections;
    let t = cluster(settings, words.len());
    // Servers that stay are asked as they were at first.
    t.endpoints.set(Vec::new());
    let says: Vec<_> = words.iter().map(|_| Says::new()).collect();
    for (says, word) in says.iter().zip(words) {
        says.say(*word);
    }
    let endpoint = |(index, says): (usize, &Arc<Says>)| t.endpoint(index).health(Some(says.clone()));
    t.endpoints.set(says.iter().enumerate().map(endpoint).collect());
    until("all are asked", || t.nodes.iter().all(|node| node.seen().hanging() == 1)).await;
    (t, says)
}

impl Cluster {
    /// Waits until exactly these servers say that they do not serve.
    async fn not_serving(&self, servers: &[usize]) {
        let mut states = self.channel.endpoints().unwrap();
        let are = |index: usize, readiness: &Readiness| {
            (*readiness == Readiness::NotServing) == servers.contains(&index)
        };
        let all = states
            .wait_for(|states| states.iter().enumerate().all(|(index, state)| are(index, &state.readiness)));
        // Ends at once where nothing else is due, because time is paused.
        tokio::time::timeout(HOUR, all).await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_serve_gets_no_calls_until_it_does() {
    for policy in [BalancePolicy::RoundRobin, BalancePolicy::LeastLoaded, BalancePolicy::ByKey] {
        for connections in [1, 2] {
            let (t, says) = asked(policy, connections, &[Serves(true); 3]).await;
            t.ready(3).await;
            assert!(t.share(60).await.iter().all(|share| *share > 0), "{policy:?}");
            says[1].say(Serves(false));
            t.not_serving(&[1]).await;
            let share = t.share(60).await;
            assert!(share[1] == 0 && share[0] > 0 && share[2] > 0, "{policy:?}: {share:?}");
            says[1].say(Serves(true));
            t.ready(3).await;
            assert!(t.share(60).await.iter().all(|share| *share > 0), "{policy:?}");
            assert!(says.iter().all(|says| says.asked() == 1), "one connection asks once");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn where_no_server_serves_all_get_calls() {
    let (t, says) = asked(BalancePolicy::RoundRobin, 1, &[Serves(false); 3]).await;
    t.not_serving(&[0, 1, 2]).await;
    assert_eq!(t.share(30).await, [10, 10, 10]);
    says[2].say(Serves(true));
    t.ready(1).await;
    assert_eq!(t.share(30).await, [0, 0, 30]);
    // A server that can't be reached is no better.
    t.nodes[2].kill();
    t.ready(0).await;
    assert_eq!(t.share(30).await, [15, 15, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_tell_gets_calls() {
    let (t, says) = asked(BalancePolicy::RoundRobin, 1, &[Silence; 4]).await;
    t.ready(4).await;
    assert_eq!(t.share(40).await, [10; 4], "none has answered yet");
    says.iter().for_each(|says| says.say(Serves(false)));
    t.not_serving(&[0, 1, 2, 3]).await;
    // An error takes the word back. An end does not: the server may be about to drain.
    for (says, word) in says.iter().zip([Fails(Code::Unimplemented), Fails(Code::NotFound), End, Silence]) {
        says.say(word);
    }
    t.not_serving(&[2, 3]).await;
    assert_eq!(t.share(40).await, [20, 20, 0, 0]);
    tokio::time::sleep(HOUR).await;
    let asked: Vec<_> = says.iter().map(|says| says.asked()).collect();
    assert_eq!((asked[0], asked[3]), (1, 1), "one can't tell, and the other may still");
    // Every 30 s, or a quarter earlier, and some times more in the beginning.
    assert!(asked[1..3].iter().all(|asked| (96..=165).contains(asked)), "{asked:?}");
    t.not_serving(&[2, 3]).await;
    says[1].say(Serves(false));
    t.not_serving(&[1, 2, 3]).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_drains_is_asked_no_more_and_asked_again_when_it_is_back() {
    let (t, says) = asked(BalancePolicy::RoundRobin, 1, &[Serves(true); 2]).await;
    t.ready(2).await;
    says[1].say(Serves(false));
    t.not_serving(&[1]).await;
    t.nodes[1].refuses.store(true, Ordering::Relaxed);
    // As the health service does it: the watch ends with the server's last word, and with the draining.
    says[1].say(End);
    let core = t.nodes[1].core();
    core.drain(HOUR).await;
    assert_eq!(t.nodes[1].seen().hanging(), 0);
    tokio::time::sleep(HOUR).await;
    assert_eq!(says[1].asked(), 1, "nobody is there");
    t.not_serving(&[]).await;

    // Its last word counts until the next.
    says[1].say(Silence);
    t.nodes[1].start();
    t.nodes[1].refuses.store(false, Ordering::Relaxed);
    t.not_serving(&[1]).await;
    assert_eq!(t.share(10).await, [10, 0]);
    until("it is asked", || says[1].asked() == 2).await;
    says[1].say(Serves(true));
    t.ready(2).await;
    assert_eq!(t.share(10).await, [5, 5]);
}

#[tokio::test(start_paused = true)]
async fn another_connection_asks_when_the_one_that_asks_ends() {
    let (t, says) = asked(BalancePolicy::RoundRobin, 3, &[Serves(true), Serves(false)]).await;
    let node = &t.nodes[1];
    until("all are connected", || node.core().connections().len() == 3).await;
    let first = node.core().connections();
    for (closed, connection) in first.iter().enumerate() {
        t.not_serving(&[1]).await;
        assert_eq!(t.share(4).await[0], 4, "all of them");
        connection.close("the test wants it");
        until("another is made, and one asks", || {
            let now = node.core().connections();
            let left = first[closed + 1..].iter().filter(|old| now.iter().any(|now| Arc::ptr_eq(now, old)));
            left.count() == 2 - closed && now.len() == 3 && node.seen().hanging() == 1
        })
        .await;
    }
    assert!((2..=4).contains(&says[1].asked()), "{}", says[1].asked());
    t.not_serving(&[1]).await;
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_is_gone_asks_no_more() {
    let (t, says) = asked(BalancePolicy::RoundRobin, 2, &[Serves(true); 2]).await;
    t.endpoints.set(vec![t.endpoint(0)]);
    until("one that is gone is not asked", || t.nodes[1].core().connections().is_empty()).await;
    assert_eq!((t.nodes[0].seen().hanging(), t.nodes[1].seen().hanging()), (1, 0));
    let Cluster { nodes, channel, .. } = t;
    drop(channel);
    until("all are closed", || nodes[0].core().connections().is_empty()).await;
    assert!(says.iter().all(|says| says.asked() == 1));
}
