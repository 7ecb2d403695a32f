// SPDX-License-Identifier: Apache-2.0
//
// Save and restore. SAFETY of every call here: handles live as long as the call, and slices are
// passed with their lengths.

use super::{sys, Identity, RecordKeys};
use crate::error::call;
use crate::memory::no_unwind;
use crate::prompt::Root;
use crate::{Error, Manager, MediaSpan, Result, Sequence};
use std::ffi::CString;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::raw::c_void;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

/// A sequence to save, with what the cache does not keep of it.
#[derive(Clone, Copy, Debug)]
pub struct SaveSequence<'a> {
    /// It is open.
    pub sequence: Sequence,
    /// Exactly its length.
    pub tokens: &'a [i32],
    /// As at its [`open`](crate::Manager::open).
    pub root: Option<&'a Root>,
    /// As at its `open`, too.
    pub media: &'a [MediaSpan],
}

/// What to save: by default the prefix cache alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct SaveOptions<'a> {
    /// Only the sequences.
    pub no_prefix_cache: bool,
    /// Beside the prefix cache.
    pub sequences: &'a [SaveSequence<'a>],
    /// Seals the records with its `key`.
    pub keys: RecordKeys<'a>,
}

of_c! {
    /// `SaveStats` in `snapshot.h`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SaveStats = kvfolio_save_stats {
        /// Blocks that were written.
        pub records: i64,
        /// Tokens of all paths together; what paths share counts once.
        pub tokens: i64,
        /// Sequences of [`SaveOptions::sequences`].
        pub sequences: i64,
        /// Bytes of the whole file.
        pub bytes: i64,
    }
}

of_c! {
    /// `RestoreStats` in `snapshot.h`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RestoreStats = kvfolio_restore_stats {
        /// Whole records in the file.
        pub records: i64,
        /// Blocks that were written.
        pub records_loaded: i64,
        /// Records that did not verify when they were read.
        pub records_refused: i64,
        /// Sections whose checksum is not that of their bytes.
        pub sections_damaged: i64,
        /// Ends of prompts in the file.
        pub paths: i64,
        /// Paths that were cut short by the size of the pool.
        pub paths_no_room: i64,
        /// Tokens of all blocks that were written.
        pub tokens: i64,
    }
}

/// A sequence that came back, and is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredSequence {
    /// It is open now.
    pub sequence: Sequence,
    /// As it was saved.
    pub caller_id: Option<u64>,
    /// As they were saved.
    pub tokens: Vec<i32>,
    /// How many of them came back; compute the others again.
    pub length: i32,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// What came back, in numbers.
    pub stats: RestoreStats,
    /// Those that came back.
    pub sequences: Vec<RestoredSequence>,
}

/// Writes the prefix cache, and sequences if asked, in the form that [`restore`] reads. Keep it as you
/// keep the prompts of those whose blocks it has.
///
/// `FailedPrecondition`: a step is open or in flight; a sequence has draft or unnamed tokens, a trim,
/// or another number of tokens than given. `Unsupported`: the cache has no storage. `InvalidArgument`:
/// the identity is of other groups. `Unavailable`: what the writer says.
///
/// ```
/// use kvfolio::tiers::{restore, save, Identity, ModelIdentity, SaveOptions, SaveSequence};
/// use kvfolio::{Cache, GroupSpec, OpenOptions, Options, Storage};
///
/// let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
/// let cache_of = |num_blocks: i32, id_tag: u16| -> Result<Cache, kvfolio::Error> {
///     let storage = Storage::new(&[GroupSpec { num_blocks, ..group }])?;
///     Cache::with_storage(storage, &Options { id_tag, ..Options::default() })
/// };
/// let model = ModelIdentity { model: "m", weights: "w", tokenizer: "t", model_dtype: "d",
///                             positions: "p", engine: "e", ..ModelIdentity::default() };
/// let mut names = Identity::new(&model, &[group])?;
/// let mut cache = cache_of(8, 1)?;
/// let named = OpenOptions { caller_id: Some(7), ..OpenOptions::default() };
/// let sequence = cache.open(&[], &named)?.sequence;
/// let mut step = cache.begin_step()?;
/// step.append(sequence, &[5; 40])?;
/// step.finish()?;
///
/// let mut file = std::io::Cursor::new(Vec::new());
/// let sequences = [SaveSequence { sequence, tokens: &[5; 40], root: None, media: &[] }];
/// let saved = save(&mut cache, &mut names, &mut file,
///                  &SaveOptions { sequences: &sequences, ..SaveOptions::default() })?;
/// assert_eq!((saved.records, saved.sequences), (3, 1));
///
/// let mut other = cache_of(20, 2)?; // another process, another pool size
/// let restored = restore(&mut other, &mut names, &mut file)?;
/// let back = &restored.sequences[0];
/// assert_eq!((back.caller_id, back.length, &back.tokens[..]), (Some(7), 40, &[5; 40][..]));
/// # Ok::<(), kvfolio::Error>(())
/// ```
pub fn save<W: Write>(
    cache: &mut Manager,
    identity: &mut Identity,
    to: &mut W,
    options: &SaveOptions,
) -> Result<SaveStats> {
    save_to(cache, identity.raw(), to, options)
}

