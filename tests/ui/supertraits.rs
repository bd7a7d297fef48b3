//! What a client is can be asked for, and nothing else.

pub trait Base {}

#[farcall::service]
pub trait Kv: Base + Send + Sync + 'static {
    async fn get(&self, key: String) -> farcall::Result<String>;
}

fn main() {}
