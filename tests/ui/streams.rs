#[farcall::service]
pub trait Kv {
    async fn watch(&self, prefix: String) -> farcall::Result<impl Stream<Item = farcall::Result<String>>>;
    async fn load(&self, rows: Streaming<String>) -> farcall::Result<u64>;
}

fn main() {}
