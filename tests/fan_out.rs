//! One value to many readers: it is encoded once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use farcall::{Channel, EncodedOnce, Result, Server, Status, Stream, stream};
use serde::{Deserialize, Serialize, Serializer};
use tokio::sync::broadcast;

/// An event that counts how often it is encoded.
#[derive(Debug, Deserialize)]
struct Event {
    number: u64,
    text: String,
    #[serde(skip)]
    encoded: Arc<AtomicUsize>,
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename = "Event")]
        struct Plain<'a> {
            number: u64,
            text: &'a str,
        }
        self.encoded.fetch_add(1, Ordering::Relaxed);
        Plain { number: self.number, text: &self.text }.serialize(serializer)
    }
}

#[farcall::service(name = "feed")]
trait Feed {
    fn events(&self) -> impl Stream<Item = Result<EncodedOnce<Event>>>;
    async fn last(&self) -> Result<EncodedOnce<Event>>;
}

/// The service as its readers know it.
#[farcall::service(name = "feed")]
trait PlainFeed {
    fn events(&self) -> impl Stream<Item = Result<Event>>;
    async fn last(&self) -> Result<Event>;
}

struct Publisher {
    events: broadcast::Sender<EncodedOnce<Event>>,
    last: EncodedOnce<Event>,
}

impl Feed for Publisher {
    fn events(&self) -> impl Stream<Item = Result<EncodedOnce<Event>>> {
        let mut events = self.events.subscribe();
        stream::generate(async move |items| {
            while let Ok(event) = events.recv().await {
                items.send(event).await;
            }
            Ok::<_, Status>(())
        })
    }

    async fn last(&self) -> Result<EncodedOnce<Event>> {
        Ok(self.last.clone())
    }
}

fn event(number: u64, len: usize) -> EncodedOnce<Event> {
    EncodedOnce::new(Event { number, text: "x".repeat(len), encoded: Arc::default() })
}

#[tokio::test]
async fn an_event_for_many_readers_is_encoded_once() {
    const READERS: usize = 10;
    let (publish, _) = broadcast::channel(16);
    let last = event(0, 10);
    let publisher = Publisher { events: publish.clone(), last: last.clone() };
    let server = Server::builder().add(FeedServer::new(publisher)).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());

    let mut readers = Vec::new();
    for _ in 0..READERS {
        let client = PlainFeedClient::new(Channel::connect(&address).await.unwrap());
        assert_eq!(client.last().await.unwrap().text.len(), 10);
        readers.push(client.events().await.unwrap());
    }
    assert_eq!(last.encoded.load(Ordering::Relaxed), 1);

    // Short ones are copied, long ones go by reference.
    let events: Vec<_> = [100, 1_000_000].into_iter().zip(1..).map(|(len, n)| event(n, len)).collect();
    // A reader's stream has begun when its handler has subscribed.
    assert_eq!(publish.receiver_count(), READERS);
    for event in &events {
        publish.send(event.clone()).unwrap();
    }
    for reader in &mut readers {
        for event in &events {
            let read = reader.message().await.unwrap().unwrap();
            assert_eq!((read.number, read.text.len()), (event.number, event.text.len()));
        }
    }
    assert!(events.iter().all(|event| event.encoded.load(Ordering::Relaxed) == 1));
}
