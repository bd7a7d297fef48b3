#[derive(serde::Deserialize)]
pub struct Row {
    id: u64,
}

#[farcall::service]
pub trait Rows {
    async fn get(&self) -> farcall::Result<Row>;
}

fn main() {}
