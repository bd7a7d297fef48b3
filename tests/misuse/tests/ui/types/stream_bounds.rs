use farcall::{Stream, Streaming};

#[derive(serde::Deserialize)]
pub struct Row {
    id: u64,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub enum NotFromStatus {
    Missing,
}

#[farcall::service]
pub trait Items {
    fn watch(&self) -> impl Stream<Item = farcall::Result<Row>>;
}

/// An alias, which the macro can't see through.
type Text = String;

#[farcall::service]
pub trait NotResults {
    fn watch(&self) -> impl Stream<Item = Text>;
}

#[farcall::service]
pub trait Ends {
    fn watch(&self) -> impl Stream<Item = Result<String, NotFromStatus>>;
}

#[farcall::service]
pub trait Refusals {
    async fn watch(&self) -> Result<impl Stream<Item = farcall::Result<String>>, NotFromStatus>;
}

#[farcall::service]
pub trait Rows {
    async fn load(&self, rows: Streaming<Row>) -> farcall::Result<()>;
}

#[farcall::service(codec = farcall::Prost)]
pub trait Prost {
    async fn load(&self, rows: Streaming<Row>) -> farcall::Result<()>;
    async fn two(&self, table: String, rows: Streaming<String>, limit: u32) -> farcall::Result<()>;
}

fn main() {}
