//! Streams that are always ready, beside other tasks of their runtime.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// Streams that one task reads or sends, each of which has a window of 1,024 items at first.
const STREAMS: usize = 16;

/// The most items of a task's turn: some dozens of items for each of the 128 messages that it could take from a channel.
const MOST: u64 = 48 * 128;

#[farcall::service(package = "test")]
trait Numbers {
    /// All that there are, without ever waiting.
    fn numbers(&self) -> impl Stream<Item = Result<u32>>;
    /// The sum of the first thousand, once the others were sent, too.
    async fn sum(&self, numbers: Streaming<u32>) -> Result<u32>;
}

#[derive(Clone, Default)]
struct Ready {
    made: Arc<AtomicU64>,
}

impl Ready {
    fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let made = self.made.clone();
        (0..).inspect(move |_| {
            made.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Makes all that the windows hold, and says how many were made in one turn at most.
    async fn all_made(&self) -> u64 {
        most_in_one_turn(&self.made, 1024 * STREAMS as u64).await
    }
}

impl Numbers for Ready {
    fn numbers(&self) -> impl Stream<Item = Result<u32>> {
        stream::iter(self.numbers().map(Ok))
    }

    async fn sum(&self, mut numbers: Streaming<u32>) -> Result<u32> {
        self.all_made().await;
        let mut sum = 0;
        for _ in 0..1000 {
            sum += numbers.message().await?.unwrap();
        }
        Ok(sum)
    }
}

/// The most that a counter grows by between two turns of a task that always wants one.
async fn most_in_one_turn(counter: &Arc<AtomicU64>, until: u64) -> u64 {
    let counter = counter.clone();
    let turns = tokio::spawn(async move {
        let (mut seen, mut most) = (counter.load(Ordering::Relaxed), 0);
        poll_fn(move |cx| {
            let now = counter.load(Ordering::Relaxed);
            (seen, most) = (now, most.max(now - seen));
            if seen >= until {
                return Poll::Ready(most);
            }
            // Unlike tokio's own way to yield, which lets dozens of turns of others pass.
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    });
    turns.await.unwrap()
}

/// All of them in the same task.
async fn together<F: Future>(futures: impl Iterator<Item = F>) {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    poll_fn(|cx| {
        futures.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        if futures.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[tokio::test]
async fn a_reader_of_a_full_stream_leaves_others_their_turns() {
    let ready = Ready::default();
    let client = NumbersClient::in_process(ready.clone());
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        streams.push(client.numbers().await.unwrap());
    }
    ready.all_made().await;
    let read = Arc::<AtomicU64>::default();
    let reads = read.clone();
    tokio::spawn(together(streams.into_iter().map(move |mut numbers| {
        let reads = reads.clone();
        async move {
            for n in 0..10_000 {
                assert_eq!(numbers.message().await.unwrap(), Some(n));
                reads.fetch_add(1, Ordering::Relaxed);
            }
        }
    })));
    let most = most_in_one_turn(&read, 10_000 * STREAMS as u64).await;
    assert!(most <= MOST, "{most} in one turn");
}

#[tokio::test]
async fn a_sender_of_items_that_are_always_there_leaves_others_their_turns() {
    let ready = Ready::default();
    let client = NumbersClient::in_process(ready.clone());
    let numbers = ready.clone();
    let calls = tokio::spawn(together((0..STREAMS).map(move |_| {
        let (client, numbers) = (client.clone(), numbers.numbers());
        async move { assert_eq!(client.sum(stream::iter(numbers)).await.unwrap(), 499_500) }
    })));
    let most = ready.all_made().await;
    assert!(most <= MOST, "{most} in one turn");
    calls.await.unwrap();
}

/// A reader of several streams takes an item of each in turn, as `select_all` does.
#[tokio::test]
async fn a_local_input_does_not_starve_one_that_comes_by_a_connection() {
    let client = NumbersClient::in_process(Ready::default());
    let remote = client.numbers().await.unwrap();
    let local = Streaming::new(stream::iter((0..).map(Ok)));
    let mut inputs = [remote, local];
    let mut read = [0_u64; 2];
    poll_fn(|cx| {
        while read[0] < 10_000 {
            let mut pending = 0;
            for (input, read) in inputs.iter_mut().zip(&mut read) {
                match Pin::new(input).poll_next(cx) {
                    Poll::Ready(item) => {
                        item.unwrap().unwrap();
                        *read += 1;
                    }
                    Poll::Pending => pending += 1,
                }
            }
            assert!(read[1] < 10_000_000, "{read:?}");
            if pending == inputs.len() {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    })
    .await;
    assert!(read[1] < 100 * read[0], "{read:?}");
}
