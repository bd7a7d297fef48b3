use std::rc::Rc;

use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
pub struct NotSerialize {
    id: u64,
}

pub struct Neither;

#[derive(Serialize, Deserialize)]
pub struct NotSend {
    #[serde(skip)]
    local: Rc<u64>,
}

#[farcall::service]
pub trait Rows {
    async fn put(&self, row: NotSerialize) -> farcall::Result<()>;
    async fn put_all(&self, table: String, rows: Vec<Neither>) -> farcall::Result<()>;
    async fn local(&self, value: NotSend) -> farcall::Result<()>;
}

fn main() {}
