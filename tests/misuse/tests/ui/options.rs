#[farcall::service(prefix = "shop.v1")]
pub trait A {
    async fn get(&self) -> farcall::Result<()>;
}

#[farcall::service(name = "a", name = "b")]
pub trait B {
    async fn get(&self) -> farcall::Result<()>;
}

#[farcall::service]
pub trait C {
    #[rpc(timeout = "5s")]
    async fn get(&self, #[rpc(name = "the key")] key: String) -> farcall::Result<()>;
    #[rpc(default)]
    #[cfg(unix)]
    async fn put(&self) -> farcall::Result<()>;
    #[rpc(class = Slow)]
    async fn scan(&self, #[rpc(class = Bulk)] key: String) -> farcall::Result<()>;
}

#[farcall::service(codec = "prost")]
pub trait D {
    async fn get(&self) -> farcall::Result<()>;
}

#[farcall::service(codec = "my::Json")]
pub trait E {
    async fn get(&self) -> farcall::Result<()>;
}

#[farcall::service(codec = "application/json")]
pub trait F {
    async fn get(&self) -> farcall::Result<()>;
}

fn main() {}
