//! One shard: timers, receive burst, handlers, transmit burst.
