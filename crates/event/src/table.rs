//! State of a mechanism by descriptor number.

use std::io;
use std::os::fd::RawFd;

use rustix::io::Errno;

/// A table by descriptor number. The kernel hands out the lowest free number, so it is dense.
pub(crate) struct Table<T> {
    rows: Vec<Option<T>>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { rows: Vec::new() }
    }
}

impl<T> Table<T> {
    /// Adds a row; `EEXIST` if there is one, `EBADF` for negative numbers such as `AT_FDCWD`.
    pub(crate) fn insert(&mut self, fd: RawFd, row: T) -> io::Result<()> {
        let at = usize::try_from(fd).map_err(|_| Errno::BADF)?;
        if at >= self.rows.len() {
            self.rows.resize_with(at + 1, || None);
        }
        if self.rows[at].is_some() {
            return Err(Errno::EXIST.into());
        }
        self.rows[at] = Some(row);
        Ok(())
    }

    /// The row of `fd`; `ENOENT` if there is none.
    pub(crate) fn get_mut(&mut self, fd: RawFd) -> io::Result<&mut T> {
        self.find(fd).ok_or_else(|| Errno::NOENT.into())
    }

    pub(crate) fn find(&mut self, fd: RawFd) -> Option<&mut T> {
        self.rows.get_mut(usize::try_from(fd).ok()?)?.as_mut()
    }

    /// Removes the row of `fd`; `ENOENT` if there is none.
    pub(crate) fn remove(&mut self, fd: RawFd) -> io::Result<T> {
        let at = usize::try_from(fd).ok();
        let row = at.and_then(|at| self.rows.get_mut(at)?.take());
        Ok(row.ok_or(Errno::NOENT)?)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RawFd, &T)> {
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(at, row)| Some((at as RawFd, row.as_ref()?)))
    }
}
