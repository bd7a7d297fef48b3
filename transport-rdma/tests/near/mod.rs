//! A host in this process, as what a caller connects to.

use std::sync::Arc;

use farcall_core::client::Connector;
use farcall_core::server::ServerCore;
use farcall_core::status::Result;
use farcall_core::transport::{BoxFuture, Link, memory};

pub(crate) struct Near(pub(crate) Arc<ServerCore>);

impl Connector for Near {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        let (near, far) = memory::pair();
        self.0.serve(far);
        Box::pin(async { Ok(near) })
    }

    fn target(&self) -> String {
        "there".into()
    }
}
