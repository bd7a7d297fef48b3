use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use farcall::Stream;

#[farcall::service]
pub trait Kv {
    fn watch(&self) -> impl Stream<Item = farcall::Result<u64>>;
    async fn tail(&self) -> farcall::Result<impl Stream<Item = farcall::Result<u64>>>;
}

struct Store;

impl Kv for Store {
    fn watch(&self) -> impl Stream<Item = farcall::Result<u64>> {
        Local(Rc::new(1))
    }

    async fn tail(&self) -> farcall::Result<impl Stream<Item = farcall::Result<u64>>> {
        Ok(Local(Rc::new(1)))
    }
}

struct Local(Rc<u64>);

impl Stream for Local {
    type Item = farcall::Result<u64>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(Some(Ok(*self.0)))
    }
}

fn main() {}

/// Has the name of a trait. So messages name that by its path in builds with TLS, which has such a type, and without.
pub mod other {
    pub struct Stream;
}
