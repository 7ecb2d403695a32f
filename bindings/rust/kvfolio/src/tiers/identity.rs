// SPDX-License-Identifier: Apache-2.0
//
// Names that last. SAFETY of every call here: the handle lives as long as self, and slices are
// passed with their lengths.

use super::{sys, Key};
use crate::error::{call, invalid};
use crate::prompt::Root;
use crate::spec::{count, groups_to_c};
use crate::{GroupSpec, MediaSpan, Result};
use std::os::raw::c_char;
use std::ptr::{null_mut, NonNull};

/// What no group says of a model; `ModelIdentity` in `identity.h`. The first six are required: one
/// that is empty is refused by its name, since a name that says too little would find bytes of
/// another model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelIdentity<'a> {
    /// Such as a name and size.
    pub model: &'a str,
    /// A digest or a revision.
    pub weights: &'a str,
    /// A revision.
    pub tokenizer: &'a str,
    /// The type that the model computes with.
    pub model_dtype: &'a str,
    /// Parameters of rope and the like.
    pub positions: &'a str,
    /// Name and revision of what computes K and V.
    pub engine: &'a str,
    /// Which layers each group has, such as "0-30/2;1-31/2": numbers and ranges with commas between
    /// them, a semicolon between groups. Required if there are several groups.
    pub layers: &'a str,
    /// Revision of quantization scales, if the model brings its own.
    pub scales: &'a str,
    /// Which share of the KV heads this process has, and of how many; 0: 1.
    pub shard: i32,
    /// How many shares there are. 0: 1.
    pub num_shards: i32,
    /// Which stage of a pipeline this process has.
    pub pipeline_rank: i32,
    /// How many stages there are. 0: 1.
    pub num_pipeline_ranks: i32,
    /// Which share of the context this process has.
    pub context_rank: i32,
    /// How many shares of the context there are. 0: 1.
    pub num_context_ranks: i32,
}

impl ModelIdentity<'_> {
    /// Valid as long as the texts.
    pub(super) fn to_c(self) -> sys::kvfolio_model_identity {
        let text = |text: &str| sys::kvfolio_text {
            data: text.as_ptr() as *const c_char,
            size: text.len() as i64,
        };
        sys::kvfolio_model_identity {
            shard: self.shard,
            num_shards: self.num_shards,
            pipeline_rank: self.pipeline_rank,
            num_pipeline_ranks: self.num_pipeline_ranks,
            context_rank: self.context_rank,
            num_context_ranks: self.num_context_ranks,
            model: text(self.model),
            weights: text(self.weights),
            tokenizer: text(self.tokenizer),
            model_dtype: text(self.model_dtype),
            positions: text(self.positions),
            engine: text(self.engine),
            layers: text(self.layers),
            scales: text(self.scales),
            ..sys::kvfolio_model_identity::new()
        }
    }
}

/// A SHA-256: a namespace, or the hash of a prefix.
pub type Digest = [u8; 32];

/// Makes the names of blocks: beyond a process, and on every machine.
///
/// ```
/// use kvfolio::tiers::{Identity, ModelIdentity};
/// use kvfolio::GroupSpec;
///
/// let group = GroupSpec { head_dim_k: 4, block_size: 4, num_blocks: 8, ..GroupSpec::default() };
/// let mut model = ModelIdentity { model: "toy", weights: "1", tokenizer: "ids",
///                                 model_dtype: "f32", positions: "none",
///                                 ..ModelIdentity::default() };
/// let error = Identity::new(&model, &[group]).unwrap_err();
/// assert!(error.message().contains("engine is empty"));
/// model.engine = "mine";
/// let mut names = Identity::new(&model, &[group])?;
/// assert_eq!((names.unit(), names.num_groups()), (4, 1));
/// assert_eq!(names.fields()[1], ("model".to_string(), "toy".to_string()));
/// names.check_groups(&[GroupSpec { num_blocks: 99, ..group }])?; // the pool's size does not matter
///
/// let root = names.root(None, 0); // of no tokens
/// let first = names.next(&root, 0, &[1, 2, 3, 4], &[])?; // each hash stands for a prefix
/// let second = names.next(&first, 4, &[5, 6, 7, 8], &[])?;
/// assert_ne!(names.key(0, &first)?, names.key(0, &second)?);
/// assert_ne!(names.model_namespace(), names.layout_namespace(0)?);
/// # Ok::<(), kvfolio::Error>(())
/// ```
pub struct Identity(NonNull<sys::kvfolio_identity>);

// SAFETY: a handle may move between threads. It is not Sync: its calls share a digest.
unsafe impl Send for Identity {}

