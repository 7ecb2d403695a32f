// SPDX-License-Identifier: Apache-2.0
//
// Records for a medium of the caller's own, keys of the host, and names of an engine's own hashes.
// SAFETY of every call here: handles live as long as the call, and slices are passed with their
// lengths.

use super::{sys, Digest, Key};
use crate::error::call;
use crate::Result;
use std::os::raw::c_char;
use std::ptr::{null, null_mut, NonNull};

/// Secrets of the host, of 32 random bytes; `RecordKeyOptions` in `record.h`. With a key a record is
/// believed only if it was sealed with it, or with the accepted one, while one is replaced by another.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordKeys<'a> {
    /// Seals and verifies; `None`: records have checksums only.
    pub key: Option<&'a [u8; 32]>,
    /// Verifies as well.
    pub accepted_key: Option<&'a [u8; 32]>,
}

// A key is in no log.
impl std::fmt::Debug for RecordKeys<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordKeys")
            .field("has_key", &self.key.is_some())
            .field("has_accepted_key", &self.accepted_key.is_some())
            .finish()
    }
}

impl RecordKeys<'_> {
    /// Valid as long as the keys; null: none.
    pub(super) fn key_to_c(&self) -> *const u8 {
        self.key.map_or(null(), |key| key.as_ptr())
    }

    pub(super) fn accepted_to_c(&self) -> *const u8 {
        self.accepted_key.map_or(null(), |key| key.as_ptr())
    }
}

/// The header of a record: [`RecordSealer::seal`] makes it.
pub type RecordHeader = [u8; sys::KVFOLIO_RECORD_HEADER_BYTES as usize];

/// What a header says beside its seal; `RecordInfo` in `record.h`. A name is enough, the rest is the
/// caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordInfo {
    /// The name.
    pub key: Key,
    /// The namespace of the layout; zeros: the payload says it itself.
    pub layout: Digest,
    /// Positions of the first token and of one past the last.
    pub begin: i32,
    /// See `begin`.
    pub end: i32,
    /// Another epoch is another record.
    pub epoch: u64,
}

impl RecordInfo {
    /// What a record is that says its name only.
    pub fn new(key: Key) -> RecordInfo {
        RecordInfo { key, layout: [0; 32], begin: 0, end: 0, epoch: 0 }
    }

    fn to_c(self, payload: &[u8]) -> sys::kvfolio_record_info {
        let mut out = sys::kvfolio_record_info::new();
        out.key.bytes = self.key.0;
        out.layout.bytes = self.layout;
        out.payload_bytes = payload.len() as i64;
        out.begin = self.begin;
        out.end = self.end;
        out.epoch = self.epoch;
        out
    }
}

/// Seals and verifies records as the tiers on a disk and in Redis do, for a medium of the caller's own.
///
/// ```
/// use kvfolio::tiers::{Key, RecordInfo, RecordKeys, RecordSealer};
///
/// let secret = [7; 32];
/// let sealer = RecordSealer::new(&RecordKeys { key: Some(&secret), ..RecordKeys::default() })?;
/// let info = RecordInfo::new(Key([1; 72]));
/// let header = sealer.seal(&info, b"any bytes")?; // stored in front of them
/// sealer.verify(&info, &header, b"any bytes")?;
/// assert!(sealer.verify(&info, &header, b"other bytes").is_err());
/// let moved = RecordInfo::new(Key([2; 72])); // to another name
/// assert!(sealer.verify(&moved, &header, b"any bytes").is_err());
/// # Ok::<(), kvfolio::Error>(())
/// ```
pub struct RecordSealer(*mut sys::kvfolio_record_keys); // null: without a key

// SAFETY: its calls change nothing, and any number of threads may make them.
unsafe impl Send for RecordSealer {}
unsafe impl Sync for RecordSealer {}

impl RecordSealer {
    /// `InvalidArgument`: an accepted key without a key, or the same one.
    pub fn new(keys: &RecordKeys) -> Result<RecordSealer> {
        let mut out = null_mut();
        if keys.key.is_none() && keys.accepted_key.is_none() {
            return Ok(RecordSealer(out));
        }
        let (key, accepted) = (keys.key_to_c(), keys.accepted_to_c());
        call(|error| unsafe { sys::kvfolio_record_keys_create(key, accepted, &mut out, error) })?;
        Ok(RecordSealer(out))
    }

    /// The header of these bytes under this name.
    pub fn seal(&self, info: &RecordInfo, payload: &[u8]) -> Result<RecordHeader> {
        let mut header = [0; sys::KVFOLIO_RECORD_HEADER_BYTES as usize];
        let info = info.to_c(payload);
        call(|error| unsafe {
            let (data, header) = (payload.as_ptr().cast(), header.as_mut_ptr().cast());
            sys::kvfolio_record_seal(self.0, &info, data, header, error)
        })?;
        Ok(header)
    }

    /// `Corrupt`, with what is wrong: these are not the bytes that were sealed under this name, or not
    /// with one of our keys.
    pub fn verify(&self, info: &RecordInfo, header: &RecordHeader, payload: &[u8]) -> Result<()> {
        let info = info.to_c(payload);
        call(|error| unsafe {
            let (data, header) = (payload.as_ptr().cast(), header.as_ptr().cast());
            sys::kvfolio_record_verify(self.0, &info, header, data, error)
        })
    }
}

