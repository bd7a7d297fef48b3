//! The stand-in for TLS in builds without the feature `tls`. It has no values.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::BufMut;
use farcall_core::transport::{Identity, Secret, Unavailable};

use crate::stream::Stream;

#[derive(Debug)]
pub(crate) enum Session {}

impl Session {
    pub(crate) fn read(&self, _: &Stream, _: &mut impl BufMut, _: usize) -> (io::Result<usize>, bool) {
        match *self {}
    }

    pub(crate) fn write(&self, _: &Stream, _: &[IoSlice<'_>]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn is_establishing(&self) -> bool {
        match *self {}
    }

    pub(crate) fn has_unflushed(&self) -> bool {
        match *self {}
    }

    pub(crate) fn is_amid_record(&self) -> bool {
        match *self {}
    }

    pub(crate) fn flush(&self, _: &Stream) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn end(&self) {
        match *self {}
    }

    pub(crate) fn secret(&self) -> Result<Arc<dyn Secret>, Unavailable> {
        match *self {}
    }

    pub(crate) fn identity(&self) -> Option<Arc<Identity>> {
        match *self {}
    }
}
