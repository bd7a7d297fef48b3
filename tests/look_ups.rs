//! The check of the example `index`: look-ups by one-sided reads, beside changes.

#![expect(unreachable_pub, reason = "in an application a service is a library of its own")]

mod over;

#[path = "../examples/index/check.rs"]
mod check;
#[path = "../examples/index/owner.rs"]
mod owner;
#[path = "../examples/index/reader.rs"]
mod reader;
#[path = "../examples/index/service.rs"]
mod service;

use farcall::Server;

use owner::Owner;
use service::IndexServer;

/// By RDMA the check fails unless the readers' device does nearly all reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_no_handler_and_are_never_torn() {
    let owner = Owner::new(1024).unwrap();
    let server = Server::builder().add(IndexServer::new(owner.clone())).config(over::config());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = over::address(server.local_addr());
    tokio::spawn(server.serve());
    check::run(&address, Some(&owner)).await.unwrap();
}
