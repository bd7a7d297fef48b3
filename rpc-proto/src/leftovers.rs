//! Messages of a session that has ended, which are freed one by one.

/// Messages of a session that has ended.
pub trait Leftovers {
    /// Returns how many they are.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how much memory they take, in bytes.
    fn memory(&self) -> usize;

    /// Drops one of them, if there is one.
    fn drop_one(&mut self);
}
