//! System calls that a kernel or a container does not have.

use std::io::Error;

/// Makes a system call fail with `errno`, or return 0, in this thread and in those that it starts.
pub(crate) fn answer(call: libc::c_long, errno: i32) {
    let instruction = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut rule = [
        // The number of the call is the first word that a filter can look at.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: rule.len() as u16, filter: rule.as_mut_ptr() };
    let (yes, none): (libc::c_ulong, libc::c_ulong) = (1, 0);
    let filter = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: takes no pointers. prctl(2)
    let locked = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, yes, none, none, none) };
    assert_eq!(locked, 0, "{}", Error::last_os_error());
    // SAFETY: the kernel reads the program, and what it names, during the call. seccomp(2)
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, filter, &raw const program) };
    assert_eq!(set, 0, "{}", Error::last_os_error());
}
