//! Set-up of a processor's io_uring.

use std::io;

use io_uring::IoUring;

/// Entries of the completion ring. The kernel keeps an overflow (IORING_FEAT_NODROP), at a price.
const CQ_ENTRIES: u32 = 8192;

/// Sets up a ring as processors use it.
pub(super) fn set_up(entries: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .dontfork()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_cqsize(CQ_ENTRIES.max(entries * 2))
        .build(entries)
}
