#[farcall::service]
pub trait Kv {
    async fn late(&self, key: String, cx: &farcall::Context) -> farcall::Result<()>;
    async fn exclusive(&self, cx: &mut farcall::Context) -> farcall::Result<()>;
}

fn main() {}
