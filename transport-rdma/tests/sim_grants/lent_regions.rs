//! Regions that are revoked while a call lends a part of them.

use std::sync::Arc;
use std::task::{Context, Waker};

use farcall_core::bulk::BulkRead;
use farcall_core::region::{Region, Rights};
use farcall_core::status::Code;

use crate::loans::{LEN, Lender, expected};
use crate::setup::{PATIENCE, words};

#[tokio::test]
async fn a_server_that_reads_a_lent_region_by_messages_is_refused_when_it_is_revoked() {
    let mut lender = Lender::new(None).await;
    let memory = words(4096);
    let region = Region::export(Arc::clone(&memory), Rights::NONE);
    // Too short for a window.
    let (handle, loan) = BulkRead::of_region(&region, 8..1008).unwrap();
    let call = lender.call_with(&handle);
    drop(handle);
    let (lent, answer) = lender.arrived().await;
    assert_eq!(lent.read(..8).await.unwrap(), 1_u64.to_ne_bytes()[..]);
    // It does not wait for the call.
    tokio::time::timeout(PATIENCE, region.revoke()).await.expect("it waits for the call");
    Arc::into_inner(memory).expect("nobody else has the memory");
    assert!(!call.is_finished());
    let status = lent.read(..8).await.unwrap_err();
    assert_eq!(status.code(), Code::Cancelled, "{status}");
    assert!(status.message().contains("its region was revoked"), "{status}");
    drop(answer);
    call.await.unwrap().unwrap();
    loan.reclaim().await;
}

#[tokio::test]
async fn revoking_a_lent_region_waits_for_the_call_of_a_server_that_reads_it_by_itself() {
    let mut lender = Lender::new(None).await;
    let memory = words(LEN);
    let region = Region::export(Arc::clone(&memory), Rights::NONE);
    region.write(0, &expected(0..LEN)).unwrap();
    let direct = lender.lend_until_direct(|| BulkRead::of_region(&region, ..).unwrap());
    let (call, loan, (lent, answer)) =
        tokio::time::timeout(PATIENCE, direct).await.expect("no read is direct");
    let mut revoking = std::pin::pin!(region.revoke());
    for _ in 0..100 {
        assert!(revoking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it is in use");
        assert!(lender.is_direct(&lent).await, "the call goes on");
    }
    drop(answer);
    call.await.unwrap().unwrap();
    tokio::time::timeout(PATIENCE, revoking).await.expect("a call that has ended keeps the memory");
    loan.reclaim().await;
    Arc::into_inner(memory).expect("nobody else has the memory");
    let status = lent.read(..8).await.unwrap_err();
    assert_eq!(status.code(), Code::Cancelled, "{status}");
    lender.t.until(|t| t.bound() == 0).await;
}
