#[farcall::service]
pub trait Kv {
    async fn get(&self, #[rpc(default)] key: String, #[rpc(spawn)] version: u64) -> farcall::Result<()>;
    async fn put(&self, #[rpc(default)] cx: &farcall::Context) -> farcall::Result<()>;
}

fn main() {}
