#[farcall::service]
pub trait Kv {
    fn get(self, key: &str) -> farcall::Result<()>;
    async fn put(&self, _: impl Clone);
}

fn main() {}
