//! Memory that the arguments of a call lend.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Memory that a call lends to its server, of a type that the caller knows.
pub type Loan = Arc<dyn Any + Send + Sync>;

/// The loans of a message. It goes by their addresses when it is compared.
#[derive(Clone, Default)]
pub(super) struct Loans(pub(super) Vec<Loan>);

impl Loans {
    fn addresses(&self) -> impl Iterator<Item = *const ()> {
        self.0.iter().map(|loan| Arc::as_ptr(loan).cast())
    }
}

impl PartialEq for Loans {
    fn eq(&self, other: &Self) -> bool {
        self.addresses().eq(other.addresses())
    }
}

impl Eq for Loans {}

impl Hash for Loans {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.addresses().for_each(|address| address.hash(state));
    }
}

impl fmt::Debug for Loans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} loans", self.0.len())
    }
}
