// SPDX-License-Identifier: Apache-2.0

use crate::sys;
use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::raw::c_char;

/// What a call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call did nothing. The text is a sentence with the numbers.
///
/// ```
/// use kvfolio::{Cache, Error, GroupSpec, Options};
///
/// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 2, block_size: 4, ..GroupSpec::default() }];
/// let mut cache = Cache::new(&groups, &Options::default())?;
/// let sequence = cache.open(&[], &Default::default())?.sequence;
/// let mut step = cache.begin_step()?;
/// match step.append(sequence, &[1; 12]) {
///     Err(Error::NoBlocks { shortage, message }) => {
///         assert_eq!((shortage.needed, shortage.free, shortage.evictable), (3, 2, 0));
///         assert!(message.starts_with("group 0: need 3 blocks, 2 free"));
///     }
///     other => panic!("{other:?}"),
/// }
/// let error = step.append(sequence, &[-1]).unwrap_err(); // a token below 0
/// assert_eq!(error.code(), kvfolio::sys::KVFOLIO_ERR_INVALID_ARGUMENT);
/// assert!(error.to_string().starts_with("invalid argument: "));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The argument is wrong in every state.
    InvalidArgument(String),
    /// The id is unknown, closed or of another cache.
    NotFound(String),
    /// Not allowed in this state.
    FailedPrecondition(String),
    /// A group lacks blocks.
    NoBlocks {
        /// The numbers.
        shortage: Shortage,
        /// The sentence.
        message: String,
    },
    /// A fixed table is full.
    ResourceExhausted(String),
    /// [`fail`](crate::Manager::fail) closed this sequence.
    Aborted(String),
    /// The system gave no memory.
    OutOfMemory(String),
    /// Valid, but this build or configuration cannot do it.
    Unsupported(String),
    /// A file or a medium cannot be reached, or fails.
    Unavailable(String),
    /// Not done before its deadline.
    TimedOut(String),
    /// Bytes are not what they should be.
    Corrupt(String),
    /// A code that this version of the crate does not know.
    Other(i32, String),
}

impl Error {
    /// The sentence.
    pub fn message(&self) -> &str {
        match self {
            Error::InvalidArgument(message)
            | Error::NotFound(message)
            | Error::FailedPrecondition(message)
            | Error::NoBlocks { message, .. }
            | Error::ResourceExhausted(message)
            | Error::Aborted(message)
            | Error::OutOfMemory(message)
            | Error::Unsupported(message)
            | Error::Unavailable(message)
            | Error::TimedOut(message)
            | Error::Corrupt(message)
            | Error::Other(_, message) => message,
        }
    }

    /// The number of the code in `kvfolio.h`.
    pub fn code(&self) -> i32 {
        match self {
            Error::InvalidArgument(_) => sys::KVFOLIO_ERR_INVALID_ARGUMENT,
            Error::NotFound(_) => sys::KVFOLIO_ERR_NOT_FOUND,
            Error::FailedPrecondition(_) => sys::KVFOLIO_ERR_FAILED_PRECONDITION,
            Error::NoBlocks { .. } => sys::KVFOLIO_ERR_NO_BLOCKS,
            Error::ResourceExhausted(_) => sys::KVFOLIO_ERR_RESOURCE_EXHAUSTED,
            Error::Aborted(_) => sys::KVFOLIO_ERR_ABORTED,
            Error::OutOfMemory(_) => sys::KVFOLIO_ERR_OUT_OF_MEMORY,
            Error::Unsupported(_) => sys::KVFOLIO_ERR_UNSUPPORTED,
            Error::Unavailable(_) => sys::KVFOLIO_ERR_UNAVAILABLE,
            Error::TimedOut(_) => sys::KVFOLIO_ERR_TIMED_OUT,
            Error::Corrupt(_) => sys::KVFOLIO_ERR_CORRUPT,
            Error::Other(code, _) => *code,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: takes any number and returns a constant.
        let name = unsafe { constant(sys::kvfolio_code_name(self.code())) };
        write!(f, "{name}: {}", self.message())
    }
}

impl std::error::Error for Error {}

mirror! {
    /// Why a group lacks blocks: `needed > free + evictable`. In blocks, but for `sequences`, `pins`,
    /// `loads` and `holds`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Shortage = kvfolio_shortage {
        /// The group that lacks blocks.
        pub group: i32,
        /// What the call takes.
        pub needed: i32,
        /// Held by no one, with nothing to find in them.
        pub free: i32,
        /// Cached blocks, which the call may take.
        pub evictable: i32,
        /// Held by sequences, pins, loads and holds.
        pub pinned: i32,
        /// Come back when the steps in flight are complete.
        pub retiring: i32,
        /// Open ones.
        pub sequences: i32,
        /// Open ones.
        pub pins: i32,
        /// Pinned blocks that [`reserve`](crate::Manager::reserve) keeps.
        pub reserved: i32,
        /// Open ones; see [`begin_load`](crate::Manager::begin_load).
        pub loads: i32,
        /// Open ones; see [`hold_blocks`](crate::Manager::hold_blocks).
        pub holds: i32,
        /// All blocks of the group.
        pub num_blocks: i32,
        /// That the sequences of the call, or the hit of a prompt, hold beside the needed ones.
        pub kept: i32,
        /// 1: the same call cannot succeed, whatever the others let go of.
        pub never: i32,
    }
}

