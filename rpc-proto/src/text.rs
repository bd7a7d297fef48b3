//! Texts for people, which are cut to a length.

/// Returns the longest beginning of `text` that has at most `max` bytes.
pub fn cut(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
