//! Items that are certainly no results.

#[farcall::service]
pub trait Kv {
    fn numbers(&self) -> impl Stream<Item = u64> + Send;
    async fn pairs(&self) -> farcall::Result<impl Stream<Item = (String, u64)> + Send>;
    fn maybe(&self) -> impl Stream<Item = Option<String>>;
}

fn main() {}
