#[derive(serde::Deserialize)]
pub struct Row {
    id: u64,
}

pub struct Neither;

#[farcall::service(crate = "farcall")]
pub trait Rows {
    async fn get(&self) -> farcall::Result<Row>;
    async fn all(&self) -> farcall::Result<Vec<Neither>>;
}

fn main() {}
