//! The supertraits of a service: those that a client has, and no other.

pub trait Base {}

#[farcall::service]
pub trait Kv: Base + Send + Sync + 'static {
    async fn get(&self, key: String) -> farcall::Result<String>;
}

fn main() {}
