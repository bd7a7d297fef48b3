//! Finds libibverbs at run time, so that one binary also starts where it is not installed.
//!
//! Plain `dlsym` yields the default version of each symbol, which is the one that programs are linked with.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::{fmt, mem};

use super::sys::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq, ibv_srq_init_attr,
};
use crate::Unavailable;

/// The name under which every rdma-core installs its library.
pub(super) const LIBRARY: &CStr = c"libibverbs.so.1";

macro_rules! symbols {
    (
        required { $($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)* }
        optional { $($opt:ident: fn($($opt_arg:ty),*) $(-> $opt_ret:ty)?;)* }
    ) => {
        /// The functions of libibverbs, under C's names.
        ///
        /// A field's type is C's declaration; calling one obliges the caller to what its manual page says.
        pub(super) struct Verbs {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(pub(super) $opt: Option<unsafe extern "C" fn($($opt_arg),*) $(-> $opt_ret)?>,)*
        }

        impl Verbs {
            fn resolve(library: &Library) -> Result<Self, Unavailable> {
                Ok(Self {
                    // SAFETY: the symbol is a function of this type in every library of this name.
                    $($name: unsafe {
                        mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(
                            library.required(concat!(stringify!($name), "\0"))?,
                        )
                    },)*
                    // SAFETY: as above; and null is `None`.
                    $($opt: unsafe {
                        mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($opt_arg),*) $(-> $opt_ret)?>>(
                            library.symbol(concat!(stringify!($opt), "\0")),
                        )
                    },)*
                })
            }
        }
    };
}

symbols! {
    required {
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list: fn(*mut *mut ibv_device);
        ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
        ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
        ibv_close_device: fn(*mut ibv_context) -> c_int;
        ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event: fn(*mut ibv_async_event);
        ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
        ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
        ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
        ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
        ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
    }
    optional {
        // Since rdma-core 28. Takes the access flags that a device may ignore, and nothing else needs it.
        ibv_reg_mr_iova2: fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        // Since rdma-core 34: regions in the memory of a device such as a GPU.
        ibv_reg_dmabuf_mr: fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbs").finish_non_exhaustive()
    }
}

impl Verbs {
    /// This machine's libibverbs, loaded at the first call; a failure is found anew by each call, because an installation
    /// may follow.
    pub(super) fn system() -> Result<&'static Self, Unavailable> {
        static SYSTEM: OnceLock<Verbs> = OnceLock::new();
        if let Some(verbs) = SYSTEM.get() {
            return Ok(verbs);
        }
        let verbs = Self::load(LIBRARY)?;
        Ok(SYSTEM.get_or_init(|| verbs))
    }

    /// Loads the library of this name or path. It is never unloaded: its providers start threads and register handlers.
    pub(super) fn load(name: &CStr) -> Result<Self, Unavailable> {
        Self::resolve(&Library::open(name)?)
    }
}

/// A handle of `dlopen`, without `dlclose`.
struct Library {
    handle: *mut c_void,
    name: String,
}

impl Library {
    fn open(name: &CStr) -> Result<Self, Unavailable> {
        // SAFETY: a C string; loading a shared library runs its constructors, which is what is asked for.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let library = name.to_string_lossy().into_owned();
        if handle.is_null() {
            return Err(Unavailable::LibraryAbsent { library, detail: loader_error() });
        }
        Ok(Self { handle, name: library })
    }

    /// Null if the library has no such symbol. `name` ends in a NUL.
    fn symbol(&self, name: &'static str) -> *mut c_void {
        // SAFETY: the handle is open for good, and the name ends in a NUL.
        unsafe { libc::dlsym(self.handle, name.as_ptr().cast()) }
    }

    fn required(&self, name: &'static str) -> Result<*mut c_void, Unavailable> {
        let address = self.symbol(name);
        if address.is_null() {
            let symbol = name.trim_end_matches('\0').to_owned();
            return Err(Unavailable::LibraryTooOld { library: self.name.clone(), symbol });
        }
        Ok(address)
    }
}

/// Returns the loader's message about the call before, which has failed.
fn loader_error() -> String {
    // SAFETY: no arguments; the result belongs to this thread until its next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: a C string, copied before this thread calls the loader again.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_library_is_named_with_the_loaders_reason() {
        let error = Verbs::load(c"libibverbs-that-nobody-has.so.1").unwrap_err();
        let Unavailable::LibraryAbsent { library, detail } = error else { panic!("{error:?}") };
        assert_eq!(library, "libibverbs-that-nobody-has.so.1");
        assert!(detail.contains(&library), "{detail}");
    }

    #[test]
    fn library_without_the_functions_is_too_old_and_names_the_first() {
        let error = Verbs::load(c"libc.so.6").unwrap_err();
        let Unavailable::LibraryTooOld { library, symbol } = error else { panic!("{error:?}") };
        assert_eq!((library.as_str(), symbol.as_str()), ("libc.so.6", "ibv_get_device_list"));
    }
}
