//! Metadata of calls with streams: before the first item and after the last.

use farcall::{
    Channel, Code, Config, Context, EndReason, Executed, Metadata, Result, Server, Status, Stream,
};
use farcall::{Streaming, stream};
use tokio::time::Instant;

use super::{Torn, all, next};

#[farcall::service(package = "test")]
trait Archive {
    /// Streams three numbers, and says with what; those who set metadata when it is too late for its beginning lose none.
    async fn rows(&self, cx: &Context, sizes: [u32; 2]) -> Result<impl Stream<Item = Result<u32>>>;
    /// Ends with an error.
    async fn broken(&self, cx: &Context) -> Result<impl Stream<Item = Result<u32>>>;
    /// Ends with one of its own type.
    fn torn(&self, cx: &Context) -> impl Stream<Item = std::result::Result<u32, Torn>>;
    /// Sets metadata when it is asked for its first item, which it may wait for.
    fn late(&self, cx: &Context, waits: bool) -> impl Stream<Item = Result<u32>>;
    /// Begins after a while, and has nothing to say.
    async fn silent(&self) -> Result<impl Stream<Item = Result<u32>>>;
    /// Does not begin.
    async fn refused(&self, cx: &Context) -> Result<impl Stream<Item = Result<u32>>>;
    /// Sends back what the caller has sent.
    async fn sum(&self, cx: &Context, rows: Streaming<u32>) -> Result<u32>;
}

struct Shelf;

fn set(cx: &Context, key: &str, size: u32) {
    // Three, and five of the key.
    let value = "v".repeat(size as usize - 8);
    match key.strip_prefix("in") {
        Some(_) => cx.reply_metadata(|metadata| metadata.insert(key, value)).unwrap(),
        None => cx.reply_trailers(|trailers| trailers.insert(key, value)).unwrap(),
    }
}

impl Archive for Shelf {
    async fn rows(&self, cx: &Context, [first, last]: [u32; 2]) -> Result<impl Stream<Item = Result<u32>>> {
        set(cx, "inita", first);
        Ok(stream::iter((0..3).map(move |row| {
            if row == 2 {
                set(cx, "initb", 8);
                set(cx, "trail", last);
            }
            Ok(row)
        })))
    }

    async fn broken(&self, cx: &Context) -> Result<impl Stream<Item = Result<u32>>> {
        set(cx, "trail", 10);
        let mut of_error = Metadata::new();
        of_error.insert("retry-in", "5")?;
        Ok(stream::iter([Ok(1), Err(Status::new(Code::DataLoss, "torn").with_metadata(of_error))]))
    }

    fn torn(&self, cx: &Context) -> impl Stream<Item = std::result::Result<u32, Torn>> {
        set(cx, "trail", 10);
        stream::iter([Ok(1), Err(Torn { at: 1 })])
    }

    fn late(&self, cx: &Context, waits: bool) -> impl Stream<Item = Result<u32>> {
        let cx = cx.clone();
        stream::generate(async move |rows| {
            set(&cx, "inita", 10);
            if waits {
                tokio::task::yield_now().await;
            }
            set(&cx, "initb", 11);
            rows.send(1).await;
            set(&cx, "initc", 12);
            rows.send(2).await;
            Ok(())
        })
    }

    async fn silent(&self) -> Result<impl Stream<Item = Result<u32>>> {
        tokio::task::yield_now().await;
        Ok(stream::generate(async |_| std::future::pending().await))
    }

    async fn refused(&self, cx: &Context) -> Result<impl Stream<Item = Result<u32>>> {
        set(cx, "inita", 9);
        set(cx, "trail", 10);
        match cx.attempt() {
            0 => Ok(stream::iter([])),
            _ => Err(Status::new(Code::PermissionDenied, "not you")),
        }
    }

    async fn sum(&self, cx: &Context, mut rows: Streaming<u32>) -> Result<u32> {
        cx.reply_metadata(|metadata| metadata.extend(cx.metadata()));
        let mut sum = 0;
        while let Some(row) = rows.message().await? {
            sum += row;
        }
        assert!(rows.metadata().is_empty() && rows.trailers().is_empty());
        set(cx, "trail", 8 + sum);
        Ok(sum)
    }
}

async fn archive(limit: Option<u32>) -> ArchiveClient {
    let server = Server::builder().add(ArchiveServer::new(Shelf)).config(Config::default());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let mut address = format!("tcp://{}", server.local_addr());
    if let Some(limit) = limit {
        address += &format!("?limits.max_metadata={limit}");
    }
    tokio::spawn(server.serve());
    ArchiveClient::new(Channel::connect(&address).await.unwrap())
}

fn size(metadata: &Metadata, key: &str) -> Option<usize> {
    metadata.get(key).map(|value| value.len() + 8)
}

