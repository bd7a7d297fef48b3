//! Permits to send items, as far as the window of the stream's reader goes.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::sync::Mutex;
use std::time::Duration;

use farcall::stream::{Available, Receiver, Sender};
use farcall::{Bytes, Channel, Result, Server, Status, Stream, Streaming, in_process, stream};

#[farcall::service]
trait Feed {
    fn feed(&self) -> impl Stream<Item = Result<Bytes>>;
    async fn drain(&self, items: Streaming<Bytes>) -> Result<u64>;
}

/// Answers with the stream that the test has made.
struct Feeder(Mutex<Option<Receiver<Bytes>>>);

impl Feed for Feeder {
    fn feed(&self) -> impl Stream<Item = Result<Bytes>> {
        self.0.lock().unwrap().take().unwrap()
    }

    async fn drain(&self, mut items: Streaming<Bytes>) -> Result<u64> {
        let mut count = 0;
        while items.message().await?.is_some() {
            count += 1;
        }
        Ok(count)
    }
}

fn feeder() -> (Sender<Bytes>, Feeder) {
    let (sender, items) = stream::channel(10_000);
    (sender, Feeder(Mutex::new(Some(items))))
}

/// Returns what a future resolves to, or `None` if it waits for something that the test must do. Time is paused, so that it
/// passes only when nothing else can happen.
async fn settled<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_millis(100), future).await.ok()
}

fn item(len: usize) -> Bytes {
    vec![7; len].into()
}

/// Sends items of 1000 bytes by permits, until there is none. Returns how many.
async fn send_all(sender: &Sender<Bytes>) -> usize {
    let mut sent = 0;
    while let Some(permit) = settled(sender.reserve(1000)).await {
        permit.unwrap().send(item(1000));
        sent += 1;
    }
    sent
}

#[tokio::test(start_paused = true)]
async fn permits_are_given_as_far_as_the_readers_window_goes() {
    let (sender, feeder) = feeder();
    assert_eq!(sender.available(), Available::NONE);
    assert!(settled(sender.reserve(1)).await.is_none(), "nobody reads");
    let client = FeedClient::new(in_process(FeedServer::new(feeder)));
    let mut items = client.feed().await.unwrap();
    let sent = send_all(&sender).await;
    assert!((60..=66).contains(&sent), "{sent} of 1000 bytes in a window of 64 KiB");
    let left = sender.available();
    assert!(left.bytes < 1000 && left.items > 0, "{left:?}");
    assert_eq!(sender.capacity(), 10_000, "none waits in the channel");
    for _ in 0..sent {
        items.message().await.unwrap().unwrap();
    }
    let more = send_all(&sender).await;
    assert!(more > sent / 3, "{more} more");
}

/// Several threads ask for permits while another takes the items: at no time does an item count neither as taken nor as sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn permits_of_several_threads_stay_within_the_window() {
    for _ in 0..200 {
        let (sender, feeder) = feeder();
        let client = FeedClient::new(in_process(FeedServer::new(feeder)));
        let mut items = client.feed().await.unwrap();
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let sender = sender.clone();
                tokio::spawn(async move {
                    // A long one goes by itself, behind those that were taken with it.
                    for len in [1000, 1000, 12_000].into_iter().cycle() {
                        let Ok(permit) = sender.reserve(len).await else { return };
                        permit.send(item(len));
                    }
                })
            })
            .collect();
        // One task waits with a place for its item. Items with permits have all room, so none waits in the channel for long.
        let all_left = async {
            while sender.available().bytes >= 12_000 || sender.capacity() < 9_999 {
                tokio::task::yield_now().await;
            }
        };
        let all_left = tokio::time::timeout(Duration::from_secs(20), all_left).await;
        assert!(all_left.is_ok(), "an item has a permit, but no room: {sender:?}");
        items.message().await.unwrap().unwrap();
        drop(items);
        for task in tasks {
            task.await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_holds_its_bytes_until_it_is_dropped() {
    let (sender, feeder) = feeder();
    let client = FeedClient::new(in_process(FeedServer::new(feeder)));
    let _items = client.feed().await.unwrap();
    let whole = sender.available();
    assert_eq!((whole.items, whole.bytes), (1024, 64 << 10));
    let first = sender.reserve(30_000).await.unwrap();
    let second = sender.reserve(30_000).await.unwrap();
    let left = sender.available();
    assert_eq!((left.items, left.bytes), (1022, whole.bytes - 60_000));
    let mut third = Box::pin(sender.reserve(30_000));
    assert!(settled(&mut third).await.is_none());
    assert_eq!(sender.available().bytes, left.bytes, "one that waits has nothing");
    drop(first);
    let third = settled(third).await.unwrap().unwrap();
    drop((second, third));
    assert_eq!(sender.available(), whole);
}

#[tokio::test(start_paused = true)]
async fn a_permit_for_more_than_the_window_waits_for_half_of_it() {
    let (sender, feeder) = feeder();
    let client = FeedClient::new(in_process(FeedServer::new(feeder)));
    let mut items = client.feed().await.unwrap();
    for n in 0..20 {
        // A reader that asks for more has taken what it has read.
        assert!(settled(items.message()).await.is_none());
        let permit = settled(sender.reserve(1 << 20)).await.unwrap().unwrap();
        permit.send(item(1 << 20));
        // The window grows later on.
        assert!(n > 0 || settled(sender.reserve(1)).await.is_none(), "the window is used up");
        assert_eq!(items.message().await.unwrap().unwrap().len(), 1 << 20);
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_ends_with_its_reader() {
    let (sender, feeder) = feeder();
    let client = FeedClient::new(in_process(FeedServer::new(feeder)));
    let items = client.feed().await.unwrap();
    send_all(&sender).await;
    let waiting = tokio::spawn(async move { sender.reserve(1000).await.map(drop) });
    drop(items);
    waiting.await.unwrap().unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_read_here_has_the_channels_room() {
    let (sender, items) = stream::channel::<u8, Status>(2);
    let mut items = Streaming::new(items);
    assert!(settled(items.message()).await.is_none());
    let (first, second) = (sender.reserve(9).await.unwrap(), sender.reserve(1 << 40).await.unwrap());
    assert!(settled(sender.reserve(0)).await.is_none());
    first.send(1);
    drop(second);
    sender.reserve(0).await.unwrap().send(2);
    assert_eq!((items.message().await, items.message().await), (Ok(Some(1)), Ok(Some(2))));
}

#[tokio::test]
async fn permits_pass_any_number_of_items_over_tcp_in_both_directions() {
    const COUNT: usize = 20_000;
    let (sender, feeder) = feeder();
    let server = Server::builder().add(FeedServer::new(feeder)).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let client = FeedClient::new(Channel::connect(&address).await.unwrap());
    let (arguments, requests) = stream::channel(1);
    let feed = |sender: Sender<Bytes>| async move {
        for n in 0..COUNT {
            sender.reserve(n % 3000).await.unwrap().send(item(n % 3000));
        }
    };
    let fed = [tokio::spawn(feed(sender)), tokio::spawn(feed(arguments))];
    let read = async {
        let mut items = client.feed().await.unwrap();
        let mut count = 0;
        while let Some(item) = items.message().await.unwrap() {
            assert_eq!(item.len(), count % 3000);
            count += 1;
        }
        count
    };
    let (read, drained) = tokio::join!(read, client.drain(requests));
    assert_eq!((read, drained.unwrap()), (COUNT, COUNT as u64));
    for fed in fed {
        fed.await.unwrap();
    }
}
