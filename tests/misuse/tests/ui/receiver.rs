#[farcall::service]
pub trait Kv {
    async fn by_value(self) -> farcall::Result<()>;
    async fn exclusive(&mut self) -> farcall::Result<()>;
    async fn shared(self: std::sync::Arc<Self>) -> farcall::Result<()>;
    async fn none(key: String) -> farcall::Result<()>;
    async fn lifetime(&'static self) -> farcall::Result<()>;
}

fn main() {}
