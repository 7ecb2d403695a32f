// SPDX-License-Identifier: Apache-2.0
//
// The tier on a local disk. SAFETY of every call here: handles live as long as the call.

use super::{sys, RecordKeys, TierHandle};
use crate::error::call;
use crate::{Error, Result};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

/// How the tier reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum DiskEngine {
    /// io_uring, or threads where that does not work.
    Auto = sys::KVFOLIO_DISK_AUTO,
    /// io_uring, or an error where that does not work.
    IoUring = sys::KVFOLIO_DISK_IO_URING,
    /// Threads that read and write.
    Threads = sys::KVFOLIO_DISK_THREADS,
}

impl Default for DiskEngine {
    fn default() -> DiskEngine {
        DiskEngine::Auto
    }
}

/// `DiskTierOptions` in `disk_tier.h`, which says the limits. 0 is the default of all but `bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskOptions<'a> {
    /// Bytes that all files together may take.
    pub bytes: i64,
    /// Bytes of a segment, a file of records. 0: derived from `bytes`.
    pub segment_bytes: i64,
    /// How the tier reads and writes.
    pub engine: DiskEngine,
    /// Threads of [`DiskEngine::Threads`]. 0: 8.
    pub num_threads: i32,
    /// Transfers in flight of io_uring. 0: 32.
    pub queue_depth: i32,
    /// Reads and writes go through the page cache, not around it.
    pub no_direct: bool,
    /// Bytes of items that are accepted and not done. 0: 512 MiB.
    pub queued_bytes_max: i64,
    /// Bytes of stored records that are verified again in each second. 0: none.
    pub scrub_bytes_per_s: i64,
    /// Items that are accepted and not done. 0: 4,096.
    pub items_max: i32,
    /// Files that are open at the same time. 0: a quarter of those that the process may have, 8 to 256.
    pub open_files_max: i32,
    /// With a key, a record is believed only if it was sealed with that key.
    pub keys: RecordKeys<'a>,
}

of_c! {
    /// `DiskTierStats` in `disk_tier.h`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DiskStats = kvfolio_disk_stats {
        /// Bytes that the files take, at most the budget.
        pub bytes: i64,
        /// Records that can be found.
        pub records: i64,
        /// Files of records.
        pub segments: i64,
        /// Records that were there when it was opened.
        pub recovered: u64,
        /// Records among these whose own headers were not read: the segment has a footer.
        pub recovered_by_footer: u64,
        /// Records that were written.
        pub stored: u64,
        /// Bytes of the records that were written.
        pub stored_bytes: u64,
        /// Records that were read.
        pub loaded: u64,
        /// Bytes of the records that were read.
        pub loaded_bytes: u64,
        /// Records that were not what was stored.
        pub corrupt: u64,
        /// Reads and writes that the disk failed.
        pub io_errors: u64,
        /// Writes that the file system had no room for.
        pub no_space: u64,
        /// Stores that were accepted and found no room.
        pub dropped: u64,
        /// Records that went with their segment.
        pub evicted: u64,
        /// Records that were written again before their segment went.
        pub reinserted: u64,
        /// Bytes that were read again in the background.
        pub scrubbed_bytes: u64,
        /// Loads that met a record of another key, or of none: misses.
        pub of_another_key: u64,
    }
}

impl TierHandle {
    /// A tier in a directory of the local disk, which is made if it is not there, and of which it is
    /// the only writer. `FailedPrecondition`: another process writes there. Its end waits for what is
    /// in flight.
    ///
    /// ```
    /// use kvfolio::tiers::{DiskEngine, DiskOptions, TierHandle};
    ///
    /// let directory = std::env::temp_dir().join(format!("kvfolio-doc-disk-{}", std::process::id()));
    /// let options = DiskOptions { bytes: 1 << 20, engine: DiskEngine::Auto,
    ///                             ..DiskOptions::default() };
    /// let tier = TierHandle::disk(&directory, &options)?; // for Offload::new()
    /// assert_eq!(tier.disk_stats()?.records, 0);
    /// assert!(TierHandle::disk(&directory, &options).is_err()); // one writer
    /// # drop(tier);
    /// # std::fs::remove_dir_all(&directory).unwrap();
    /// # Ok::<(), kvfolio::Error>(())
    /// ```
    pub fn disk<P: AsRef<Path>>(directory: P, options: &DiskOptions) -> Result<TierHandle> {
        let directory = directory.as_ref();
        let path = CString::new(directory.as_os_str().as_bytes())
            .map_err(|_| Error::InvalidArgument(format!("{directory:?} has a 0 in it")))?;
        let options = sys::kvfolio_disk_options {
            engine: options.engine as i32,
            bytes: options.bytes,
            segment_bytes: options.segment_bytes,
            num_threads: options.num_threads,
            queue_depth: options.queue_depth,
            no_direct: options.no_direct as i32,
            queued_bytes_max: options.queued_bytes_max,
            scrub_bytes_per_s: options.scrub_bytes_per_s,
            items_max: options.items_max,
            open_files_max: options.open_files_max,
            record_key: options.keys.key_to_c(),
            accepted_record_key: options.keys.accepted_to_c(),
            ..sys::kvfolio_disk_options::new()
        };
        let mut out = null_mut();
        call(|error| unsafe {
            sys::kvfolio_tier_open_disk(path.as_ptr(), &options, &mut out, error)
        })?;
        Ok(TierHandle::from_raw(out))
    }

    /// `Unsupported`: a tier of another kind.
    pub fn disk_stats(&self) -> Result<DiskStats> {
        let mut out = sys::kvfolio_disk_stats::new();
        call(|error| unsafe { sys::kvfolio_tier_disk_stats(self.raw(), &mut out, error) })?;
        Ok(DiskStats::from_c(&out))
    }
}
