//! A call that nobody waits for.

use farcall::Result;

#[farcall::service]
pub trait Kv {
    async fn get(&self, key: String) -> Result<String>;
}

async fn asks(kv: KvClient) -> Result<String> {
    let value = kv.get("k")?;
    Ok(value)
}

fn main() {}
