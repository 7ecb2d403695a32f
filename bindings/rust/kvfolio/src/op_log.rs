// SPDX-License-Identifier: Apache-2.0
//
// The operation log. Its memory in C is written to by calls of the manager that records. So that no
// thread reads it meanwhile, the manager owns the log until the recording ends, and lends it as & only:
// with &mut a program could swap it for another one, and drop the one that C writes to.
//
// SAFETY of every call here: the handle lives as long as self; calls that change the log, or write to
// the sink, take &mut self, of the log or of the manager that owns it.

use crate::error::call;
use crate::{sys, Error, Manager, Result};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::raw::{c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::io::{AsRawFd, IntoRawFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::ptr::{null_mut, NonNull};

/// Where the calls of a cache are written down, so that a failure becomes a file that repeats it:
/// `kvfolio inspect --replay FILE` makes the calls again and names the first that answers otherwise.
///
/// [`Manager::record`] takes it and gives it back. Two runs that make the same calls write the same
/// bytes. **The tokens of prompts are in it**; bytes of K and V are not.
///
/// The first error ends the log and is its [`status`](OpLog::status). It changes no answer of the cache.
///
/// ```
/// use kvfolio::{Cache, GroupSpec, OpLog, Options};
///
/// # let path = std::env::temp_dir().join(format!("kvfolio-doc-oplog-{}", std::process::id()));
/// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 64, ..GroupSpec::default() }];
/// let mut cache = Cache::new(&groups, &Options::default())?;
/// cache.record(Some(OpLog::create(&path, false)?))?; // before the first call that changes it
/// let sequence = cache.open(&[1, 2, 3], &Default::default())?.sequence;
/// cache.close(sequence)?;
/// cache.flush_op_log()?; // what was recorded is in the file
/// assert_eq!(cache.op_log().unwrap().num_calls(), 2);
/// let mut log = cache.record(None)?.expect("the one above"); // the log is whole
/// log.status()?;
/// # assert!(std::fs::read(&path).unwrap().len() > 50);
/// # std::fs::remove_file(&path).unwrap();
///
/// let pipe = OpLog::to_writer(std::io::sink(), true); // or anything else that takes bytes
/// log = pipe?;
/// log.flush()?;
/// # Ok::<(), kvfolio::Error>(())
/// ```
pub struct OpLog {
    raw: NonNull<sys::kvfolio_op_log>,
    /// C has a pointer to it until the log is destroyed; null for a file.
    sink: *mut Sink,
}

// SAFETY: a log may move between threads, and so may its writer. What takes &self reads numbers and
// texts, and reaches no method of the writer.
unsafe impl Send for OpLog {}
unsafe impl Sync for OpLog {}

impl OpLog {
    /// A file of mode 0600, in place of what was there. `flush_each_call`: the arguments of a call are
    /// in the file before the call is made, so also those of a call in which the program dies; it
    /// costs a system call or two for each.
    ///
    /// `Unavailable`: what the system says of the path, or that another log is being written to it.
    pub fn create<P: AsRef<Path>>(path: P, flush_each_call: bool) -> Result<OpLog> {
        let path = path.as_ref();
        if path.as_os_str().as_bytes().contains(&0) {
            return Err(Error::InvalidArgument(format!("{path:?} has a 0 in it")));
        }
        let file = open_file(path)
            .map_err(|error| Error::Unavailable(format!("{}: {error}", path.display())))?;
        let mut out = null_mut();
        call(|error| unsafe {
            sys::kvfolio_op_log_create_fd(file.as_raw_fd(), flush_each_call as i32, &mut out, error)
        })?;
        let _ = file.into_raw_fd(); // it is the log's now
        Ok(OpLog { raw: NonNull::new(out).expect("C gave a log"), sink: null_mut() })
    }

    /// The log goes to a writer, in pieces of up to 16 KiB, in the thread of the call that filled one.
    /// An error of the writer ends the log, and so does a panic, which goes no further; the writer is
    /// dropped with the log. `flush_each_call`: as for a file; the writer is flushed each time.
    pub fn to_writer<W: Write + Send + 'static>(writer: W, flush_each_call: bool) -> Result<OpLog> {
        let sink = Sink { writer: Box::new(writer), flush_each_call, error: None };
        let sink = Box::into_raw(Box::new(sink));
        let functions = sys::kvfolio_byte_sink {
            context: sink.cast(),
            write: Some(write),
            ..sys::kvfolio_byte_sink::new()
        };
        let mut out = null_mut();
        let made = call(|error| unsafe {
            sys::kvfolio_op_log_create(&functions, flush_each_call as i32, &mut out, error)
        });
        if let Err(error) = made {
            // SAFETY: there is no log that would use it.
            drop(unsafe { Box::from_raw(sink) });
            return Err(error);
        }
        Ok(OpLog { raw: NonNull::new(out).expect("C gave a log"), sink })
    }

    /// Why the log ended before the calls did: what the writer or the system said, the message of a
    /// panic; `FailedPrecondition`: the cache had been used before [`Manager::record`], it was the
    /// target of [`Manager::copy_to`], or the log has calls of another recording.
    pub fn status(&self) -> Result<()> {
        let status = call(|error| unsafe { sys::kvfolio_op_log_status(self.raw.as_ptr(), error) });
        self.explain(status)
    }

    /// Calls of the recording; after an error of the writer, also those that it did not get.
    pub fn num_calls(&self) -> i64 {
        unsafe { sys::kvfolio_op_log_num_calls(self.raw.as_ptr()) }
    }

    /// Gives the file or the writer all that was recorded, and flushes the writer. It returns what
    /// [`status`](OpLog::status) says then. A log that a cache has: [`Manager::flush_op_log`].
    pub fn flush(&mut self) -> Result<()> {
        let given = call(|error| unsafe { sys::kvfolio_op_log_flush(self.raw.as_ptr(), error) });
        // SAFETY: the sink lives as long as self, and C is not in a call of it.
        if let Some(sink) = unsafe { self.sink.as_mut() } {
            let _ = sink.attempt(|writer| writer.flush()); // it keeps its error
        }
        self.explain(given)
    }

    /// The error of the writer says more than that of C, which follows from it.
    fn explain(&self, result: Result<()>) -> Result<()> {
        // SAFETY: the sink lives as long as self, and changes only while that is borrowed mutably.
        match unsafe { self.sink.as_ref() }.and_then(|sink| sink.error.as_ref()) {
            Some(error) => Err(Error::Unavailable(error.clone())),
            None => result,
        }
    }
}

extern "C" {
    fn flock(fd: c_int, operation: c_int) -> c_int;
}

/// Empty, of mode 0600, and not a pipe or a device. Locked while it is open: two logs that write one
/// file at once would mix their calls. A file system without locks refuses no log.
fn open_file(path: &Path) -> io::Result<File> {
    const O_NONBLOCK: i32 = 0o4000; // a pipe without a reader does not keep us waiting
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).mode(0o600).custom_flags(O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    const LOCK_EX_NB: c_int = 2 | 4;
    // SAFETY: the descriptor is open.
    if unsafe { flock(file.as_raw_fd(), LOCK_EX_NB) } != 0
        && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
    {
        let said = "another log is being written to it";
        return Err(io::Error::new(io::ErrorKind::WouldBlock, said));
    }
    file.set_len(0)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

impl Drop for OpLog {
    fn drop(&mut self) {
        // SAFETY: both were created here and go once. The manager that recorded is gone or has ended
        // it, so this destroys the log, which writes what it still has; nothing uses the sink then.
        unsafe {
            sys::kvfolio_op_log_destroy(self.raw.as_ptr());
            if !self.sink.is_null() {
                drop(Box::from_raw(self.sink));
            }
        }
    }
}

impl std::fmt::Debug for OpLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpLog({} calls, {:?})", self.num_calls(), self.status())
    }
}

