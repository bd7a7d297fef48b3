//! Memory that a client lends to the server of one call.
//!
//! A method takes a [`BulkRead`] or a [`BulkWrite`] as an argument. The client makes one of memory of its own, and gets a
//! [`Loan`] beside it. The handler reads or writes any part of that memory, in any order, several parts at once. The loan ends
//! with the call: when it has returned, failed, timed out or was dropped, the server can no longer touch the memory, and
//! [`Loan::reclaim`] gives it back.
//!
//! ```
//! # mod farcall { pub use farcall_core::bulk; }
//! use bytes::Bytes;
//! use farcall::bulk::{BulkRead, BulkWrite};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! // Memory for the server to read from. It may be in several parts.
//! let (data, loan) = BulkRead::lend(Bytes::from(vec![7; 1 << 20]));
//! assert_eq!(data.len(), 1 << 20);
//! // store.put(5, data).await?;
//! # drop(data);
//! let _page: Bytes = loan.reclaim().await;
//!
//! // Memory for the server to write to.
//! let (into, loan) = BulkWrite::lend(vec![0; 1 << 20]);
//! // store.get(5, into).await?;
//! # drop(into);
//! let _page: Vec<u8> = loan.reclaim().await;
//! # });
//! ```
//!
//! Either side can use [`Region`](crate::region::Region)s in place of buffers. A server reads into a region of its own by
//! [`BulkRead::read_into`], and writes from one by [`BulkWrite::write_from`]. A client lends a range of a region by [`BulkRead::of_region`] and
//! [`BulkWrite::of_region`].
//!
//! Only the server starts transfers, and it never holds a key to the client's memory beyond the call. By RDMA it reads and writes 16 KiB
//! or more by itself, in a registered buffer (`farcall::buf`) or a region, through a window for that memory on that connection alone. The
//! client's runtime does all other transfers: by TCP as part of the connection's messages, by RDMA as messages that the reader reads from
//! the sender's memory.
//!
//! Where other calls of the client should not wait behind transfers, declare the method `#[rpc(class = Bulk)]`. Then its calls and
//! their transfers have a connection of their own, by RDMA a queue pair.
//!
//! By RDMA a transfer of a call that was given up can last for some seconds. So [reclaim](Loan::reclaim) the memory of such a call before
//! another call lends it.
//!
//! Loans travel in arguments only, alone or in types of the application's own, with the codec [`Postcard`](crate::codec::Postcard).

mod handles;
mod lent_region;
mod loan;

pub use self::handles::{BulkRead, BulkWrite};
pub use self::loan::{Lend, LendParts, Loan};
