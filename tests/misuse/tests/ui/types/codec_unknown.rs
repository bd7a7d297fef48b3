#[farcall::service(codec = Protobuf)]
pub trait Kv {
    async fn get(&self) -> farcall::Result<()>;
}

fn main() {}
