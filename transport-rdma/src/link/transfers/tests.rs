//! Transfers that are given up.

use tokio::sync::watch;

use super::*;

/// The length of a transfer, in bytes.
const LEN: usize = 4 * CHUNK;

/// A descriptor of one piece of this length, and what tells that it is used no more.
struct Used([u8; 20], #[expect(dead_code, reason = "for its drop")] watch::Sender<()>);

impl AsRef<[u8]> for Used {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Adds a transfer of several chunks. Returns the caller's end, and what is closed when its descriptor is used no more.
fn add(transfers: &mut Transfers) -> (oneshot::Receiver<()>, watch::Receiver<()>) {
    let ((mover, moved), (used, is_used)) = (oneshot::channel(), watch::channel(()));
    let mut descriptor = [0; 20];
    descriptor[12..].copy_from_slice(&(LEN as u64).to_le_bytes());
    transfers.waiting.push_back(Transfer {
        purpose: Purpose::Move { mover },
        local: Local::From(Bytes::from(vec![0; LEN]).into()),
        remote: GrantedPart::of(Bytes::from_owner(Used(descriptor, used)), 0, LEN).unwrap(),
        begin: 0,
        next: 0,
        end: LEN,
        total: LEN,
    });
    (moved, is_used)
}

/// Its owner may take a grant back when the descriptor is used no more. Then the device refuses what is still to come, and the link fails.
#[test]
fn descriptors_are_kept_until_nothing_is_outstanding_that_needs_them() {
    let mut transfers = Transfers::default();
    transfers.allow(3, 3 * CHUNK);
    let [(first, of_first), (second, of_second)] = [(); 2].map(|()| add(&mut transfers));
    let are_used = || [&of_first, &of_second].map(|descriptor| descriptor.has_changed().is_ok());
    // Two chunks of the first, and between them one of the second.
    for _ in 0..3 {
        assert!(transfers.next().is_some());
    }
    drop((first, second));
    assert!(transfers.completed().is_none());
    assert!(transfers.next().is_none() && transfers.waiting.is_empty());
    assert_eq!(are_used(), [true; 2]);
    assert!(transfers.completed().is_none());
    assert!(are_used()[0], "its second chunk is outstanding");
    assert!(transfers.completed().is_none());
    assert_eq!(are_used(), [false; 2]);
    assert_eq!((transfers.outstanding.len(), transfers.moving), (0, 0));
}
