#[farcall::service]
pub trait Kv {
    async fn text(&self, key: &str) -> farcall::Result<()>;
    async fn bytes(&self, value: &[u8]) -> farcall::Result<()>;
    async fn numbers(&self, values: Option<&[u64]>) -> farcall::Result<()>;
    async fn cow(&self, key: std::borrow::Cow<'_, str>) -> farcall::Result<()>;
    async fn result(&self) -> farcall::Result<&str>;
    async fn this(&self, other: Self) -> farcall::Result<()>;
    async fn owned(&self, key: std::borrow::Cow<'static, str>) -> farcall::Result<()>;
}

fn main() {}