/// [`save`] to a file of mode 0600, which appears whole or not at all, in place of one of that name.
///
/// ```
/// # use kvfolio::tiers::{restore_file, save_file, Identity, ModelIdentity};
/// # use kvfolio::{Cache, GroupSpec, Options, Storage};
/// # let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
/// # let model = ModelIdentity { model: "m", weights: "w", tokenizer: "t", model_dtype: "d",
/// #                             positions: "p", engine: "e", ..ModelIdentity::default() };
/// # let mut names = Identity::new(&model, &[group])?;
/// # let mut cache = Cache::with_storage(Storage::new(&[group])?, &Options::default())?;
/// # let path = std::env::temp_dir().join(format!("kvfolio-doc-{}", std::process::id()));
/// save_file(&mut cache, &mut names, &path, &Default::default())?;
/// let restored = restore_file(&mut cache, &mut names, &path)?;
/// # std::fs::remove_file(&path).unwrap();
/// assert_eq!(restored.stats.records, 0); // it was empty
/// # Ok::<(), kvfolio::Error>(())
/// ```
pub fn save_file<P: AsRef<Path>>(
    cache: &mut Manager,
    identity: &mut Identity,
    path: P,
    options: &SaveOptions,
) -> Result<SaveStats> {
    save_to_file(cache, identity.raw(), path.as_ref(), options)
}

/// Opens and fills the sequences of a snapshot under their caller ids, then what the prefix cache had,
/// as long as there are free blocks: nothing is evicted. The new sequences stay open.
///
/// `Corrupt`: not a snapshot. `InvalidArgument`: another model, type, layout or block size, by the
/// name of the field; a caller id that is open. Then nothing has changed. A record that is damaged ends
/// its path and nothing else: see [`RestoreStats`].
pub fn restore<R: Read + Seek>(
    cache: &mut Manager,
    identity: &mut Identity,
    from: &mut R,
) -> Result<Restored> {
    restore_with(cache, identity, from, &RecordKeys::default())
}

/// [`restore`], which believes only records that one of these keys sealed.
///
/// ```
/// # use kvfolio::tiers::{restore_file_with, restore_with, save, save_file, Identity, ModelIdentity};
/// # use kvfolio::tiers::{RecordKeys, SaveOptions};
/// # use kvfolio::{Cache, GroupSpec, Options, Storage};
/// # let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
/// # let model = ModelIdentity { model: "m", weights: "w", tokenizer: "t", model_dtype: "d",
/// #                             positions: "p", engine: "e", ..ModelIdentity::default() };
/// # let mut names = Identity::new(&model, &[group])?;
/// # let cache_of = |id_tag: u16| -> Result<Cache, kvfolio::Error> {
/// #     let storage = Storage::new(&[group])?;
/// #     Cache::with_storage(storage, &Options { id_tag, ..Options::default() })
/// # };
/// # let mut cache = cache_of(1)?;
/// # let sequence = cache.open(&[5; 40], &Default::default())?.sequence;
/// # let mut step = cache.begin_step()?;
/// # step.append(sequence, &[5; 40])?;
/// # step.finish()?;
/// # let path = std::env::temp_dir().join(format!("kvfolio-doc-keyed-{}", std::process::id()));
/// let secret = [7; 32];
/// let keys = RecordKeys { key: Some(&secret), ..RecordKeys::default() };
/// let options = SaveOptions { keys, ..SaveOptions::default() };
/// let mut file = std::io::Cursor::new(Vec::new());
/// save(&mut cache, &mut names, &mut file, &options)?;
/// let mut second = cache_of(2)?;
/// let restored = restore_with(&mut second, &mut names, &mut file, &keys)?;
/// assert_eq!(restored.stats.records_loaded, 2);
///
/// let other = [8; 32];
/// let keys = RecordKeys { key: Some(&other), ..RecordKeys::default() };
/// save_file(&mut cache, &mut names, &path, &options)?;
/// let mut third = cache_of(3)?;
/// let restored = restore_file_with(&mut third, &mut names, &path, &keys)?;
/// # std::fs::remove_file(&path).unwrap();
/// assert_eq!(restored.stats.records_loaded, 0); // another key sealed them
/// # Ok::<(), kvfolio::Error>(())
/// ```
pub fn restore_with<R: Read + Seek>(
    cache: &mut Manager,
    identity: &mut Identity,
    from: &mut R,
    keys: &RecordKeys,
) -> Result<Restored> {
    restore_from(cache, identity.raw(), from, keys)
}

