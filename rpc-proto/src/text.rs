//! Texts for people, which are cut to a length.

use std::borrow::Cow;

/// Returns the text if it has at most `max` bytes; else as much of its beginning as leaves room for a sign that says that the
/// text was cut, and how long it was. `max` must have room for the sign, which is shorter than 64 bytes.
pub fn cut(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    let sign = format!("… (cut: {} bytes)", with_commas(text.len()));
    let mut end = max.saturating_sub(sign.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(format!("{}{sign}", &text[..end]))
}

/// Writes a number as people read it: 1,234,567.
fn with_commas(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn a_text_that_is_cut_says_so() {
        let whole = "x".repeat(64);
        assert_eq!(cut(&whole, 64), whole);
        for (len, sign) in [
            (65, "… (cut: 65 bytes)"),
            (999, "… (cut: 999 bytes)"),
            (1000, "… (cut: 1,000 bytes)"),
            (1_020_034, "… (cut: 1,020,034 bytes)"),
        ] {
            let text = "x".repeat(len);
            assert_eq!(cut(&text, 64), "x".repeat(64 - sign.len()) + sign);
        }
    }
}
