//! Implements for an owner the I/O traits of its shared reference.

/// Implements `Read` and `Write` by those of the reference.
macro_rules! by_reference {
    (Read, Write for $name:ident) => {
        $crate::base::by_reference!(Read for $name);
        $crate::base::by_reference!(Write for $name);
    };
    (Read for $name:ident) => {
        impl std::io::Read for $name {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                (&*self).read(buffer)
            }
        }
    };
    (Write for $name:ident) => {
        impl std::io::Write for $name {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                (&*self).write(bytes)
            }

            fn write_vectored(
                &mut self,
                slices: &[std::io::IoSlice<'_>],
            ) -> std::io::Result<usize> {
                (&*self).write_vectored(slices)
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
    };
}

pub(crate) use by_reference;
