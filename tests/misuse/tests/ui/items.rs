#[farcall::service]
pub trait Kv {
    type Value;
    const MAX: usize;
    async fn get(&self, key: String) -> farcall::Result<String>;
}

#[farcall::service]
pub trait Borrows<'a> {
    async fn get(&self) -> farcall::Result<()>;
}

#[farcall::service]
pub unsafe trait Unsafe {
    async fn get(&self) -> farcall::Result<()>;
}

#[farcall::service]
pub struct NotATrait;

fn main() {}
