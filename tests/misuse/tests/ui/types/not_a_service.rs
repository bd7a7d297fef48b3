#[farcall::service]
pub trait Kv {
    async fn get(&self) -> farcall::Result<u64>;
}

struct Store;

impl Kv for Store {
    async fn get(&self) -> farcall::Result<u64> {
        Ok(1)
    }
}

fn main() {
    let _ = farcall::Server::builder().add(Store);
}
