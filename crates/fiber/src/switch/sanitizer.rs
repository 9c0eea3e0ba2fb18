//! Calls of AddressSanitizer at each switch, for builds with the feature `sanitizer`: it keeps the
//! bounds of a thread's stack, and may keep frames elsewhere. sanitizer/common_interface_defs.h

#[cfg(not(feature = "sanitizer"))]
pub(super) use disabled::{arrive, back, begin, end, leave};
#[cfg(feature = "sanitizer")]
pub(super) use enabled::{arrive, back, begin, end, leave};

#[cfg(feature = "sanitizer")]
mod enabled {
    use std::cell::Cell;
    use std::ffi::c_void;
    use std::ptr::{null, null_mut};

    use crate::switch::stack::StackPlace;

    /// Bottom and length of a stack.
    type Bounds = (*const c_void, usize);

    unsafe extern "C" {
        fn __sanitizer_start_switch_fiber(
            save: *mut *mut c_void,
            bottom: *const c_void,
            len: usize,
        );
        fn __sanitizer_finish_switch_fiber(
            saved: *mut c_void,
            bottom: *mut *const c_void,
            len: *mut usize,
        );
    }

    thread_local! {
        /// The thread's own stack, where contexts without a stack are.
        static OWN: Cell<Bounds> = const { Cell::new((null(), 0)) };
    }

    fn bounds(to: Option<StackPlace>) -> Bounds {
        to.map_or_else(own, |place| {
            let usable = place.usable();
            let start = std::ptr::with_exposed_provenance(usable.start);
            (start, usable.len())
        })
    }

    #[inline(never)]
    fn own() -> Bounds {
        if OWN.get().0.is_null() {
            let mut bottom = null_mut();
            let mut len = 0;
            // SAFETY: the attributes are written before they are read, and destroyed.
            unsafe {
                let mut attributes = std::mem::zeroed();
                libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes);
                libc::pthread_attr_getstack(&raw const attributes, &raw mut bottom, &raw mut len);
                libc::pthread_attr_destroy(&raw mut attributes);
            }
            OWN.set((bottom, len));
        }
        OWN.get()
    }

    /// Leaves a stack for `to`, the thread's own if `None`; returns where its frames are.
    #[inline(always)]
    pub(crate) fn leave(to: Option<StackPlace>) -> *mut c_void {
        let mut save = null_mut();
        let (bottom, len) = bounds(to);
        // SAFETY: the stack that is switched to.
        unsafe { __sanitizer_start_switch_fiber(&raw mut save, bottom, len) };
        save
    }

    /// Notes the return to a stack that was left.
    #[inline(always)]
    pub(crate) fn arrive(left: *mut c_void) {
        // SAFETY: after the switch back, with what was saved before it.
        unsafe { __sanitizer_finish_switch_fiber(left, null_mut(), null_mut()) };
    }

    /// Begins on a stack; returns the bounds of the one before.
    pub(crate) fn begin() -> Bounds {
        let mut bottom = null();
        let mut len = 0;
        // SAFETY: nothing was saved of a new stack.
        unsafe { __sanitizer_finish_switch_fiber(null_mut(), &raw mut bottom, &raw mut len) };
        (bottom, len)
    }

    /// Leaves a stack for `to`, for good.
    pub(crate) fn end(to: Option<StackPlace>) {
        back(bounds(to));
    }

    /// Leaves a stack for the one with these bounds, for good.
    pub(crate) fn back((bottom, len): Bounds) {
        // SAFETY: the stack that is switched to.
        unsafe { __sanitizer_start_switch_fiber(null_mut(), bottom, len) };
    }
}

#[cfg(not(feature = "sanitizer"))]
mod disabled {
    use crate::switch::stack::StackPlace;

    pub(crate) struct Disabled;

    #[inline(always)]
    pub(crate) fn leave(_: Option<StackPlace>) -> Disabled {
        Disabled
    }

    #[inline(always)]
    pub(crate) fn arrive(_: Disabled) {}

    #[inline(always)]
    pub(crate) fn begin() -> Disabled {
        Disabled
    }

    #[inline(always)]
    pub(crate) fn end(_: Option<StackPlace>) {}

    #[inline(always)]
    pub(crate) fn back(_: Disabled) {}
}
