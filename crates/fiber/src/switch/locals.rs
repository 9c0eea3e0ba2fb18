//! The values of [`fiber_local!`](crate::fiber_local), as a fiber or a plain thread keeps them.

use std::any::Any;
use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::ptr::NonNull;

/// Names a value of [`fiber_local!`](crate::fiber_local), as [`std::thread::LocalKey`].
pub struct LocalKey<T: 'static> {
    init: fn() -> T,
}

/// The value has been dropped already: the fiber is ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessError;

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fiber-local value was used after it had been dropped")
    }
}

impl Error for AccessError {}

impl<T: 'static> LocalKey<T> {
    #[doc(hidden)]
    pub const fn new(init: fn() -> T) -> LocalKey<T> {
        LocalKey { init }
    }

    /// Identity of a key: each is a static of its own, and none is empty.
    fn address(&'static self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl<T: 'static> fmt::Debug for LocalKey<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalKey").finish_non_exhaustive()
    }
}

/// The values of one fiber or plain thread, in the order in which they were made.
#[derive(Default)]
pub(crate) struct Locals(RefCell<Vec<LocalValue>>);

struct LocalValue {
    key: usize,
    /// `None` once it has been dropped.
    value: Option<Box<dyn Any>>,
}

impl Locals {
    pub(crate) fn get_or_make<T: 'static>(
        &self,
        key: &'static LocalKey<T>,
    ) -> Result<NonNull<T>, AccessError> {
        if let Some(found) = self.get(key) {
            return found;
        }
        // No borrow is held: making one value may ask for others.
        let value: Box<dyn Any> = Box::new((key.init)());
        if self.get(key).is_some() {
            panic!("the initializer of a fiber-local value accessed that value");
        }
        let key_address = key.address();
        self.0.borrow_mut().push(LocalValue { key: key_address, value: Some(value) });
        self.get(key).expect("the value was just stored")
    }

    fn get<T: 'static>(
        &self,
        key: &'static LocalKey<T>,
    ) -> Option<Result<NonNull<T>, AccessError>> {
        let slots = self.0.borrow();
        let slot = slots.iter().find(|slot| slot.key == key.address())?;
        let value = slot.value.as_ref().ok_or(AccessError);
        Some(value.map(|value| NonNull::from(value.downcast_ref().expect("a key has one type"))))
    }

    /// Drops all values, also those that are made meanwhile by the destructors of others.
    pub(crate) fn clear(&self) {
        loop {
            let last = {
                let mut slots = self.0.borrow_mut();
                slots.iter_mut().rev().find_map(|slot| slot.value.take())
            };
            // Dropped outside of the borrow.
            match last {
                Some(value) => drop(value),
                None => return,
            }
        }
    }

    /// Forgets dropped values, so that they may be made anew.
    pub(crate) fn forget(&self) {
        self.0.borrow_mut().clear();
    }
}
