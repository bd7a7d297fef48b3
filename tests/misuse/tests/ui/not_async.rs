#[farcall::service]
pub trait Kv {
    fn get(&self, key: String) -> farcall::Result<String>;
}

fn main() {}
