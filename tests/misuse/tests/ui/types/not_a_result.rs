#[farcall::service]
pub trait Kv {
    async fn get(&self, key: String) -> Option<String>;
}

fn main() {}
