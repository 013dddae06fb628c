//! libibverbs, opened at run time where it is installed.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::abi::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid_entry,
    ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};
use crate::error::VerbsError;

/// Name of the library. A version with another ABI would have another number.
const NAME: &str = "libibverbs.so.1";

macro_rules! functions {
    ($(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs that this crate calls, by their C names.
        pub(crate) struct Verbs {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Keeps the functions where they are.
            _library: Library,
        }

        impl Verbs {
            /// Looks the functions up.
            ///
            /// # Safety
            /// The library must be libibverbs: its functions have the signatures below.
            unsafe fn of(library: Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the function of that name in the caller's libibverbs, kept beside its library.
                    $($name: unsafe { *library.get(concat!(stringify!($name), "\0").as_bytes())? },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    fn ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    fn ibv_free_device_list(*mut *mut ibv_device);
    fn ibv_get_device_name(*mut ibv_device) -> *const c_char;
    fn ibv_is_fork_initialized() -> c_uint;
    fn ibv_fork_init() -> c_int;
    fn ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    fn ibv_close_device(*mut ibv_context) -> c_int;
    fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    fn ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    fn ibv_query_pkey(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    fn _ibv_query_gid_table(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    fn ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
    fn ibv_ack_async_event(*mut ibv_async_event);
    fn ibv_event_type_str(c_uint) -> *const c_char;
    fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
    fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    fn ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
    fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    fn ibv_ack_cq_events(*mut ibv_cq, c_uint);
    fn ibv_wc_status_str(c_uint) -> *const c_char;
    fn ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    fn ibv_destroy_qp(*mut ibv_qp) -> c_int;
}

impl Verbs {
    /// Opens the library, once in this process: it keeps state of the process itself, and its drivers can't be unloaded.
    ///
    /// # Errors
    /// [`VerbsError::NoLibrary`]. A later call tries again.
    pub(crate) fn get() -> Result<&'static Self, VerbsError> {
        static OPENED: OnceLock<Verbs> = OnceLock::new();
        if let Some(verbs) = OPENED.get() {
            return Ok(verbs);
        }
        let verbs = Self::open(NAME)?;
        // Another thread may have been faster. Then this handle of the library is closed again.
        Ok(OPENED.get_or_init(|| verbs))
    }

    fn open(name: &str) -> Result<Self, VerbsError> {
        // SAFETY: libibverbs, which programs link as well: what it runs when it is opened suits any process.
        let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
        // SAFETY: this is libibverbs. Of a function with several versions the default one is found, which is the one that a program
        // linked with its header gets.
        let verbs = library.and_then(|library| unsafe { Self::of(library) });
        verbs.map_err(|why| VerbsError::NoLibrary(why.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str) -> String {
        Verbs::open(name).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn the_reason_and_the_remedy_are_named_where_the_library_is_not_installed() {
        let error = error("libibverbs.so.0");
        assert!(error.contains("libibverbs.so.0") && error.contains("No such file"), "{error}");
        assert!(error.contains("ibverbs-providers"), "{error}");
    }

    #[test]
    fn a_library_that_is_too_old_is_refused_with_the_name_of_the_missing_function() {
        let error = error("libc.so.6");
        assert!(error.contains("ibv_get_device_list") && error.contains("35"), "{error}");
    }
}
