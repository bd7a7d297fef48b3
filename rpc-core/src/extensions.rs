//! Values that go with a request within a process.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;

/// Values by type that go with a [`Request`](crate::middleware::Request) from one layer to the next. On a server they
/// reach the handler, as [`Context::extension`](crate::context::Context::extension). They are not sent.
///
/// ```
/// use farcall_core::extensions::Extensions;
///
/// #[derive(Clone, Debug, PartialEq)]
/// struct User(String);
///
/// let mut extensions = Extensions::default();
/// extensions.insert(User("ann".into()));
/// assert_eq!(extensions.get::<User>(), Some(&User("ann".into())));
/// assert_eq!(extensions.get::<u64>(), None);
/// ```
#[derive(Clone, Default)]
pub struct Extensions(HashMap<TypeId, Box<dyn Value>>);

trait Value: Any + Send + Sync {
    fn boxed_clone(&self) -> Box<dyn Value>;
    fn as_any(&self) -> &dyn Any;
}

impl<T: Clone + Send + Sync + 'static> Value for T {
    fn boxed_clone(&self) -> Box<dyn Value> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Clone for Box<dyn Value> {
    fn clone(&self) -> Self {
        (**self).boxed_clone()
    }
}

impl Extensions {
    /// Adds a value, replacing one of the same type.
    pub fn insert<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Box::new(value));
    }

    /// Returns the value of this type.
    pub fn get<T: Clone + Send + Sync + 'static>(&self) -> Option<&T> {
        (**self.0.get(&TypeId::of::<T>())?).as_any().downcast_ref()
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extensions").field("len", &self.0.len()).finish()
    }
}
