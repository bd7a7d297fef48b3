#[farcall::service(package = "shop v1", name = "")]
pub trait Kv {
    async fn new(&self) -> farcall::Result<()>;
    async fn in_process(&self) -> farcall::Result<()>;
    #[rpc(name = "a/b")]
    async fn get(&self) -> farcall::Result<()>;
}

#[farcall::service(package = "shop.v1")]
pub trait Cache<K: Send> {
    async fn get(&self) -> farcall::Result<()>;
}

fn main() {}
