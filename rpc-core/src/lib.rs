//! farcall-core.
