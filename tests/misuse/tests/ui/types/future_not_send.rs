use std::rc::Rc;

#[farcall::service]
pub trait Kv {
    async fn get(&self) -> farcall::Result<u64>;
}

struct Store;

impl Kv for Store {
    async fn get(&self) -> farcall::Result<u64> {
        let local = Rc::new(1);
        tokio::task::yield_now().await;
        Ok(*local)
    }
}

fn main() {}
