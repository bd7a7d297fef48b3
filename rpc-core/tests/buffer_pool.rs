//! In a process of its own, because the whole process shares the spare buffers.

use farcall_core::buffer_pool;

#[test]
fn large_buffers_are_used_again_when_nobody_has_a_view_of_them() {
    const LEN: usize = 64 << 10;
    let mut buffer = buffer_pool::take(LEN - 10).unwrap();
    assert_eq!(buffer.capacity(), LEN);
    buffer.extend_from_slice(&[7; LEN]);
    let lies_at = buffer.as_ptr();
    let whole = buffer_pool::share(buffer, LEN);
    let view = whole.slice(1000..2000);
    drop(whole);
    assert_ne!(buffer_pool::take(LEN).unwrap().as_ptr(), lies_at, "it is still looked at");
    assert_eq!(view, [7; 1000][..]);
    drop(view);
    let again = buffer_pool::take(LEN).unwrap();
    assert_eq!((again.as_ptr(), again.len()), (lies_at, 0));

    buffer_pool::give(again, LEN);
    assert_ne!(
        buffer_pool::take(LEN / 4).unwrap().as_ptr(),
        lies_at,
        "who needs little must not hold on to much"
    );
    assert_ne!(buffer_pool::take(LEN + 1).unwrap().as_ptr(), lies_at, "it is too small");
    let mut again = buffer_pool::take(LEN).unwrap();
    assert_eq!(again.as_ptr(), lies_at);

    // The rest is as large as a spare buffer, but is not all of its memory.
    again.extend_from_slice(&[7; 3 * LEN / 4]);
    let mut first = again.split();
    let rest = again.as_ptr();
    buffer_pool::give(again, LEN);
    assert!(
        ![rest, lies_at].contains(&buffer_pool::take(LEN / 4).unwrap().as_ptr()),
        "others have a view of it"
    );
    assert!(![rest, lies_at].contains(&buffer_pool::take(LEN).unwrap().as_ptr()), "others have a view of it");

    // The owner of the last part gets all of the memory back.
    first.clear();
    buffer_pool::give(first, LEN);
    let again = buffer_pool::take(LEN).unwrap();
    assert_eq!((again.as_ptr(), again.capacity()), (lies_at, LEN));
}
