#[farcall::service]
pub trait Kv {
    async fn put<V: Send>(&self, value: V) -> farcall::Result<()>;
    async fn array<const N: usize>(&self, value: [u8; N]) -> farcall::Result<()>;
    async fn lifetime<'a>(&self, key: String) -> farcall::Result<()>;
    async fn clause(&self) -> farcall::Result<()>
    where
        Self: Clone;
}

fn main() {}
