//! farcall.
