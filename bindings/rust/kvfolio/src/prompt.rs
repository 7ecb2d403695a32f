// SPDX-License-Identifier: Apache-2.0

use crate::error::call;
use crate::{sys, Result};
use std::mem::size_of;
use std::os::raw::c_char;
use std::ptr::{null, null_mut, NonNull};

/// The parts of a [`Root`]: bytes of any content, empty by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootKey<'a> {
    /// Name and version of the model.
    pub model: &'a [u8],
    /// Name of an adapter.
    pub adapter: &'a [u8],
    /// Version of the adapter.
    pub adapter_version: &'a [u8],
    /// A secret of the tenant: no other tenant finds its prompts.
    pub tenant_salt: &'a [u8],
    /// Another number for new weights under the same name.
    pub epoch: u64,
}

/// What prefixes are found under: sequences of two keys share nothing. Make it once for each tenant
/// and adapter.
///
/// ```
/// use kvfolio::{Cache, GroupSpec, OpenOptions, Options, Root, RootKey};
///
/// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 64, ..GroupSpec::default() }];
/// let mut cache = Cache::new(&groups, &Options::default())?;
/// let alice = Root::new(&RootKey { tenant_salt: b"alice", ..RootKey::default() })?;
/// let of_alice = OpenOptions { root: Some(&alice), ..OpenOptions::default() };
/// let mut step = cache.begin_step()?;
/// let opened = step.open(&[7; 40], &of_alice)?;
/// step.append(opened.sequence, &[7; 40])?;
/// step.finish()?;
/// cache.close(opened.sequence)?;
/// assert_eq!(cache.probe(&[7; 40], &of_alice)?, 39); // all but the last: its logits are missing
/// assert_eq!(cache.probe(&[7; 40], &OpenOptions::default())?, 0); // another key
/// # Ok::<(), kvfolio::Error>(())
/// ```
pub struct Root(NonNull<sys::kvfolio_root>);

// SAFETY: nothing changes a root.
unsafe impl Send for Root {}
unsafe impl Sync for Root {}

impl Root {
    /// The bytes are copied. Keys over 64 KiB are refused where they are used.
    pub fn new(key: &RootKey) -> Result<Root> {
        fn bytes(part: &[u8]) -> (*const c_char, i64) {
            (part.as_ptr().cast(), part.len() as i64)
        }
        let (model, adapter) = (bytes(key.model), bytes(key.adapter));
        let (version, salt) = (bytes(key.adapter_version), bytes(key.tenant_salt));
        let mut out = null_mut();
        // SAFETY: each pair is a slice.
        call(|error| unsafe {
            sys::kvfolio_root_create(
                model.0, model.1, adapter.0, adapter.1, version.0, version.1, salt.0, salt.1,
                key.epoch, &mut out, error,
            )
        })?;
        Ok(Root(NonNull::new(out).expect("C gave a root")))
    }

    /// Requires: C gave it, and nothing else destroys it.
    pub(crate) fn from_raw(raw: NonNull<sys::kvfolio_root>) -> Root {
        Root(raw)
    }

    pub(crate) fn raw_or_null(root: Option<&Root>) -> *const sys::kvfolio_root {
        root.map_or(null(), |root| root.0.as_ptr() as *const _)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // SAFETY: it was created here and goes once.
        unsafe { sys::kvfolio_root_destroy(self.0.as_ptr()) }
    }
}

/// A part of a prompt that stands for other content, such as an image: `MediaSpan` in `root_key.h`.
///
/// ```
/// use kvfolio::{Cache, GroupSpec, MediaSpan, OpenOptions, Options};
///
/// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 64, ..GroupSpec::default() }];
/// let mut cache = Cache::new(&groups, &Options::default())?;
/// let prompt = [0; 48]; // placeholders in 16..32
/// let open = |cache: &mut Cache, image: [u8; 32]| -> Result<i32, kvfolio::Error> {
///     let media = [MediaSpan::new(16, 32, image).attends_to_itself(true)];
///     assert_eq!((media[0].begin(), media[0].end(), media[0].content_id()), (16, 32, image));
///     let options = OpenOptions { media: &media, ..OpenOptions::default() };
///     let mut step = cache.begin_step()?;
///     let opened = step.open(&prompt, &options)?;
///     step.append(opened.sequence, &prompt[opened.cached_tokens as usize..])?;
///     step.finish()?;
///     Ok(opened.cached_tokens)
/// };
/// open(&mut cache, [1; 32])?;
/// assert_eq!(open(&mut cache, [1; 32])?, 47); // the same image
/// assert_eq!(open(&mut cache, [2; 32])?, 16); // another one
/// assert!(open(&mut cache, [0; 32]).is_err()); // zeros name nothing
/// # Ok::<(), kvfolio::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct MediaSpan(sys::kvfolio_media_span);

