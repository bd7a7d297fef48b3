pub struct Json;

#[farcall::service(codec = Json)]
pub trait Kv {
    async fn get(&self, key: String) -> farcall::Result<u64>;
}

fn main() {}
