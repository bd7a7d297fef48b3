//! Methods that take a stream, and do not declare it as they must.

#[farcall::service]
pub trait Kv {
    async fn any(&self, rows: impl Stream<Item = String>) -> farcall::Result<()>;
    async fn of_nothing(&self, rows: Streaming) -> farcall::Result<()>;
    async fn with_error(&self, rows: Streaming<String, KvError>) -> farcall::Result<()>;
    async fn within(&self, rows: Option<Streaming<String>>) -> farcall::Result<()>;
    async fn nested(&self, rows: Streaming<Streaming<String>>) -> farcall::Result<()>;
    async fn two(&self, rows: Streaming<String>, more: Streaming<String>) -> farcall::Result<()>;
    async fn default(&self, #[rpc(default)] rows: Streaming<String>) -> farcall::Result<()>;
    async fn borrowed(&self, rows: Streaming<&str>) -> farcall::Result<()>;
    async fn lent(&self, rows: &mut Streaming<String>) -> farcall::Result<()>;
    async fn pattern(&self, mut rows: Streaming<String>) -> farcall::Result<()>;
}

fn main() {}