/// [`restore`] from a file.
pub fn restore_file<P: AsRef<Path>>(
    cache: &mut Manager,
    identity: &mut Identity,
    path: P,
) -> Result<Restored> {
    restore_file_with(cache, identity, path, &RecordKeys::default())
}

/// [`restore_with`] from a file.
pub fn restore_file_with<P: AsRef<Path>>(
    cache: &mut Manager,
    identity: &mut Identity,
    path: P,
    keys: &RecordKeys,
) -> Result<Restored> {
    restore_from_file(cache, identity.raw(), path.as_ref(), keys)
}

// ---- the same with a handle of names, which is valid, and not used elsewhere meanwhile ----

/// The sequences of the options, as C takes them.
struct List(*mut sys::kvfolio_save_list);

impl List {
    fn new(sequences: &[SaveSequence]) -> Result<List> {
        let mut list = List(null_mut());
        call(|error| unsafe { sys::kvfolio_save_list_create(&mut list.0, error) })?;
        for one in sequences {
            call(|error| unsafe {
                sys::kvfolio_save_list_add(
                    list.0,
                    one.sequence.get(),
                    Root::raw_or_null(one.root),
                    one.tokens.as_ptr(),
                    one.tokens.len() as i64,
                    one.media.as_ptr().cast(), // repr(transparent)
                    one.media.len() as i64,
                    error,
                )
            })?;
        }
        Ok(list)
    }
}

impl Drop for List {
    fn drop(&mut self) {
        unsafe { sys::kvfolio_save_list_destroy(self.0) }
    }
}

fn restore_options_to_c(keys: &RecordKeys) -> sys::kvfolio_restore_options {
    sys::kvfolio_restore_options {
        record_key: keys.key_to_c(),
        accepted_record_key: keys.accepted_to_c(),
        ..sys::kvfolio_restore_options::new()
    }
}

fn options_to_c(options: &SaveOptions) -> sys::kvfolio_save_options {
    let mut out = sys::kvfolio_save_options::new();
    out.no_prefix_cache = options.no_prefix_cache as i32;
    out.record_key = options.keys.key_to_c();
    out
}

/// A reader or writer, and what it said when it failed.
struct Stream<'a, T> {
    of: &'a mut T,
    error: Option<io::Error>,
}

impl<T> Stream<'_, T> {
    fn note(&mut self, result: io::Result<()>) -> i32 {
        match result {
            Ok(()) => crate::sys::KVFOLIO_OK,
            Err(error) => {
                self.error = Some(error);
                crate::sys::KVFOLIO_ERR_UNAVAILABLE
            }
        }
    }

    /// The error of the stream says more than that of C, which follows from it.
    fn explain<U>(self, result: Result<U>) -> Result<U> {
        match (result, self.error) {
            (Err(_), Some(error)) => Err(Error::Unavailable(error.to_string())),
            (result, _) => result,
        }
    }
}

// SAFETY of both: the context is the Stream of the call, and C keeps what it says of the memory.
unsafe extern "C" fn write<W: Write>(context: *mut c_void, bytes: *const c_void, n: i64) -> i32 {
    no_unwind(|| {
        let stream = unsafe { &mut *(context as *mut Stream<W>) };
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), n as usize) };
        let result = stream.of.write_all(bytes);
        stream.note(result)
    })
}

unsafe extern "C" fn read_at<R: Read + Seek>(
    context: *mut c_void,
    offset: i64,
    out: *mut c_void,
    n: i64,
) -> i32 {
    no_unwind(|| {
        let stream = unsafe { &mut *(context as *mut Stream<R>) };
        let out = unsafe { std::slice::from_raw_parts_mut(out.cast::<u8>(), n as usize) };
        let result =
            stream.of.seek(SeekFrom::Start(offset as u64)).and_then(|_| stream.of.read_exact(out));
        stream.note(result)
    })
}

