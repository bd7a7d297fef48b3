use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
pub struct Row {
    id: u64,
}

#[farcall::service(codec = farcall::Prost)]
pub trait Rows {
    async fn put(&self, row: Row) -> farcall::Result<()>;
}

#[farcall::service(codec = farcall::Raw)]
pub trait Texts {
    async fn put(&self, text: String) -> farcall::Result<()>;
}

fn main() {}