impl Identity {
    /// `InvalidArgument` names the field that is empty or out of range.
    pub fn new(model: &ModelIdentity, groups: &[GroupSpec]) -> Result<Identity> {
        let (model, specs) = (model.to_c(), groups_to_c(groups));
        let mut out = null_mut();
        call(|error| unsafe {
            let n = count(specs.len());
            sys::kvfolio_identity_create(&model, specs.as_ptr(), n, &mut out, error)
        })?;
        Ok(Identity(NonNull::new(out).expect("C gave an identity")))
    }

    pub(super) fn raw(&mut self) -> *mut sys::kvfolio_identity {
        self.0.as_ptr()
    }

    /// `InvalidArgument` names the first group and field that differ; the numbers of blocks may.
    pub fn check_groups(&self, groups: &[GroupSpec]) -> Result<()> {
        let specs = groups_to_c(groups);
        call(|error| unsafe {
            let n = count(specs.len());
            sys::kvfolio_identity_check_groups(self.0.as_ptr(), specs.as_ptr(), n, error)
        })
    }

    /// The smallest block size: as many tokens have a hash of their own.
    pub fn unit(&self) -> i32 {
        unsafe { sys::kvfolio_identity_unit(self.0.as_ptr()) }
    }

    /// How many groups the names are made for.
    pub fn num_groups(&self) -> i32 {
        unsafe { sys::kvfolio_identity_num_groups(self.0.as_ptr()) }
    }

    /// The namespace of the model.
    pub fn model_namespace(&self) -> Digest {
        self.namespace(-1).expect("every identity has one")
    }

    /// The namespace of a group's layout.
    pub fn layout_namespace(&self, group: i32) -> Result<Digest> {
        match group {
            0.. => self.namespace(group),
            _ => invalid(format!("there is no group {group}")),
        }
    }

    fn namespace(&self, group: i32) -> Result<Digest> {
        let mut out = sys::kvfolio_digest::new();
        call(|error| unsafe {
            sys::kvfolio_identity_namespace(self.0.as_ptr(), group, &mut out, error)
        })?;
        Ok(out.bytes)
    }

    /// Every field that went into the namespaces, in order: names and values.
    pub fn fields(&self) -> Vec<(String, String)> {
        let this = self.0.as_ptr();
        let n = unsafe { sys::kvfolio_identity_num_fields(this) };
        let field = |index| {
            let (mut name, mut value) = (sys::kvfolio_text::new(), sys::kvfolio_text::new());
            call(|error| unsafe {
                sys::kvfolio_identity_field(this, index, &mut name, &mut value, error)
            })
            .expect("an index of a field");
            // SAFETY: both texts are valid as long as self.
            unsafe { (text_of(name), text_of(value)) }
        };
        (0..n).map(field).collect()
    }

    /// The hash of no tokens under a root; `epoch` counts what was forgotten
    /// ([`Offload::epoch`](super::Offload::epoch)).
    pub fn root(&mut self, root: Option<&Root>, epoch: u64) -> Digest {
        let mut out = sys::kvfolio_digest::new();
        call(|error| unsafe {
            sys::kvfolio_identity_root(self.raw(), Root::raw_or_null(root), epoch, &mut out, error)
        })
        .expect("it takes every root");
        out.bytes
    }

    /// The hash of 1 to [`unit`](Identity::unit) tokens from `begin` on, a multiple of the unit,
    /// behind those of `before`. `media` may hold spans that lie elsewhere.
    pub fn next(
        &mut self,
        before: &Digest,
        begin: i32,
        tokens: &[i32],
        media: &[MediaSpan],
    ) -> Result<Digest> {
        let before = sys::kvfolio_digest { bytes: *before };
        let mut out = sys::kvfolio_digest::new();
        call(|error| unsafe {
            sys::kvfolio_identity_next(
                self.raw(),
                &before,
                begin,
                tokens.as_ptr(),
                tokens.len() as i64,
                media.as_ptr().cast(), // repr(transparent)
                media.len() as i64,
                &mut out,
                error,
            )
        })?;
        Ok(out.bytes)
    }

    /// The key of a block of a group whose tokens end where `tokens` ends.
    pub fn key(&mut self, group: i32, tokens: &Digest) -> Result<Key> {
        let tokens = sys::kvfolio_digest { bytes: *tokens };
        let mut out = sys::kvfolio_tier_key::new();
        call(|error| unsafe {
            sys::kvfolio_identity_key(self.raw(), group, &tokens, &mut out, error)
        })?;
        Ok(Key(out.bytes))
    }
}

/// # Safety
/// The text is valid.
unsafe fn text_of(text: sys::kvfolio_text) -> String {
    if text.size == 0 {
        return String::new();
    }
    let bytes = std::slice::from_raw_parts(text.data.cast::<u8>(), text.size as usize);
    String::from_utf8_lossy(bytes).into_owned()
}

impl Drop for Identity {
    fn drop(&mut self) {
        // SAFETY: it was created here and goes once.
        unsafe { sys::kvfolio_identity_destroy(self.0.as_ptr()) }
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.fields()).finish()
    }
}
