use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub enum Level {
    One,
    All,
}

#[farcall::service]
pub trait Kv {
    async fn get(&self, key: String, #[rpc(default)] level: Level) -> farcall::Result<()>;
}

fn main() {}