/// Where a call over many sequences ended. It becomes its error with `?`.
///
/// ```
/// use kvfolio::{Cache, Error, GroupSpec, Options};
///
/// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 1, ..GroupSpec::default() }];
/// let mut cache = Cache::new(&groups, &Options::default())?;
/// let a = cache.open(&[], &Default::default())?.sequence;
/// let b = cache.open(&[], &Default::default())?.sequence;
/// let mut step = cache.begin_step()?;
/// let stopped = step.append_each(&[a, b], &[1, 2]).unwrap_err();
/// assert_eq!(stopped.done, 1); // `a` is in the step, `b` is not
/// assert!(matches!(stopped.error, Error::NoBlocks { .. }));
/// assert!(stopped.to_string().ends_with("(the 1 sequences before it are done)"));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// How many of the first sequences were done.
    pub done: usize,
    /// Why the next one was not.
    pub error: Error,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (the {} sequences before it are done)", self.error, self.done)
    }
}

// Without a source: the text has that of the error already.
impl std::error::Error for Stopped {}

impl From<Stopped> for Error {
    fn from(stopped: Stopped) -> Error {
        stopped.error
    }
}

/// # Safety
/// `text` is a C string that is never freed.
pub(crate) unsafe fn constant(text: *const c_char) -> &'static str {
    // SAFETY: as required.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?")
}

pub(crate) fn invalid<T>(message: String) -> Result<T> {
    Err(Error::InvalidArgument(message))
}

/// The text that a `*_describe()` of C gives: it takes a buffer and its size, and returns the bytes
/// of the whole text without the 0 at its end.
pub(crate) fn text_of(describe: impl Fn(*mut c_char, i64) -> i64) -> String {
    let length = describe(std::ptr::null_mut(), 0) as usize;
    let mut text = vec![0u8; length + 1];
    describe(text.as_mut_ptr().cast(), text.len() as i64);
    text.truncate(length);
    String::from_utf8_lossy(&text).into_owned()
}

/// Calls C and turns what it says into a `Result`. `f` passes on the pointer that it is given.
#[inline]
pub(crate) fn call(f: impl FnOnce(*mut sys::kvfolio_error) -> i32) -> Result<()> {
    let mut error = MaybeUninit::<sys::kvfolio_error>::uninit();
    let out = error.as_mut_ptr();
    // SAFETY: writes fields of a local struct. The first byte of the message is enough: the library
    // writes whole sentences with a 0 at their end, or nothing.
    unsafe {
        let size = std::mem::size_of::<sys::kvfolio_error>() as u32;
        std::ptr::addr_of_mut!((*out).struct_size).write(size);
        std::ptr::addr_of_mut!((*out).code).write(0);
        std::ptr::addr_of_mut!((*out).message).cast::<u8>().write(0);
        std::ptr::addr_of_mut!((*out).shortage).write(sys::kvfolio_shortage::new());
    }
    let code = f(out);
    if code == sys::KVFOLIO_OK {
        return Ok(());
    }
    // SAFETY: all that is read was written above, or by the library up to the 0 of the message.
    Err(unsafe { error_of(code, out) })
}

/// # Safety
/// The message ends with a 0, and the shortage is initialised.
#[cold]
unsafe fn error_of(code: i32, from: *const sys::kvfolio_error) -> Error {
    // SAFETY: as required.
    let text = unsafe { CStr::from_ptr(std::ptr::addr_of!((*from).message).cast()) };
    let message = text.to_string_lossy().into_owned();
    match code {
        sys::KVFOLIO_ERR_INVALID_ARGUMENT => Error::InvalidArgument(message),
        sys::KVFOLIO_ERR_NOT_FOUND => Error::NotFound(message),
        sys::KVFOLIO_ERR_FAILED_PRECONDITION => Error::FailedPrecondition(message),
        sys::KVFOLIO_ERR_NO_BLOCKS => {
            // SAFETY: as required.
            let shortage = unsafe { std::ptr::addr_of!((*from).shortage).read() };
            let shortage = Shortage::from_c(&shortage);
            Error::NoBlocks { shortage, message }
        }
        sys::KVFOLIO_ERR_RESOURCE_EXHAUSTED => Error::ResourceExhausted(message),
        sys::KVFOLIO_ERR_ABORTED => Error::Aborted(message),
        sys::KVFOLIO_ERR_OUT_OF_MEMORY => Error::OutOfMemory(message),
        sys::KVFOLIO_ERR_UNSUPPORTED => Error::Unsupported(message),
        sys::KVFOLIO_ERR_UNAVAILABLE => Error::Unavailable(message),
        sys::KVFOLIO_ERR_TIMED_OUT => Error::TimedOut(message),
        sys::KVFOLIO_ERR_CORRUPT => Error::Corrupt(message),
        other => Error::Other(other, message),
    }
}
