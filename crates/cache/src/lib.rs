//! The memcached protocols as a [`Session`](session::Session), over an item store of its own.
//!
//! The protocols and the store do not know each other's insides. Between them stands a [`store::Turn`]:
//! what one call of the session does to the store.

#![deny(unsafe_code)]

pub mod store;