impl Drop for RecordSealer {
    fn drop(&mut self) {
        unsafe { sys::kvfolio_record_keys_destroy(self.0) }
    }
}

/// What decides the bytes of an engine that hashes its blocks itself; `ForeignModel` in
/// `foreign_identity.h`. All texts but `scales` are required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForeignModel<'a> {
    /// Name, revision and instruction set or device.
    pub engine: &'a str,
    /// Such as a name and size.
    pub model: &'a str,
    /// A digest or a revision.
    pub weights: &'a str,
    /// The type that the model computes with.
    pub model_dtype: &'a str,
    /// The algorithm of the engine's hashes.
    pub hash: &'a str,
    /// What its root hash begins with; "none" if there is nothing.
    pub hash_seed: &'a str,
    /// Element type, heads, block size, axes, ranks: all of a payload.
    pub layout: &'a str,
    /// Revision of quantization scales, if the model brings its own.
    pub scales: &'a str,
    /// How many groups of layers the engine has. 0: 1.
    pub num_groups: i32,
    /// Which share of a block this process has, and of how many; 0: 1.
    pub shard: i32,
    /// How many shares there are. 0: 1.
    pub num_shards: i32,
}

/// Makes the names of blocks from an engine's own hashes; `ForeignIdentity` in `foreign_identity.h`.
///
/// ```
/// use kvfolio::tiers::{ForeignIdentity, ForeignModel};
///
/// let model = ForeignModel { engine: "vllm 0.33 cuda sm90", model: "llama-3-8b", weights: "7",
///                            model_dtype: "bf16", hash: "sha256_cbor", hash_seed: "none",
///                            layout: "bf16 HND 16x8x128 tp2", ..ForeignModel::default() };
/// let names = ForeignIdentity::new(&model)?;
/// let key = names.key(0, b"tenant", &[7; 32])?; // for Tier::submit()
/// let seeded = ForeignIdentity::new(&ForeignModel { hash_seed: "42", ..model })?;
/// assert_ne!(key, seeded.key(0, b"tenant", &[7; 32])?); // another engine's hashes: misses
/// assert_ne!(names.namespace(None)?, seeded.namespace(None)?);
/// assert_ne!(key, names.key(0, b"other", &[7; 32])?);
/// # Ok::<(), kvfolio::Error>(())
/// ```
pub struct ForeignIdentity(NonNull<sys::kvfolio_foreign_identity>);

// SAFETY: its calls change nothing, and any number of threads may make them.
unsafe impl Send for ForeignIdentity {}
unsafe impl Sync for ForeignIdentity {}

impl ForeignIdentity {
    /// `InvalidArgument`: a required field that is empty, or a number out of range, by name.
    pub fn new(model: &ForeignModel) -> Result<ForeignIdentity> {
        let text = |text: &str| sys::kvfolio_text {
            data: text.as_ptr() as *const c_char,
            size: text.len() as i64,
        };
        let model = sys::kvfolio_foreign_model {
            num_groups: model.num_groups,
            shard: model.shard,
            num_shards: model.num_shards,
            engine: text(model.engine),
            model: text(model.model),
            weights: text(model.weights),
            model_dtype: text(model.model_dtype),
            hash: text(model.hash),
            hash_seed: text(model.hash_seed),
            layout: text(model.layout),
            scales: text(model.scales),
            ..sys::kvfolio_foreign_model::new()
        };
        let mut out = null_mut();
        call(|error| unsafe { sys::kvfolio_foreign_identity_create(&model, &mut out, error) })?;
        Ok(ForeignIdentity(NonNull::new(out).expect("a handle")))
    }

    /// The model's namespace, without a group; else that of the group's layout.
    pub fn namespace(&self, group: Option<i32>) -> Result<Digest> {
        let mut out = sys::kvfolio_digest::new();
        let (raw, group) = (self.0.as_ptr(), group.unwrap_or(-1));
        call(|error| unsafe {
            sys::kvfolio_foreign_identity_namespace(raw, group, &mut out, error)
        })?;
        Ok(out.bytes)
    }

    /// The name of a block of a group by the engine's hash of it, of any length. `salt` keeps tenants
    /// apart; it may be empty.
    pub fn key(&self, group: i32, salt: &[u8], engine_hash: &[u8]) -> Result<Key> {
        let mut out = sys::kvfolio_tier_key::new();
        let salt = sys::kvfolio_text { data: salt.as_ptr().cast(), size: salt.len() as i64 };
        let (hash, bytes) = (engine_hash.as_ptr(), engine_hash.len() as i64);
        call(|error| unsafe {
            let raw = self.0.as_ptr();
            sys::kvfolio_foreign_identity_key(raw, group, &salt, hash, bytes, &mut out, error)
        })?;
        Ok(Key(out.bytes))
    }
}

impl Drop for ForeignIdentity {
    fn drop(&mut self) {
        unsafe { sys::kvfolio_foreign_identity_destroy(self.0.as_ptr()) }
    }
}
