#[farcall::service]
pub trait Kv {
    async fn pair(&self, (a, b): (u8, u8)) -> farcall::Result<()>;
    async fn ignored(&self, _: u8) -> farcall::Result<()>;
}

fn main() {}