/// # The operation log: see [`OpLog`]
impl Manager {
    /// From now on each call that changes the cache is written down; call it before the first of them.
    /// `None`: no more. Returns the log that was recorded to until now, which is whole then: it ends
    /// with the number of calls and `state_hash()`. The log of a cache that is dropped has all calls,
    /// without such an end.
    pub fn record(&mut self, log: Option<OpLog>) -> Result<Option<OpLog>> {
        let raw = log.as_ref().map_or(null_mut(), |log| log.raw.as_ptr());
        call(|error| unsafe { sys::kvfolio_record(self.raw.as_ptr(), raw, error) })?;
        Ok(std::mem::replace(&mut self.log, log))
    }

    /// The log that the cache records to, also after an error ended that log.
    pub fn op_log(&self) -> Option<&OpLog> {
        self.log.as_ref()
    }

    /// [`OpLog::flush`] of the log that the cache has. Without one it does nothing.
    pub fn flush_op_log(&mut self) -> Result<()> {
        self.log.as_mut().map_or(Ok(()), OpLog::flush)
    }
}

/// What C writes to.
struct Sink {
    writer: Box<dyn Write + Send>,
    flush_each_call: bool,
    error: Option<String>, // the first one; the writer is not used after it
}

impl Sink {
    /// Uses the writer, if that has not failed yet. False: it has.
    fn attempt(&mut self, f: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> bool {
        if self.error.is_some() {
            return false;
        }
        let writer = &mut self.writer;
        // The text is made inside as well: an error of the writer's own may panic when it is shown.
        // A writer that panicked is not used again, so it does not matter how that left it.
        let result = catch_unwind(AssertUnwindSafe(|| f(writer).err().map(|e| e.to_string())));
        self.error = result.unwrap_or_else(|panic| {
            let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
                (Some(text), _) => format!("the writer panicked: {text}"),
                (_, Some(text)) => format!("the writer panicked: {text}"),
                _ => "the writer panicked".into(),
            };
            std::mem::forget(panic); // dropping it may panic
            Some(text)
        });
        self.error.is_none()
    }
}

unsafe extern "C" fn write(context: *mut c_void, bytes: *const c_void, num_bytes: i64) -> i32 {
    // SAFETY: the context is that of to_writer(), which outlives the log, and one call runs at a time.
    let sink = unsafe { &mut *(context as *mut Sink) };
    // SAFETY: C gives so many bytes, and never none.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), num_bytes as usize) };
    let flush = sink.flush_each_call;
    let written = sink.attempt(|writer| {
        writer.write_all(bytes)?;
        if flush {
            writer.flush()?;
        }
        Ok(())
    });
    match written {
        true => sys::KVFOLIO_OK,
        false => sys::KVFOLIO_ERR_UNAVAILABLE,
    }
}
