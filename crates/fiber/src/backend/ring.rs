//! The io_uring of a processor, as the kernel is asked for it.

use std::io;

use io_uring::IoUring;

/// The kernel keeps what does not fit (IORING_FEAT_NODROP), at a price.
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
