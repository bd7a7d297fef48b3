pub struct Json;

#[farcall::service(codec = Json)]
pub trait Kv {}

fn main() {}
