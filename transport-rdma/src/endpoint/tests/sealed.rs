//! Sealed links.