impl MediaSpan {
    /// Tokens `[begin, end)` stand for what has this hash. One of zeros is refused by the calls that
    /// take the span.
    pub fn new(begin: i32, end: i32, content_id: [u8; 32]) -> MediaSpan {
        MediaSpan(sys::kvfolio_media_span {
            struct_size: size_of::<sys::kvfolio_media_span>() as u32,
            begin,
            end,
            attends_to_itself: 0,
            content_id,
        })
    }

    /// The first token that stands for it.
    pub fn begin(&self) -> i32 {
        self.0.begin
    }

    /// One past the last token that stands for it.
    pub fn end(&self) -> i32 {
        self.0.end
    }

    /// The hash of what it stands for.
    pub fn content_id(&self) -> [u8; 32] {
        self.0.content_id
    }

    /// Its tokens also read those behind them, up to `end`.
    #[must_use]
    pub fn attends_to_itself(mut self, yes: bool) -> MediaSpan {
        self.0.attends_to_itself = yes as i32;
        self
    }
}

/// What of a sequence stays findable.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Publish {
    /// Every token.
    #[default]
    All = sys::KVFOLIO_PUBLISH_ALL,
    /// Only blocks that are full.
    FullBlocks = sys::KVFOLIO_PUBLISH_FULL_BLOCKS,
    /// No token.
    Nothing = sys::KVFOLIO_PUBLISH_NOTHING,
}

/// Options of the calls about a prompt; `OpenOptions` in `manager_types.h`. By default none is set.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions<'a> {
    /// None: the key without any bytes. All sequences that are opened without a root share it.
    pub root: Option<&'a Root>,
    /// Ascending.
    pub media: &'a [MediaSpan],
    /// The sequence does not look for a prefix, and does not publish its tokens.
    pub no_prefix_cache: bool,
    /// The sequence does not look for a prefix, but publishes its tokens.
    pub no_look_up: bool,
    /// What of the sequence stays findable.
    pub publish: Publish,
    /// A name for [`Manager::find`](crate::Manager::find).
    pub caller_id: Option<u64>,
    /// 0: no limit of its own.
    pub max_tokens: i32,
    /// For [`Policy::LowestPriority`](crate::Policy).
    pub priority: i32,
    /// Tokens may get their names after their step, until the sequence is closed.
    pub late_names: bool,
    /// [`Manager::soon`](crate::Manager::soon) tells others that the sequence is going to append its
    /// prompt.
    pub announce: bool,
}

impl std::fmt::Debug for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Root")
    }
}

/// A prompt and its options as C takes them.
pub(crate) struct CPrompt {
    pub root: *const sys::kvfolio_root,
    pub tokens: *const i32,
    pub num_tokens: i64,
    pub media: *const sys::kvfolio_media_span,
    pub num_media: i64,
    pub options: sys::kvfolio_open_options,
}

impl CPrompt {
    /// Valid as long as the arguments.
    pub(crate) fn new(tokens: &[i32], options: &OpenOptions) -> CPrompt {
        CPrompt {
            root: Root::raw_or_null(options.root),
            tokens: tokens.as_ptr(),
            num_tokens: tokens.len() as i64,
            media: options.media.as_ptr().cast(), // repr(transparent)
            num_media: options.media.len() as i64,
            options: sys::kvfolio_open_options {
                struct_size: size_of::<sys::kvfolio_open_options>() as u32,
                no_prefix_cache: options.no_prefix_cache as i32,
                no_look_up: options.no_look_up as i32,
                publish: options.publish as i32,
                has_caller_id: options.caller_id.is_some() as i32,
                max_tokens: options.max_tokens,
                caller_id: options.caller_id.unwrap_or(0),
                priority: options.priority,
                late_names: options.late_names as i32,
                announce: options.announce as i32,
                reserved: 0,
            },
        }
    }
}
