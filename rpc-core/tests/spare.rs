//! By itself, because all of a process share the spare buffers.

use farcall_core::spare;

#[test]
fn large_buffers_are_used_again_when_nobody_has_a_view_of_them() {
    const LEN: usize = 64 << 10;
    let mut buffer = spare::take(LEN);
    buffer.extend_from_slice(&[7; LEN]);
    let lies_at = buffer.as_ptr();
    let whole = spare::share(buffer);
    let view = whole.slice(1000..2000);
    drop(whole);
    assert_ne!(spare::take(LEN).as_ptr(), lies_at, "it is still looked at");
    assert_eq!(view, [7; 1000][..]);
    drop(view);
    let again = spare::take(LEN);
    assert_eq!((again.as_ptr(), again.len()), (lies_at, 0));

    spare::give(again);
    assert_ne!(spare::take(LEN / 4).as_ptr(), lies_at, "who needs little must not hold on to much");
    assert_ne!(spare::take(LEN + 1).as_ptr(), lies_at, "it is too small");
    let again = spare::take(LEN);
    assert_eq!(again.as_ptr(), lies_at);

    let mut again = again;
    again.extend_from_slice(b"seen");
    let seen = again.split().freeze();
    spare::give(again);
    assert_ne!(spare::take(LEN).as_ptr(), lies_at, "others have a view of it");
    drop(seen);
}
