use farcall::Status;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
pub enum NotFromStatus {
    Missing,
}

#[derive(Debug, Deserialize)]
pub struct NotSerialize(Status);

impl From<Status> for NotSerialize {
    fn from(status: Status) -> Self {
        Self(status)
    }
}

#[derive(Debug)]
pub enum Nothing {
    Missing,
}

#[farcall::service]
pub trait Kv {
    async fn get(&self) -> Result<(), NotFromStatus>;
    async fn put(&self) -> Result<(), NotSerialize>;
    async fn delete(&self) -> Result<(), Nothing>;
}

fn main() {}
