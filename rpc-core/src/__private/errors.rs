//! Functions that find a status in the error of a method.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;

use crate::call_error::CallError;
use crate::status::Status;

/// A function that returns the status if an error is one, or contains one.
pub type StatusIn = for<'e> fn(&'e (dyn Any + 'static)) -> Option<&'e Status>;

/// The type of an error, on which generated code calls [`status_in`](OtherError::status_in). For a [`CallError`] the
/// compiler prefers the inherent method to that of the trait [`OtherError`].
pub struct ErrorType<E>(pub(super) PhantomData<fn(E)>);

impl<E> fmt::Debug for ErrorType<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ErrorType")
    }
}

impl<E: 'static> ErrorType<CallError<E>> {
    /// Returns the function that finds the status.
    pub fn status_in(&self) -> StatusIn {
        |error| error.downcast_ref::<CallError<E>>()?.status()
    }
}

/// An error type other than [`CallError`].
pub trait OtherError {
    /// Returns the function that finds the status.
    fn status_in(&self) -> StatusIn;
}

impl<E> OtherError for ErrorType<E> {
    fn status_in(&self) -> StatusIn {
        is_status
    }
}

/// Returns the error if it is a status.
pub(super) fn is_status<'e>(error: &'e (dyn Any + 'static)) -> Option<&'e Status> {
    error.downcast_ref()
}
