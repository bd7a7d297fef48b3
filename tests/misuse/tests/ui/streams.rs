//! Methods that answer with a stream, and do not declare it as they must.

#[farcall::service]
pub trait Kv {
    async fn waits(&self) -> impl Stream<Item = farcall::Result<String>>;
    async fn named(&self) -> Streaming<String>;
    fn refuses(&self) -> farcall::Result<impl Stream<Item = farcall::Result<String>>>;
    fn of_nothing(&self) -> impl Stream;
    async fn of_what(&self) -> farcall::Result<impl Stream<Output = String> + Send>;
    fn named_of_nothing(&self) -> Streaming;
    async fn option(&self) -> farcall::Result<Option<impl Stream<Item = farcall::Result<String>>>>;
    async fn not_a_result(&self) -> Option<Streaming<String>>;
    async fn second(&self) -> Result<String, Streaming<String>>;
    fn nested(&self) -> impl Stream<Item = farcall::Result<Streaming<String>>>;
    fn borrowed(&self) -> impl Stream<Item = farcall::Result<&str>>;
    async fn boxed(&self) -> farcall::Result<Pin<Box<dyn Stream<Item = farcall::Result<String>> + Send>>>;
    fn many(&self) -> Vec<Streaming<String>>;
}

fn main() {}
