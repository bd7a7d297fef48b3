//! The check of the example `pages`: caches of pages that a server moves to and from memory that calls lend.

#![expect(unreachable_pub, reason = "in an application a service is a library of its own")]

mod over;

#[path = "../examples/pages/cache.rs"]
mod cache;
#[path = "../examples/pages/check.rs"]
mod check;
#[path = "../examples/pages/service.rs"]
mod service;
#[path = "../examples/pages/store.rs"]
mod store;

use std::io::{Seek, Write};

use farcall::{Channel, Server};

use check::Report;
use service::PagesServer;
use store::Store;

const PAGE: usize = 4096;
const PAGES: usize = 256;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_is_as_it_was_written() {
    let path = std::env::temp_dir().join(format!("farcall-page-cache-{}", std::process::id()));
    let mut file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    // The handle keeps it, and nothing is left behind.
    std::fs::remove_file(&path).unwrap();
    file.write_all(&(0..PAGES * PAGE).map(|at| (at * 7 / 3) as u8).collect::<Vec<_>>()).unwrap();
    file.rewind().unwrap();
    let store = Store::open(file, PAGE).unwrap();
    let server = Server::builder().add(PagesServer::new(store)).config(over::config());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = over::address(server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::connect(&address).await.unwrap();
    assert_eq!(channel.transport().await.unwrap().name, over::transport());
    let Report { shape, frames, counts, took, model } = check::run(&channel, PAGES / 4).await.unwrap();
    println!(
        "{frames} frames, {} pages used, {} fetched, {took:?}",
        counts.hits + counts.misses,
        counts.misses
    );
    assert_eq!((shape.pages, model.len()), (PAGES as u64, PAGES));
    assert!(counts.misses > PAGES as u64 / 4 && counts.written_back > 0, "{} fetched", counts.misses);
}