pub(super) fn save_to<W: Write>(
    cache: &mut Manager,
    names: *mut sys::kvfolio_identity,
    to: &mut W,
    options: &SaveOptions,
) -> Result<SaveStats> {
    let list = List::new(options.sequences)?;
    let options = options_to_c(options);
    let mut stream = Stream { of: to, error: None };
    let mut sink = kvfolio_sys::kvfolio_byte_sink::new();
    sink.context = (&mut stream as *mut Stream<W>).cast();
    sink.write = Some(write::<W>);
    let mut stats = sys::kvfolio_save_stats::new();
    let saved = call(|error| unsafe {
        let manager = cache.raw.as_ptr();
        sys::kvfolio_save(manager, names, &sink, list.0, &options, &mut stats, error)
    });
    let flushed = match saved {
        Ok(()) => stream.of.flush(),
        Err(_) => Ok(()),
    };
    stream.explain(saved)?;
    flushed.map_err(|error| Error::Unavailable(error.to_string()))?;
    Ok(SaveStats::from_c(&stats))
}

pub(super) fn save_to_file(
    cache: &mut Manager,
    names: *mut sys::kvfolio_identity,
    path: &Path,
    options: &SaveOptions,
) -> Result<SaveStats> {
    let path = path_to_c(path)?;
    let list = List::new(options.sequences)?;
    let options = options_to_c(options);
    let mut stats = sys::kvfolio_save_stats::new();
    call(|error| unsafe {
        let manager = cache.raw.as_ptr();
        let path = path.as_ptr();
        sys::kvfolio_save_file(manager, names, path, list.0, &options, &mut stats, error)
    })?;
    Ok(SaveStats::from_c(&stats))
}

pub(super) fn restore_from<R: Read + Seek>(
    cache: &mut Manager,
    names: *mut sys::kvfolio_identity,
    from: &mut R,
    keys: &RecordKeys,
) -> Result<Restored> {
    let options = restore_options_to_c(keys);
    let end = from.seek(SeekFrom::End(0));
    let end = end.map_err(|error| Error::Unavailable(error.to_string()))?;
    let mut stream = Stream { of: from, error: None };
    let mut source = sys::kvfolio_byte_source::new();
    source.context = (&mut stream as *mut Stream<R>).cast();
    source.size = i64::try_from(end).unwrap_or(i64::MAX);
    source.read_at = Some(read_at::<R>);
    let mut out = null_mut();
    let restored = call(|error| unsafe {
        sys::kvfolio_restore_with(cache.raw.as_ptr(), names, &source, &options, &mut out, error)
    });
    stream.explain(restored)?;
    Ok(take(out))
}

pub(super) fn restore_from_file(
    cache: &mut Manager,
    names: *mut sys::kvfolio_identity,
    path: &Path,
    keys: &RecordKeys,
) -> Result<Restored> {
    let options = restore_options_to_c(keys);
    let path = path_to_c(path)?;
    let mut out = null_mut();
    call(|error| unsafe {
        let (manager, path) = (cache.raw.as_ptr(), path.as_ptr());
        sys::kvfolio_restore_file_with(manager, names, path, &options, &mut out, error)
    })?;
    Ok(take(out))
}

fn path_to_c(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::InvalidArgument(format!("{path:?} has a 0 in it")))
}

/// Copies what C has of it, and destroys that.
fn take(from: *mut sys::kvfolio_restored) -> Restored {
    let mut stats = sys::kvfolio_restore_stats::new();
    let sized = "a struct of the right size";
    call(|error| unsafe { sys::kvfolio_restored_stats(from, &mut stats, error) }).expect(sized);
    let n = unsafe { sys::kvfolio_restored_num_sequences(from) };
    let mut sequences = Vec::new();
    for index in 0..n {
        let mut one = sys::kvfolio_restored_sequence::new();
        call(|error| unsafe { sys::kvfolio_restored_get(from, index, &mut one, error) })
            .expect(sized);
        let tokens = match one.tokens.size {
            0 => Vec::new(),
            // SAFETY: the array is valid as long as `from`.
            size => unsafe { std::slice::from_raw_parts(one.tokens.data, size as usize) }.to_vec(),
        };
        sequences.push(RestoredSequence {
            sequence: Sequence::from_raw(one.sequence),
            caller_id: Some(one.caller_id).filter(|_| one.has_caller_id != 0),
            tokens,
            length: one.length,
        });
    }
    unsafe { sys::kvfolio_restored_destroy(from) };
    Restored { stats: RestoreStats::from_c(&stats), sequences }
}
