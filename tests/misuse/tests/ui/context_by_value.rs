//! A context is lent; a type of one's own travels.

mod own {
    #[derive(serde::Serialize, serde::Deserialize)]
    pub struct Context;
}

#[farcall::service]
pub trait Kv {
    async fn owned(&self, cx: Context, key: String) -> farcall::Result<()>;
    async fn by_path(&self, context: farcall::Context) -> farcall::Result<()>;
    async fn travels(&self, cx: own::Context) -> farcall::Result<()>;
}

fn main() {}
