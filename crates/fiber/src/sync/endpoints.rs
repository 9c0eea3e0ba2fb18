//! Macro for the senders and receivers of both kinds of channels: the types differ in what may be
//! cloned, not in what they do.

use std::error::Error;
use std::fmt;
use std::sync::mpsc::TrySendError;

/// A send that was not possible in time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SendTimeoutError<T> {
    /// The time is over; here is the message.
    Timeout(T),
    /// All receivers are gone; here is the message.
    Disconnected(T),
}

impl<T> SendTimeoutError<T> {
    /// The message.
    pub fn into_inner(self) -> T {
        match self {
            SendTimeoutError::Timeout(message) | SendTimeoutError::Disconnected(message) => message,
        }
    }
}

impl<T> From<TrySendError<T>> for SendTimeoutError<T> {
    fn from(error: TrySendError<T>) -> SendTimeoutError<T> {
        match error {
            TrySendError::Full(message) => SendTimeoutError::Timeout(message),
            TrySendError::Disconnected(message) => SendTimeoutError::Disconnected(message),
        }
    }
}

impl<T> fmt::Debug for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendTimeoutError::Timeout(_) => "Timeout(..)",
            SendTimeoutError::Disconnected(_) => "Disconnected(..)",
        })
    }
}

impl<T> fmt::Display for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendTimeoutError::Timeout(_) => "no receiver took the message in time",
            SendTimeoutError::Disconnected(_) => "sending on a channel without receivers",
        })
    }
}

impl<T> Error for SendTimeoutError<T> {}

/// The methods of a sender that may have to wait.
macro_rules! sender {
    ($sender:ident) => {
        impl<T> $sender<T> {
            /// Sends, and waits for room (or, without room between the two, for a receiver) if
            /// there is none.
            ///
            /// # Errors
            /// The message, if all receivers are gone; or if it had to wait, and the fiber is
            /// [cancelled](crate::Fiber::cancel) or the time of [`timeout`](crate::timeout) is
            /// over, as [`checkpoint`](crate::checkpoint) then tells.
            #[inline]
            pub fn send(&self, message: T) -> Result<(), SendError<T>> {
                self.channel.send(message, Limit::WithFiber).map_err(channel::disconnected)
            }

            /// Sends, if there is room (or a waiting receiver).
            ///
            /// # Errors
            /// The message, if there is none, or if all receivers are gone.
            #[inline]
            pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
                self.channel.try_send(message)
            }

            /// Sends, and waits for room not longer than `timeout`. `Ok` means that the message is
            /// on its way, also when room came in the moment in which the time was over.
            ///
            /// # Errors
            /// The message, when the time is over, or if all receivers are gone.
            pub fn send_timeout(
                &self,
                message: T,
                timeout: Duration,
            ) -> Result<(), SendTimeoutError<T>> {
                let limit = Limit::At(after(timeout));
                Ok(self.channel.send(message, limit)?)
            }

            /// For [`Select`](super::Select) and [`select!`](crate::select): to send `message`.
            pub fn sending(&self, message: T) -> Sending<'_, T> {
                Sending::new(&self.channel, message)
            }
        }

        clone_and_drop!($sender, add_sender, drop_sender);
    };
}

/// The methods of a receiver.
macro_rules! receiver {
    ($receiver:ident) => {
        impl<T> $receiver<T> {
            /// Waits for a message.
            ///
            /// # Errors
            /// If there is none and all senders are gone; or if there is none and the fiber is
            /// [cancelled](crate::Fiber::cancel), or the time of [`timeout`](crate::timeout) is
            /// over, as [`checkpoint`](crate::checkpoint) then tells.
            #[inline]
            pub fn recv(&self) -> Result<T, RecvError> {
                self.channel.receive(Limit::WithFiber).map_err(channel::ended)
            }

            /// A message, if there is one.
            ///
            /// # Errors
            /// If there is none, with or without senders.
            #[inline]
            pub fn try_recv(&self) -> Result<T, TryRecvError> {
                self.channel.try_receive()
            }

            /// Waits for a message, but not longer than `timeout`. A message that comes in the very
            /// moment in which the time is over is returned, not lost.
            ///
            /// # Errors
            /// When the time is over, or if there is none and all senders are gone.
            pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
                self.channel.receive(Limit::At(after(timeout)))
            }

            /// Messages until [`recv`](Self::recv) fails.
            pub fn iter(&self) -> Iter<'_, T> {
                Iter { receiver: self }
            }

            /// The messages that are there.
            pub fn try_iter(&self) -> TryIter<'_, T> {
                TryIter { receiver: self }
            }

            /// Number of messages that were not received yet.
            pub fn len(&self) -> usize {
                self.channel.len()
            }

            /// True if there is no message.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Limit on messages; `None` if there is none.
            pub fn capacity(&self) -> Option<usize> {
                self.channel.capacity()
            }

            /// For [`Select`](super::Select) and [`select!`](crate::select): to receive a message.
            pub fn receiving(&self) -> Receiving<'_, T> {
                Receiving::new(&self.channel)
            }
        }

        /// Messages until `recv` fails; see `iter`.
        #[derive(Debug)]
        pub struct Iter<'a, T> {
            receiver: &'a $receiver<T>,
        }

        /// The messages that are there; see `try_iter`.
        #[derive(Debug)]
        pub struct TryIter<'a, T> {
            receiver: &'a $receiver<T>,
        }

        /// Messages until `recv` fails, from a receiver of its own.
        #[derive(Debug)]
        pub struct IntoIter<T> {
            receiver: $receiver<T>,
        }

        impl<T> Iterator for Iter<'_, T> {
            type Item = T;

            fn next(&mut self) -> Option<T> {
                self.receiver.recv().ok()
            }
        }

        impl<T> Iterator for TryIter<'_, T> {
            type Item = T;

            fn next(&mut self) -> Option<T> {
                self.receiver.try_recv().ok()
            }
        }

        impl<T> Iterator for IntoIter<T> {
            type Item = T;

            fn next(&mut self) -> Option<T> {
                self.receiver.recv().ok()
            }
        }

        impl<'a, T> IntoIterator for &'a $receiver<T> {
            type Item = T;
            type IntoIter = Iter<'a, T>;

            fn into_iter(self) -> Iter<'a, T> {
                self.iter()
            }
        }

        impl<T> IntoIterator for $receiver<T> {
            type Item = T;
            type IntoIter = IntoIter<T>;

            fn into_iter(self) -> IntoIter<T> {
                IntoIter { receiver: self }
            }
        }

        impl<T> fmt::Debug for $receiver<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($receiver)).finish_non_exhaustive()
            }
        }
    };
}

/// Counts ends: the last one of a side closes the channel.
macro_rules! clone_and_drop {
    ($end:ident, $add:ident, $drop:ident) => {
        impl<T> Clone for $end<T> {
            fn clone(&self) -> $end<T> {
                self.channel.$add();
                let channel = Arc::clone(&self.channel);
                $end { channel }
            }
        }

        impl<T> Drop for $end<T> {
            fn drop(&mut self) {
                self.channel.$drop();
            }
        }

        impl<T> fmt::Debug for $end<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($end)).finish_non_exhaustive()
            }
        }
    };
}

pub(super) use {clone_and_drop, receiver, sender};
