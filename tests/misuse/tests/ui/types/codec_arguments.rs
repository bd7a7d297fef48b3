use farcall::Bytes;

#[farcall::service(codec = farcall::Prost)]
pub trait A {
    async fn put(&self, key: String, value: Bytes) -> farcall::Result<()>;
}

#[farcall::service(codec = farcall::Raw)]
pub trait B {
    async fn put(&self, key: Bytes, value: Bytes) -> farcall::Result<()>;
}

fn main() {}
