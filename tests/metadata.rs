//! Metadata of calls and answers over the network, end to end.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod over;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use farcall::{Blame, Channel, Code, Config, Context, Executed, Metadata, MetadataValue, Server, Status};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum DeskError {
    Closed,
    Call(Status),
}

impl From<Status> for DeskError {
    fn from(status: Status) -> Self {
        Self::Call(status)
    }
}

#[farcall::service(package = "test")]
trait Desk {
    /// The caller's metadata, and whether the method's context and the current one say the same.
    async fn read(&self, cx: &Context) -> farcall::Result<(Vec<(String, Vec<u8>)>, bool)>;
    /// Returns the metadata that a method without a context finds.
    async fn read_current(&self) -> farcall::Result<Option<String>>;
    /// Answers with so many bytes, of which `waits` says whether they are there at once, and with metadata.
    async fn answer(&self, cx: &Context, len: u32, waits: bool) -> farcall::Result<Vec<u8>>;
    async fn answer_current(&self) -> farcall::Result<()>;
    async fn answer_by_others(&self, cx: &Context) -> farcall::Result<()>;
    async fn refuse(&self, cx: &Context) -> farcall::Result<()>;
    async fn fail(&self, cx: &Context) -> Result<(), DeskError>;
    /// Answers with metadata of so many bytes.
    async fn say(&self, cx: &Context, bytes: u32) -> farcall::Result<()>;
}

#[derive(Clone, Default)]
struct Office {
    calls: Arc<AtomicU32>,
}

fn list(metadata: &Metadata) -> Vec<(String, Vec<u8>)> {
    let bytes = |value: MetadataValue<'_>| match value {
        MetadataValue::Ascii(text) => text.into(),
        MetadataValue::Binary(bytes) => bytes.to_vec(),
    };
    metadata.iter().map(|(key, value)| (key.to_owned(), bytes(value))).collect()
}

fn one(key: &str, value: &str) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert(key, value).unwrap();
    metadata
}

impl Desk for Office {
    async fn read(&self, cx: &Context) -> farcall::Result<(Vec<(String, Vec<u8>)>, bool)> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let current = Context::current().unwrap();
        Ok((list(cx.metadata()), cx.metadata() == current.metadata()))
    }

    async fn read_current(&self) -> farcall::Result<Option<String>> {
        tokio::task::yield_now().await;
        Ok(Context::current().unwrap().metadata().get("user").map(str::to_owned))
    }

    async fn answer(&self, cx: &Context, len: u32, waits: bool) -> farcall::Result<Vec<u8>> {
        cx.reply_metadata(|metadata| metadata.insert("node", "seven"))?;
        if waits {
            tokio::task::yield_now().await;
        }
        cx.reply_trailers(|trailers| trailers.append_bin("rows-bin", len.to_le_bytes()))?;
        Ok(vec![7; len as usize])
    }

    async fn answer_current(&self) -> farcall::Result<()> {
        let set = |key| Context::current().unwrap().reply_trailers(|trailers| trailers.append(key, "set"));
        set("before")?;
        tokio::task::yield_now().await;
        set("after")?;
        Ok(())
    }

    async fn answer_by_others(&self, cx: &Context) -> farcall::Result<()> {
        let clone = cx.clone();
        let given = async move { clone.reply_trailers(|trailers| trailers.append("by", "clone")).unwrap() };
        tokio::spawn(given).await.unwrap();
        let scoped = async {
            tokio::task::yield_now().await;
            Context::current().unwrap().reply_trailers(|trailers| trailers.append("by", "scope")).unwrap();
        };
        tokio::spawn(cx.scope(scoped)).await.unwrap();
        Ok(())
    }

    async fn refuse(&self, cx: &Context) -> farcall::Result<()> {
        cx.reply_metadata(|metadata| metadata.insert("node", "seven"))?;
        cx.reply_trailers(|trailers| trailers.insert("from", "context"))?;
        Err(Status::new(Code::NotFound, "no such form").with_metadata(one("retry-in", "5")))
    }

    async fn fail(&self, cx: &Context) -> Result<(), DeskError> {
        cx.reply_trailers(|trailers| trailers.insert("retry-in", "5")).unwrap();
        Err(DeskError::Closed)
    }

    async fn say(&self, cx: &Context, bytes: u32) -> farcall::Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        // Three, and two of the key.
        cx.reply_trailers(|trailers| trailers.insert("kk", "v".repeat(bytes as usize - 5)))?;
        Ok(())
    }
}

/// A server with these settings; the address that it has, and how often it was called.
async fn serve(config: Config) -> (String, Arc<AtomicU32>) {
    let office = Office::default();
    let calls = office.calls.clone();
    let server = Server::builder().add(DeskServer::new(office)).config(config);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = over::address(server.local_addr());
    tokio::spawn(server.serve());
    (address, calls)
}

async fn desk() -> DeskClient {
    let (address, _) = serve(over::config()).await;
    DeskClient::new(Channel::connect(&address).await.unwrap())
}

#[tokio::test]
async fn a_handler_reads_the_metadata_of_its_caller() {
    let desk = desk().await;
    let call = desk.read().metadata("User", "ann").metadata_bin("id-bin", [0, 255]).metadata("user", "bob");
    let (seen, same) = call.with_metadata(one("hop", "a")).await.unwrap();
    let all: [(&str, &[u8]); 4] = [("user", b"ann"), ("id-bin", &[0, 255]), ("user", b"bob"), ("hop", b"a")];
    assert!(same && seen.iter().map(|(key, value)| (&key[..], &value[..])).eq(all), "{seen:?}");

    assert_eq!(desk.read_current().metadata("user", "ann").await.unwrap().as_deref(), Some("ann"));
    assert_eq!(desk.read_current().await.unwrap(), None);
    assert_eq!(desk.read().await.unwrap(), (vec![], true));
}

