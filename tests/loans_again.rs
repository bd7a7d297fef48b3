//! Calls that lend memory and fail: which of them are made again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use farcall::bulk::{BulkRead, BulkWrite};
use farcall::{Bytes, Channel, Code, Config, Result, Server, Status};

#[farcall::service]
trait Pages {
    #[rpc(idempotent)]
    async fn put(&self, page: BulkRead) -> Result<()>;
    #[rpc(idempotent)]
    async fn get(&self, page: BulkWrite) -> Result<()>;
}

/// Fails all calls, and counts them.
#[derive(Clone, Default)]
struct Failing(Arc<AtomicU32>);

impl Pages for Failing {
    async fn put(&self, page: BulkRead) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        assert_eq!(page.read(..).await?, "page");
        Err(Status::unavailable("not now"))
    }

    async fn get(&self, page: BulkWrite) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        page.write(0, "page").await?;
        Err(Status::unavailable("not now"))
    }
}

/// The first server's device could write to the memory while the caller reads the second one's answer there.
#[tokio::test]
async fn a_call_that_lends_memory_to_be_written_is_not_made_again_once_it_may_have_been_executed() {
    let pages = Failing::default();
    let server = Server::builder().add(PagesServer::new(pages.clone())).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let config = Config::from_toml("[retry]\nmax_attempts = 3\ninitial_backoff_ms = 1").unwrap();
    let channel = Channel::builder().config(config).connect(&address).await.unwrap();
    let client = PagesClient::new(&channel);

    let (page, _loan) = BulkRead::lend(Bytes::from("page"));
    assert_eq!(client.put(page).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(pages.0.swap(0, Ordering::Relaxed), 3);

    let (page, _loan) = BulkWrite::lend(vec![0; 4]);
    assert_eq!(client.get(page).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(pages.0.load(Ordering::Relaxed), 1);
}
