#[farcall::service]
pub trait Kv {
    async fn delete(&self, key: String);
}

fn main() {}