#[tokio::test]
async fn initial_and_trailing_metadata_come_with_the_answer() {
    let desk = desk().await;
    for (len, waits) in [(0, false), (10, true), (30_000, false), (150_000, true)] {
        let response = desk.answer(len, waits).with_response().await.unwrap();
        assert_eq!(response.value.len(), len as usize);
        assert_eq!(response.metadata, one("node", "seven"));
        assert_eq!(list(&response.trailers), [("rows-bin".to_owned(), len.to_le_bytes().to_vec())]);
        let (value, parts) = desk.answer(len, waits).with_parts().await;
        assert_eq!((value.unwrap(), parts.attempts), (response.value, 1));
        assert_eq!((parts.metadata, parts.trailers), (response.metadata, response.trailers));
        assert!(Arc::ptr_eq(&parts.connection.unwrap(), &response.connection));
    }
    // They do no harm to who does not ask for them.
    assert_eq!(desk.answer(3, true).await.unwrap(), [7, 7, 7]);
    let response = desk.read().metadata("user", "ann").with_response().await.unwrap();
    assert!(response.metadata.is_empty() && response.trailers.is_empty());
}

#[tokio::test]
async fn a_handler_without_a_context_sets_them_by_the_current_one() {
    let response = desk().await.answer_current().with_response().await.unwrap();
    assert_eq!((response.trailers.get("before"), response.trailers.get("after")), (Some("set"), Some("set")));
}

#[tokio::test]
async fn a_clone_in_another_task_sets_trailers_too() {
    let response = desk().await.answer_by_others().with_response().await.unwrap();
    assert!(response.trailers.get_all("by").eq(["clone", "scope"]), "{:?}", response.trailers);
}

#[tokio::test]
async fn a_failed_call_has_trailers() {
    let desk = desk().await;
    let error = desk.refuse().await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::NotFound, "no such form"));
    let trailers = error.metadata();
    assert_eq!((trailers.get("from"), trailers.get("retry-in")), (Some("context"), Some("5")));
    assert_eq!(trailers.len(), 2);

    let (outcome, parts) = desk.refuse().with_parts().await;
    assert_eq!(outcome.unwrap_err(), error);
    assert_eq!((parts.metadata, &parts.trailers), (one("node", "seven"), trailers));
    assert!(parts.connection.is_some());
}

#[tokio::test]
async fn an_application_error_has_trailers() {
    let (outcome, parts) = desk().await.fail().with_parts().await;
    assert_eq!(outcome, Err(DeskError::Closed));
    assert_eq!((parts.trailers, parts.metadata.is_empty()), (one("retry-in", "5"), true));
}

#[tokio::test]
async fn a_key_or_value_that_can_not_be_one_ends_the_call_unsent() {
    let (address, calls) = serve(over::config()).await;
    let desk = DeskClient::new(Channel::connect(&address).await.unwrap());
    for call in [
        desk.read().metadata("two words", "x"),
        desk.read().metadata("a", "x").metadata("b", "line\n").metadata("c", "x"),
        desk.read().metadata("a-bin", "x"),
        desk.read().metadata_bin("a", "x"),
        desk.read().metadata("farcall-a", "x"),
    ] {
        let (outcome, parts) = call.with_parts().await;
        let error = outcome.unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::InvalidArgument, Executed::No), "{error}");
        assert_eq!((error.blame(), parts.connection.is_none()), (Blame::Caller, true));
        assert!(error.message().starts_with("test.Desk/read: metadata of key"), "{error}");
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn metadata_over_a_limit_names_the_setting_on_both_sides() {
    let mut config = over::config();
    config.limits.max_metadata = 100;
    let (address, calls) = serve(config).await;
    let channel = Channel::connect(&format!("{address}&limits.max_metadata=200")).await.unwrap();
    let desk = DeskClient::new(channel);
    let value = |bytes: usize| "v".repeat(bytes - 5);
    desk.read().metadata("kk", value(100)).await.unwrap();
    let error = desk.read().metadata("kk", value(101)).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::ResourceExhausted, Executed::No), "{error}");
    assert!(error.message().contains("101 bytes, but the server's limits.max_metadata is 100"), "{error}");
    assert_eq!((error.blame(), calls.load(Ordering::Relaxed)), (Blame::Caller, 1));

    // A byte more says that these are trailing ones.
    let response = desk.say(199).with_response().await.unwrap();
    assert_eq!(response.trailers.size(), 199);
    let error = desk.say(200).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::ResourceExhausted, Executed::Yes), "{error}");
    assert!(error.message().contains("201 bytes, but the client's limits.max_metadata is 200"), "{error}");
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_handler_does_not_pass_its_callers_metadata_on() {
    #[farcall::service(package = "test")]
    trait Porter {
        async fn ask(&self) -> farcall::Result<Option<String>>;
    }

    struct Between(DeskClient);

    impl Porter for Between {
        async fn ask(&self) -> farcall::Result<Option<String>> {
            self.0.read_current().await
        }
    }

    let porter = PorterClient::in_process(Between(desk().await));
    assert_eq!(porter.ask().metadata("user", "ann").await.unwrap(), None);
}
