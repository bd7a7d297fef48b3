#[farcall::service]
pub trait Kv {
    async fn get(&self, key: String) -> farcall::Result<()>;
    #[rpc(name = "get")]
    async fn fetch(&self, key: String) -> farcall::Result<()>;
}

fn main() {}
