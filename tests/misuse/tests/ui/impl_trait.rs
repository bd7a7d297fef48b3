#[farcall::service]
pub trait Kv {
    async fn put(&self, key: impl Into<String>) -> farcall::Result<()>;
    async fn get(&self) -> farcall::Result<impl Clone>;
}

fn main() {}