#[tokio::test]
async fn they_come_before_the_first_item_and_with_the_end() {
    let archive = archive(None).await;
    let response = archive.rows([10, 300]).with_response().await.unwrap();
    assert_eq!((size(&response.metadata, "inita"), response.trailers.len()), (Some(10), 0));
    let mut rows = response.value;
    assert_eq!((rows.metadata(), rows.trailers().len()), (&response.metadata, 0));
    for row in 0..3 {
        assert_eq!(rows.message().await.unwrap(), Some(row));
        assert!(rows.trailers().is_empty());
    }
    assert_eq!(rows.message().await.unwrap(), None);
    assert_eq!((size(rows.trailers(), "trail"), rows.trailers().len()), (Some(300), 1));
    // Too late for the beginning, and not lost.
    assert_eq!((size(rows.metadata(), "initb"), rows.metadata().len()), (Some(8), 2));
}

#[tokio::test]
async fn metadata_that_a_stream_sets_before_its_first_item_come_before_it_unless_the_item_has_to_be_waited_for()
 {
    let archive = archive(None).await;
    for (waits, early) in [(false, Some(11)), (true, None)] {
        let mut rows = archive.late(waits).await.unwrap();
        let sizes = |rows: &Streaming<u32>| ["inita", "initb", "initc"].map(|key| size(rows.metadata(), key));
        assert_eq!(sizes(&rows), [Some(10), early, None]);
        assert_eq!(rows.message().await.unwrap(), Some(1));
        assert_eq!(sizes(&rows), [Some(10), early, None]);
        assert_eq!(rows.message().await.unwrap(), Some(2));
        assert_eq!(rows.message().await.unwrap(), None);
        assert_eq!(sizes(&rows), [Some(10), Some(11), Some(12)]);
    }
}

/// Whatever else the connection has to say, and when.
#[tokio::test(start_paused = true)]
async fn a_stream_that_has_nothing_to_say_begins_at_once() {
    let archive = ArchiveClient::in_process(Shelf);
    let began = Instant::now();
    archive.silent().await.unwrap();
    assert_eq!(Instant::now(), began);
}

#[tokio::test]
async fn a_stream_that_fails_has_trailers() {
    let archive = archive(None).await;
    let mut rows = archive.broken().await.unwrap();
    assert_eq!(rows.message().await.unwrap(), Some(1));
    let error = rows.message().await.unwrap_err();
    assert_eq!((error.code(), rows.end_reason()), (Code::DataLoss, Some(EndReason::Status)));
    assert_eq!((size(error.metadata(), "trail"), error.metadata().get("retry-in")), (Some(10), Some("5")));
    assert_eq!(rows.trailers(), error.metadata());

    let mut rows = archive.torn().await.unwrap();
    let mut pinned = std::pin::pin!(&mut rows);
    assert_eq!(next(&mut pinned).await, Some(Ok(1)));
    assert_eq!(next(&mut pinned).await, Some(Err(Torn { at: 1 })));
    assert_eq!(size(rows.trailers(), "trail"), Some(10));
}

#[tokio::test]
async fn a_refusal_has_both() {
    let (outcome, parts) = archive(None).await.refused().with_parts().await;
    assert_eq!(outcome.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!((size(&parts.metadata, "inita"), size(&parts.trailers, "trail")), (Some(9), Some(10)));
}

#[tokio::test]
async fn a_stream_of_arguments_goes_with_its_callers() {
    let archive = archive(None).await;
    let call = archive.sum(stream::iter([1, 2, 3])).metadata("user", "ann").metadata_bin("id-bin", [0]);
    let response = call.with_response().await.unwrap();
    assert_eq!((response.value, response.metadata.get("user"), response.attempts), (6, Some("ann"), 1));
    assert_eq!((response.metadata.len(), size(&response.trailers, "trail")), (2, Some(14)));

    let error = archive.sum(stream::iter([1])).metadata("two words", "x").await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::InvalidArgument, Executed::No));
}

#[tokio::test]
async fn over_the_limit_a_stream_does_not_begin_or_does_not_end_well() {
    let archive = archive(Some(100)).await;
    let mut rows = archive.rows([100, 80]).await.unwrap();
    while rows.message().await.unwrap().is_some() {}
    assert_eq!(size(rows.trailers(), "trail"), Some(80));

    let error = archive.rows([101, 8]).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::ResourceExhausted, Executed::Yes));
    assert!(error.message().contains("101 bytes, but the client's limits.max_metadata is 100"), "{error}");

    let (items, error) = all(archive.rows([8, 100]).await.unwrap()).await;
    let error = error.unwrap();
    assert_eq!((items, error.code()), (vec![0, 1, 2], Code::ResourceExhausted));
    // With the eight set late, and the byte between them.
    assert!(error.message().contains("109 bytes, but the client's limits.max_metadata is 100"), "{error}");
}
