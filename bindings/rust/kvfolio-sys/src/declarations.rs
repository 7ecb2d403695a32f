// SPDX-License-Identifier: Apache-2.0
//
// Written by kvfolio-sys/generate from include/kvfolio/kvfolio.h. Do not edit.

use std::os::raw::{c_char, c_void};

pub const KVFOLIO_ABI_VERSION: u32 = 1;
pub const KVFOLIO_POLICY_OF_OPTIONS: i32 = -1;
pub const KVFOLIO_OK: i32 = 0;
pub const KVFOLIO_ERR_INVALID_ARGUMENT: i32 = 1;
pub const KVFOLIO_ERR_NOT_FOUND: i32 = 2;
pub const KVFOLIO_ERR_FAILED_PRECONDITION: i32 = 3;
pub const KVFOLIO_ERR_NO_BLOCKS: i32 = 4;
pub const KVFOLIO_ERR_RESOURCE_EXHAUSTED: i32 = 5;
pub const KVFOLIO_ERR_ABORTED: i32 = 6;
pub const KVFOLIO_ERR_OUT_OF_MEMORY: i32 = 7;
pub const KVFOLIO_ERR_UNSUPPORTED: i32 = 8;
pub const KVFOLIO_ERR_UNAVAILABLE: i32 = 9;
pub const KVFOLIO_ERR_TIMED_OUT: i32 = 10;
pub const KVFOLIO_ERR_CORRUPT: i32 = 11;
pub const KVFOLIO_DTYPE_DEFAULT: i32 = 0;
pub const KVFOLIO_F64: i32 = 1;
pub const KVFOLIO_F32: i32 = 2;
pub const KVFOLIO_F16: i32 = 3;
pub const KVFOLIO_BF16: i32 = 4;
pub const KVFOLIO_INT8: i32 = 5;
pub const KVFOLIO_E4M3: i32 = 6;
pub const KVFOLIO_OPAQUE: i32 = 7;
pub const KVFOLIO_HND: i32 = 0;
pub const KVFOLIO_NHD: i32 = 1;
pub const KVFOLIO_GRANULE: i32 = 2;
pub const KVFOLIO_FULL: i32 = 0;
pub const KVFOLIO_SLIDING_WINDOW: i32 = 1;
pub const KVFOLIO_HOST: i32 = 0;
pub const KVFOLIO_DEVICE: i32 = 1;
pub const KVFOLIO_IN_ORDER: i32 = 0;
pub const KVFOLIO_UNORDERED: i32 = 1;
pub const KVFOLIO_LRU: i32 = 0;
pub const KVFOLIO_LFU: i32 = 1;
pub const KVFOLIO_LONGEST: i32 = 2;
pub const KVFOLIO_LOWEST_PRIORITY: i32 = 3;
pub const KVFOLIO_PUBLISH_ALL: i32 = 0;
pub const KVFOLIO_PUBLISH_FULL_BLOCKS: i32 = 1;
pub const KVFOLIO_PUBLISH_NOTHING: i32 = 2;
pub const KVFOLIO_BLOCK_FREE: i32 = 0;
pub const KVFOLIO_BLOCK_HELD: i32 = 1;
pub const KVFOLIO_BLOCK_CACHED: i32 = 2;
pub const KVFOLIO_BLOCK_RETIRING: i32 = 3;
pub const KVFOLIO_TARGET_AUTO: i32 = 0;
pub const KVFOLIO_TARGET_REFERENCE: i32 = 1;
pub const KVFOLIO_TARGET_PORTABLE: i32 = 2;
pub const KVFOLIO_TARGET_AVX2: i32 = 3;
pub const KVFOLIO_TARGET_AVX512: i32 = 4;
pub const KVFOLIO_TARGET_AVX512_BF16: i32 = 5;
pub const KVFOLIO_TARGET_NEON: i32 = 6;

pub type kvfolio_sequence = u64;
pub type kvfolio_pin_id = u64;
pub type kvfolio_load_id = u64;
pub type kvfolio_hold_id = u64;
pub type kvfolio_ticket = u64;

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_storage {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_view {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_manager {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_root {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_op_log {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_thread_pool {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_token_store {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_block_store {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_shortage {
    pub struct_size: u32,
    pub group: i32,
    pub needed: i32,
    pub free: i32,
    pub evictable: i32,
    pub pinned: i32,
    pub retiring: i32,
    pub sequences: i32,
    pub pins: i32,
    pub reserved: i32,
    pub loads: i32,
    pub holds: i32,
    pub num_blocks: i32,
    pub kept: i32,
    pub never: i32,
}

impl kvfolio_shortage {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_shortage {
        kvfolio_shortage {
            struct_size: std::mem::size_of::<Self>() as u32,
            group: 0,
            needed: 0,
            free: 0,
            evictable: 0,
            pinned: 0,
            retiring: 0,
            sequences: 0,
            pins: 0,
            reserved: 0,
            loads: 0,
            holds: 0,
            num_blocks: 0,
            kept: 0,
            never: 0,
        }
    }
}

impl Default for kvfolio_shortage {
    fn default() -> kvfolio_shortage {
        kvfolio_shortage::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_error {
    pub struct_size: u32,
    pub code: i32,
    pub message: [c_char; 256],
    pub shortage: kvfolio_shortage,
}

impl kvfolio_error {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_error {
        kvfolio_error {
            struct_size: std::mem::size_of::<Self>() as u32,
            code: 0,
            message: [0; 256],
            shortage: kvfolio_shortage::new(),
        }
    }
}

impl Default for kvfolio_error {
    fn default() -> kvfolio_error {
        kvfolio_error::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_group_spec {
    pub struct_size: u32,
    pub num_layers: i32,
    pub num_kv_heads: i32,
    pub head_dim_k: i32,
    pub head_dim_v: i32,
    pub v_is_prefix_of_k: i32,
    pub block_size: i32,
    pub dtype: i32,
    pub format: i32,
    pub kind: i32,
    pub window: i32,
    pub num_sinks: i32,
    pub num_blocks: i32,
    pub rewind: i32,
}

impl kvfolio_group_spec {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_group_spec {
        kvfolio_group_spec {
            struct_size: std::mem::size_of::<Self>() as u32,
            num_layers: 0,
            num_kv_heads: 0,
            head_dim_k: 0,
            head_dim_v: 0,
            v_is_prefix_of_k: 0,
            block_size: 0,
            dtype: 0,
            format: 0,
            kind: 0,
            window: 0,
            num_sinks: 0,
            num_blocks: 0,
            rewind: 0,
        }
    }
}

impl Default for kvfolio_group_spec {
    fn default() -> kvfolio_group_spec {
        kvfolio_group_spec::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_group_layout {
    pub struct_size: u32,
    pub reserved: u32,
    pub block_stride: i64,
    pub layer_stride: i64,
    pub k_head_stride: i64,
    pub k_token_stride: i64,
    pub v_offset: i64,
    pub v_head_stride: i64,
    pub v_token_stride: i64,
    pub k_scale_offset: i64,
    pub v_scale_offset: i64,
    pub scale_head_stride: i64,
    pub scale_token_stride: i64,
    pub payload_bytes_per_token: i64,
    pub bytes_per_block: i64,
    pub total_bytes: i64,
}

impl kvfolio_group_layout {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_group_layout {
        kvfolio_group_layout {
            struct_size: std::mem::size_of::<Self>() as u32,
            reserved: 0,
            block_stride: 0,
            layer_stride: 0,
            k_head_stride: 0,
            k_token_stride: 0,
            v_offset: 0,
            v_head_stride: 0,
            v_token_stride: 0,
            k_scale_offset: 0,
            v_scale_offset: 0,
            scale_head_stride: 0,
            scale_token_stride: 0,
            payload_bytes_per_token: 0,
            bytes_per_block: 0,
            total_bytes: 0,
        }
    }
}

impl Default for kvfolio_group_layout {
    fn default() -> kvfolio_group_layout {
        kvfolio_group_layout::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_copy_run {
    pub dst: *mut c_void,
    pub src: *const c_void,
    pub bytes: i64,
}

impl kvfolio_copy_run {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_copy_run {
        kvfolio_copy_run {
            dst: std::ptr::null_mut(),
            src: std::ptr::null(),
            bytes: 0,
        }
    }
}

impl Default for kvfolio_copy_run {
    fn default() -> kvfolio_copy_run {
        kvfolio_copy_run::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_memory_resource {
    pub struct_size: u32,
    pub kind: i32,
    pub context: *mut c_void,
    pub allocate: Option<unsafe extern "C" fn(context: *mut c_void, bytes: i64) -> *mut c_void>,
    pub deallocate: Option<unsafe extern "C" fn(context: *mut c_void, memory: *mut c_void, bytes: i64)>,
    pub copy: Option<unsafe extern "C" fn(context: *mut c_void, dst: *mut c_void, src: *const c_void, bytes: i64) -> i32>,
    pub copy_batch: Option<unsafe extern "C" fn(context: *mut c_void, runs: *const kvfolio_copy_run, num_runs: i64) -> i32>,
    pub copy_in: Option<unsafe extern "C" fn(context: *mut c_void, runs: *const kvfolio_copy_run, num_runs: i64) -> i32>,
    pub copy_out: Option<unsafe extern "C" fn(context: *mut c_void, runs: *const kvfolio_copy_run, num_runs: i64) -> i32>,
}

impl kvfolio_memory_resource {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_memory_resource {
        kvfolio_memory_resource {
            struct_size: std::mem::size_of::<Self>() as u32,
            kind: 0,
            context: std::ptr::null_mut(),
            allocate: None,
            deallocate: None,
            copy: None,
            copy_batch: None,
            copy_in: None,
            copy_out: None,
        }
    }
}

impl Default for kvfolio_memory_resource {
    fn default() -> kvfolio_memory_resource {
        kvfolio_memory_resource::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_strides {
    pub layer: i64,
    pub block: i64,
    pub head: i64,
    pub token: i64,
}

impl kvfolio_strides {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_strides {
        kvfolio_strides {
            layer: 0,
            block: 0,
            head: 0,
            token: 0,
        }
    }
}

impl Default for kvfolio_strides {
    fn default() -> kvfolio_strides {
        kvfolio_strides::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_borrowed_layer {
    pub k: *mut c_void,
    pub v: *mut c_void,
    pub k_scale: *mut c_void,
    pub v_scale: *mut c_void,
}

impl kvfolio_borrowed_layer {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_borrowed_layer {
        kvfolio_borrowed_layer {
            k: std::ptr::null_mut(),
            v: std::ptr::null_mut(),
            k_scale: std::ptr::null_mut(),
            v_scale: std::ptr::null_mut(),
        }
    }
}

impl Default for kvfolio_borrowed_layer {
    fn default() -> kvfolio_borrowed_layer {
        kvfolio_borrowed_layer::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_borrowed_group {
    pub struct_size: u32,
    pub num_layers: i32,
    pub k: *mut c_void,
    pub k_bytes: i64,
    pub k_strides: kvfolio_strides,
    pub v: *mut c_void,
    pub v_bytes: i64,
    pub v_strides: kvfolio_strides,
    pub k_scale: *mut c_void,
    pub k_scale_bytes: i64,
    pub k_scale_strides: kvfolio_strides,
    pub v_scale: *mut c_void,
    pub v_scale_bytes: i64,
    pub v_scale_strides: kvfolio_strides,
    pub layers: *const kvfolio_borrowed_layer,
}

impl kvfolio_borrowed_group {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_borrowed_group {
        kvfolio_borrowed_group {
            struct_size: std::mem::size_of::<Self>() as u32,
            num_layers: 0,
            k: std::ptr::null_mut(),
            k_bytes: 0,
            k_strides: kvfolio_strides::new(),
            v: std::ptr::null_mut(),
            v_bytes: 0,
            v_strides: kvfolio_strides::new(),
            k_scale: std::ptr::null_mut(),
            k_scale_bytes: 0,
            k_scale_strides: kvfolio_strides::new(),
            v_scale: std::ptr::null_mut(),
            v_scale_bytes: 0,
            v_scale_strides: kvfolio_strides::new(),
            layers: std::ptr::null(),
        }
    }
}

impl Default for kvfolio_borrowed_group {
    fn default() -> kvfolio_borrowed_group {
        kvfolio_borrowed_group::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_manager_options {
    pub struct_size: u32,
    pub max_sequences: i32,
    pub max_pins: i32,
    pub max_steps_in_flight: i32,
    pub order: i32,
    pub no_prefix_cache: i32,
    pub max_sequence_tokens: i32,
    pub max_runs: i32,
    pub max_index_tokens: i64,
    pub max_root_key_bytes: i64,
    pub max_table_entries: i64,
    pub hash_seed: u64,
    pub high_watermark: f64,
    pub max_root_keys: i32,
    pub max_media_extents: i32,
    pub victim_policy: i32,
    pub id_tag: i32,
    pub max_transfers: i32,
    pub list_findable: i32,
    pub copies_by_host: i32,
    pub null_block: i32,
    pub max_announced_tokens: i64,
}

impl kvfolio_manager_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_manager_options {
        kvfolio_manager_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            max_sequences: 0,
            max_pins: 0,
            max_steps_in_flight: 0,
            order: 0,
            no_prefix_cache: 0,
            max_sequence_tokens: 0,
            max_runs: 0,
            max_index_tokens: 0,
            max_root_key_bytes: 0,
            max_table_entries: 0,
            hash_seed: 0,
            high_watermark: 0.0,
            max_root_keys: 0,
            max_media_extents: 0,
            victim_policy: 0,
            id_tag: 0,
            max_transfers: 0,
            list_findable: 0,
            copies_by_host: 0,
            null_block: 0,
            max_announced_tokens: 0,
        }
    }
}

impl Default for kvfolio_manager_options {
    fn default() -> kvfolio_manager_options {
        kvfolio_manager_options::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_media_span {
    pub struct_size: u32,
    pub begin: i32,
    pub end: i32,
    pub attends_to_itself: i32,
    pub content_id: [u8; 32],
}

impl kvfolio_media_span {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_media_span {
        kvfolio_media_span {
            struct_size: std::mem::size_of::<Self>() as u32,
            begin: 0,
            end: 0,
            attends_to_itself: 0,
            content_id: [0; 32],
        }
    }
}

impl Default for kvfolio_media_span {
    fn default() -> kvfolio_media_span {
        kvfolio_media_span::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_open_options {
    pub struct_size: u32,
    pub no_prefix_cache: i32,
    pub no_look_up: i32,
    pub publish: i32,
    pub has_caller_id: i32,
    pub max_tokens: i32,
    pub caller_id: u64,
    pub priority: i32,
    pub late_names: i32,
    pub announce: i32,
    pub reserved: i32,
}

impl kvfolio_open_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_open_options {
        kvfolio_open_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            no_prefix_cache: 0,
            no_look_up: 0,
            publish: 0,
            has_caller_id: 0,
            max_tokens: 0,
            caller_id: 0,
            priority: 0,
            late_names: 0,
            announce: 0,
            reserved: 0,
        }
    }
}

impl Default for kvfolio_open_options {
    fn default() -> kvfolio_open_options {
        kvfolio_open_options::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_found {
    pub struct_size: u32,
    pub cached_tokens: i32,
    pub soon_tokens: i32,
    pub reserved: i32,
    pub soon_by: kvfolio_sequence,
}

impl kvfolio_found {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_found {
        kvfolio_found {
            struct_size: std::mem::size_of::<Self>() as u32,
            cached_tokens: 0,
            soon_tokens: 0,
            reserved: 0,
            soon_by: 0,
        }
    }
}

impl Default for kvfolio_found {
    fn default() -> kvfolio_found {
        kvfolio_found::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_fork_options {
    pub struct_size: u32,
    pub has_caller_id: i32,
    pub caller_id: u64,
    pub priority: i32,
    pub reserved: i32,
}

impl kvfolio_fork_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_fork_options {
        kvfolio_fork_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            has_caller_id: 0,
            caller_id: 0,
            priority: 0,
            reserved: 0,
        }
    }
}

impl Default for kvfolio_fork_options {
    fn default() -> kvfolio_fork_options {
        kvfolio_fork_options::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_i32s {
    pub data: *const i32,
    pub size: i64,
}

impl kvfolio_i32s {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_i32s {
        kvfolio_i32s {
            data: std::ptr::null(),
            size: 0,
        }
    }
}

impl Default for kvfolio_i32s {
    fn default() -> kvfolio_i32s {
        kvfolio_i32s::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_i64s {
    pub data: *const i64,
    pub size: i64,
}

impl kvfolio_i64s {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_i64s {
        kvfolio_i64s {
            data: std::ptr::null(),
            size: 0,
        }
    }
}

impl Default for kvfolio_i64s {
    fn default() -> kvfolio_i64s {
        kvfolio_i64s::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_plan_options {
    pub struct_size: u32,
    pub pad_with_zero: i32,
    pub no_block_tables: i32,
    pub changed_entries: i32,
    pub flashinfer: i32,
    pub shared_prefixes: i32,
    pub positions: i32,
    pub caller_ids: i32,
    pub table_stride: kvfolio_i32s,
    pub padded_sequences: i32,
    pub padded_tokens: i32,
    pub memory: *mut c_void,
    pub memory_bytes: i64,
    pub int64_slots: i32,
    pub reserved: i32,
}

impl kvfolio_plan_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_plan_options {
        kvfolio_plan_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            pad_with_zero: 0,
            no_block_tables: 0,
            changed_entries: 0,
            flashinfer: 0,
            shared_prefixes: 0,
            positions: 0,
            caller_ids: 0,
            table_stride: kvfolio_i32s::new(),
            padded_sequences: 0,
            padded_tokens: 0,
            memory: std::ptr::null_mut(),
            memory_bytes: 0,
            int64_slots: 0,
            reserved: 0,
        }
    }
}

impl Default for kvfolio_plan_options {
    fn default() -> kvfolio_plan_options {
        kvfolio_plan_options::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_shared_prefix {
    pub first_sequence: i32,
    pub num_sequences: i32,
    pub num_blocks: i32,
}

impl kvfolio_shared_prefix {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_shared_prefix {
        kvfolio_shared_prefix {
            first_sequence: 0,
            num_sequences: 0,
            num_blocks: 0,
        }
    }
}

impl Default for kvfolio_shared_prefix {
    fn default() -> kvfolio_shared_prefix {
        kvfolio_shared_prefix::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_group_plan {
    pub struct_size: u32,
    pub block_table_stride: i32,
    pub slot_mapping: kvfolio_i32s,
    pub block_table: kvfolio_i32s,
    pub kv_indptr: kvfolio_i32s,
    pub kv_indices: kvfolio_i32s,
    pub kv_last_page_len: kvfolio_i32s,
    pub copy_src: kvfolio_i32s,
    pub copy_dst: kvfolio_i32s,
    pub changed_rows: kvfolio_i32s,
    pub changed_columns: kvfolio_i32s,
    pub changed_blocks: kvfolio_i32s,
    pub shared_prefixes: *const kvfolio_shared_prefix,
    pub num_shared_prefixes: i64,
    pub kv_first_live: kvfolio_i32s,
    pub slot_mapping_64: kvfolio_i64s,
}

impl kvfolio_group_plan {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_group_plan {
        kvfolio_group_plan {
            struct_size: std::mem::size_of::<Self>() as u32,
            block_table_stride: 0,
            slot_mapping: kvfolio_i32s::new(),
            block_table: kvfolio_i32s::new(),
            kv_indptr: kvfolio_i32s::new(),
            kv_indices: kvfolio_i32s::new(),
            kv_last_page_len: kvfolio_i32s::new(),
            copy_src: kvfolio_i32s::new(),
            copy_dst: kvfolio_i32s::new(),
            changed_rows: kvfolio_i32s::new(),
            changed_columns: kvfolio_i32s::new(),
            changed_blocks: kvfolio_i32s::new(),
            shared_prefixes: std::ptr::null(),
            num_shared_prefixes: 0,
            kv_first_live: kvfolio_i32s::new(),
            slot_mapping_64: kvfolio_i64s::new(),
        }
    }
}

impl Default for kvfolio_group_plan {
    fn default() -> kvfolio_group_plan {
        kvfolio_group_plan::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_step_plan {
    pub struct_size: u32,
    pub num_tokens: i32,
    pub ticket: kvfolio_ticket,
    pub sequences: *const kvfolio_sequence,
    pub num_sequences: i64,
    pub rows: kvfolio_i32s,
    pub query_start: kvfolio_i32s,
    pub kv_lens: kvfolio_i32s,
    pub trim_sinks: kvfolio_i32s,
    pub trim_first_kept: kvfolio_i32s,
    pub positions: kvfolio_i32s,
    pub rewinds: kvfolio_i32s,
    pub caller_ids: *const u64,
    pub number: u64,
    pub follows: u64,
}

impl kvfolio_step_plan {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_step_plan {
        kvfolio_step_plan {
            struct_size: std::mem::size_of::<Self>() as u32,
            num_tokens: 0,
            ticket: 0,
            sequences: std::ptr::null(),
            num_sequences: 0,
            rows: kvfolio_i32s::new(),
            query_start: kvfolio_i32s::new(),
            kv_lens: kvfolio_i32s::new(),
            trim_sinks: kvfolio_i32s::new(),
            trim_first_kept: kvfolio_i32s::new(),
            positions: kvfolio_i32s::new(),
            rewinds: kvfolio_i32s::new(),
            caller_ids: std::ptr::null(),
            number: 0,
            follows: 0,
        }
    }
}

impl Default for kvfolio_step_plan {
    fn default() -> kvfolio_step_plan {
        kvfolio_step_plan::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_ended {
    pub sequence: kvfolio_sequence,
    pub caller_id: u64,
    pub has_caller_id: i32,
    pub reserved: i32,
}

impl kvfolio_ended {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_ended {
        kvfolio_ended {
            sequence: 0,
            caller_id: 0,
            has_caller_id: 0,
            reserved: 0,
        }
    }
}

impl Default for kvfolio_ended {
    fn default() -> kvfolio_ended {
        kvfolio_ended::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_load {
    pub struct_size: u32,
    pub reserved: i32,
    pub id: kvfolio_load_id,
    pub begin: i32,
    pub end: i32,
}

impl kvfolio_load {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_load {
        kvfolio_load {
            struct_size: std::mem::size_of::<Self>() as u32,
            reserved: 0,
            id: 0,
            begin: 0,
            end: 0,
        }
    }
}

impl Default for kvfolio_load {
    fn default() -> kvfolio_load {
        kvfolio_load::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_findable_block {
    pub group: i32,
    pub block: i32,
    pub end: i32,
    pub reserved: i32,
    pub serial: u64,
}

impl kvfolio_findable_block {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_findable_block {
        kvfolio_findable_block {
            group: 0,
            block: 0,
            end: 0,
            reserved: 0,
            serial: 0,
        }
    }
}

impl Default for kvfolio_findable_block {
    fn default() -> kvfolio_findable_block {
        kvfolio_findable_block::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_sequence_info {
    pub struct_size: u32,
    pub length: i32,
    pub accepted_length: i32,
    pub published_length: i32,
    pub trim_sinks: i32,
    pub trim_first_kept: i32,
    pub in_open_step: i32,
    pub num_unnamed: i32,
    pub reserved_tokens: i64,
    pub caller_id: u64,
    pub has_caller_id: i32,
    pub max_tokens: i32,
    pub last_use: u64,
    pub use_count: u64,
    pub priority: i32,
    pub reserved: i32,
    pub load: kvfolio_load_id,
    pub rewinds: i32,
    pub rewind_from: i32,
}

impl kvfolio_sequence_info {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_sequence_info {
        kvfolio_sequence_info {
            struct_size: std::mem::size_of::<Self>() as u32,
            length: 0,
            accepted_length: 0,
            published_length: 0,
            trim_sinks: 0,
            trim_first_kept: 0,
            in_open_step: 0,
            num_unnamed: 0,
            reserved_tokens: 0,
            caller_id: 0,
            has_caller_id: 0,
            max_tokens: 0,
            last_use: 0,
            use_count: 0,
            priority: 0,
            reserved: 0,
            load: 0,
            rewinds: 0,
            rewind_from: 0,
        }
    }
}

impl Default for kvfolio_sequence_info {
    fn default() -> kvfolio_sequence_info {
        kvfolio_sequence_info::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_group_usage {
    pub struct_size: u32,
    pub num_blocks: i32,
    pub free: i32,
    pub held: i32,
    pub cached: i32,
    pub retiring: i32,
    pub evictable: i32,
    pub reserved: i32,
    pub loading: i32,
    pub on_hold: i32,
}

impl kvfolio_group_usage {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_group_usage {
        kvfolio_group_usage {
            struct_size: std::mem::size_of::<Self>() as u32,
            num_blocks: 0,
            free: 0,
            held: 0,
            cached: 0,
            retiring: 0,
            evictable: 0,
            reserved: 0,
            loading: 0,
            on_hold: 0,
        }
    }
}

impl Default for kvfolio_group_usage {
    fn default() -> kvfolio_group_usage {
        kvfolio_group_usage::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_counters {
    pub struct_size: u32,
    pub reserved: u32,
    pub blocks_allocated: u64,
    pub blocks_freed: u64,
    pub blocks_evicted: u64,
    pub blocks_unhung: u64,
    pub block_copies: u64,
    pub sequences_opened: u64,
    pub sequences_closed: u64,
    pub sequences_preempted: u64,
    pub sequences_aborted: u64,
    pub forks: u64,
    pub tokens_looked_up: u64,
    pub tokens_reused: u64,
    pub tokens_committed: u64,
    pub blocks_published: u64,
    pub publications_skipped: u64,
    pub blocks_used_peak: u64,
    pub tokens_loaded: u64,
    pub announcements_skipped: u64,
}

impl kvfolio_counters {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_counters {
        kvfolio_counters {
            struct_size: std::mem::size_of::<Self>() as u32,
            reserved: 0,
            blocks_allocated: 0,
            blocks_freed: 0,
            blocks_evicted: 0,
            blocks_unhung: 0,
            block_copies: 0,
            sequences_opened: 0,
            sequences_closed: 0,
            sequences_preempted: 0,
            sequences_aborted: 0,
            forks: 0,
            tokens_looked_up: 0,
            tokens_reused: 0,
            tokens_committed: 0,
            blocks_published: 0,
            publications_skipped: 0,
            blocks_used_peak: 0,
            tokens_loaded: 0,
            announcements_skipped: 0,
        }
    }
}

impl Default for kvfolio_counters {
    fn default() -> kvfolio_counters {
        kvfolio_counters::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_byte_sink {
    pub struct_size: u32,
    pub reserved: i32,
    pub context: *mut c_void,
    pub write: Option<unsafe extern "C" fn(context: *mut c_void, bytes: *const c_void, num_bytes: i64) -> i32>,
}

impl kvfolio_byte_sink {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_byte_sink {
        kvfolio_byte_sink {
            struct_size: std::mem::size_of::<Self>() as u32,
            reserved: 0,
            context: std::ptr::null_mut(),
            write: None,
        }
    }
}

impl Default for kvfolio_byte_sink {
    fn default() -> kvfolio_byte_sink {
        kvfolio_byte_sink::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_rows {
    pub struct_size: u32,
    pub dtype: i32,
    pub num_tokens: i32,
    pub num_heads: i32,
    pub head_dim: i32,
    pub reserved: i32,
    pub token_stride: i64,
    pub head_stride: i64,
}

impl kvfolio_rows {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_rows {
        kvfolio_rows {
            struct_size: std::mem::size_of::<Self>() as u32,
            dtype: 0,
            num_tokens: 0,
            num_heads: 0,
            head_dim: 0,
            reserved: 0,
            token_stride: 0,
            head_stride: 0,
        }
    }
}

impl Default for kvfolio_rows {
    fn default() -> kvfolio_rows {
        kvfolio_rows::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_gather_options {
    pub struct_size: u32,
    pub length: i32,
    pub first: i32,
    pub count: i32,
    pub first_layer: i32,
    pub num_layers: i32,
    pub first_head: i32,
    pub reserved: i32,
    pub k_layer_stride: i64,
    pub v_layer_stride: i64,
}

impl kvfolio_gather_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_gather_options {
        kvfolio_gather_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            length: 0,
            first: 0,
            count: 0,
            first_layer: 0,
            num_layers: 0,
            first_head: 0,
            reserved: 0,
            k_layer_stride: 0,
            v_layer_stride: 0,
        }
    }
}

impl Default for kvfolio_gather_options {
    fn default() -> kvfolio_gather_options {
        kvfolio_gather_options::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_executor {
    pub struct_size: u32,
    pub num_threads: i32,
    pub context: *mut c_void,
    pub parallel_for: Option<unsafe extern "C" fn(context: *mut c_void, n: i32, task: Option<unsafe extern "C" fn(arg: *mut c_void, index: i32)>, arg: *mut c_void)>,
}

impl kvfolio_executor {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_executor {
        kvfolio_executor {
            struct_size: std::mem::size_of::<Self>() as u32,
            num_threads: 0,
            context: std::ptr::null_mut(),
            parallel_for: None,
        }
    }
}

impl Default for kvfolio_executor {
    fn default() -> kvfolio_executor {
        kvfolio_executor::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_attention_options {
    pub struct_size: u32,
    pub layer: i32,
    pub scale: f64,
    pub not_causal: i32,
    pub window: i32,
    pub num_sinks: i32,
    pub target: i32,
    pub slice: i32,
    pub first_row: i32,
    pub num_rows: i32,
    pub first_kv_head: i32,
    pub num_kv_heads: i32,
    pub chunk: i32,
    pub soft_cap: f64,
    pub alibi_slopes: *const f32,
    pub sink_logits: *const f32,
    pub num_alibi_slopes: i32,
    pub num_sink_logits: i32,
}

impl kvfolio_attention_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_attention_options {
        kvfolio_attention_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            layer: 0,
            scale: 0.0,
            not_causal: 0,
            window: 0,
            num_sinks: 0,
            target: 0,
            slice: 0,
            first_row: 0,
            num_rows: 0,
            first_kv_head: 0,
            num_kv_heads: 0,
            chunk: 0,
            soft_cap: 0.0,
            alibi_slopes: std::ptr::null(),
            sink_logits: std::ptr::null(),
            num_alibi_slopes: 0,
            num_sink_logits: 0,
        }
    }
}

impl Default for kvfolio_attention_options {
    fn default() -> kvfolio_attention_options {
        kvfolio_attention_options::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_token_store_options {
    pub struct_size: u32,
    pub head_dim_k: i32,
    pub head_dim_v: i32,
    pub num_kv_heads: i32,
    pub dtype: i32,
    pub block_size: i32,
    pub max_tokens: i32,
}

impl kvfolio_token_store_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_token_store_options {
        kvfolio_token_store_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            head_dim_k: 0,
            head_dim_v: 0,
            num_kv_heads: 0,
            dtype: 0,
            block_size: 0,
            max_tokens: 0,
        }
    }
}

impl Default for kvfolio_token_store_options {
    fn default() -> kvfolio_token_store_options {
        kvfolio_token_store_options::new()
    }
}

extern "C" {
    pub fn kvfolio_abi_version() -> u32;
    pub fn kvfolio_version() -> *const c_char;
    pub fn kvfolio_code_name(code: i32) -> *const c_char;
    pub fn kvfolio_plan_layouts(groups: *const kvfolio_group_spec, num_groups: i32, out: *mut kvfolio_group_layout, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_fit(groups: *mut kvfolio_group_spec, num_groups: i32, bytes: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_storage_create(groups: *const kvfolio_group_spec, num_groups: i32, resource: *const kvfolio_memory_resource, out: *mut *mut kvfolio_storage, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_storage_borrow(groups: *const kvfolio_group_spec, num_groups: i32, borrowed: *const kvfolio_borrowed_group, resource: *const kvfolio_memory_resource, out: *mut *mut kvfolio_storage, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_storage_destroy(storage: *mut kvfolio_storage);
    pub fn kvfolio_storage_num_groups(storage: *const kvfolio_storage) -> i32;
    pub fn kvfolio_storage_memory_kind(storage: *const kvfolio_storage) -> i32;
    pub fn kvfolio_storage_owns_memory(storage: *const kvfolio_storage) -> i32;
    pub fn kvfolio_storage_memory_bytes(storage: *const kvfolio_storage) -> i64;
    pub fn kvfolio_storage_copy_blocks(storage: *mut kvfolio_storage, group: i32, src: *const i32, dst: *const i32, num_blocks: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_storage_copy_blocks_from(storage: *mut kvfolio_storage, source: *const kvfolio_storage, group: i32, blocks: *const i32, num_blocks: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_storage_block_image_bytes(storage: *const kvfolio_storage, group: i32) -> i64;
    pub fn kvfolio_storage_read_blocks(storage: *const kvfolio_storage, group: i32, blocks: *const i32, num_blocks: i64, images: *mut c_void, image_bytes: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_storage_write_blocks(storage: *mut kvfolio_storage, group: i32, blocks: *const i32, num_blocks: i64, images: *const c_void, image_bytes: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_storage_fill(storage: *mut kvfolio_storage, value: u8, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_view_create(storage: *const kvfolio_storage, group: i32, layer: i32, out: *mut *mut kvfolio_view, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_view_destroy(view: *mut kvfolio_view);
    pub fn kvfolio_view_k(view: *const kvfolio_view, layer: i32, block: i32, head: i32, offset: i32) -> *mut c_void;
    pub fn kvfolio_view_v(view: *const kvfolio_view, layer: i32, block: i32, head: i32, offset: i32) -> *mut c_void;
    pub fn kvfolio_view_k_scale(view: *const kvfolio_view, layer: i32, block: i32, head: i32, offset: i32) -> *mut c_void;
    pub fn kvfolio_view_v_scale(view: *const kvfolio_view, layer: i32, block: i32, head: i32, offset: i32) -> *mut c_void;
    pub fn kvfolio_manager_create(groups: *const kvfolio_group_spec, num_groups: i32, options: *const kvfolio_manager_options, out: *mut *mut kvfolio_manager, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_manager_create_with_storage(storage: *mut *mut kvfolio_storage, options: *const kvfolio_manager_options, out: *mut *mut kvfolio_manager, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_manager_destroy(manager: *mut kvfolio_manager);
    pub fn kvfolio_manager_storage(manager: *mut kvfolio_manager) -> *mut kvfolio_storage;
    pub fn kvfolio_root_create(model: *const c_char, model_bytes: i64, adapter: *const c_char, adapter_bytes: i64, adapter_version: *const c_char, adapter_version_bytes: i64, tenant_salt: *const c_char, tenant_salt_bytes: i64, epoch: u64, out: *mut *mut kvfolio_root, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_root_destroy(root: *mut kvfolio_root);
    pub fn kvfolio_open(manager: *mut kvfolio_manager, root: *const kvfolio_root, tokens: *const i32, num_tokens: i64, media: *const kvfolio_media_span, num_media: i64, options: *const kvfolio_open_options, out: *mut kvfolio_sequence, found: *mut kvfolio_found, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_probe(manager: *const kvfolio_manager, root: *const kvfolio_root, tokens: *const i32, num_tokens: i64, media: *const kvfolio_media_span, num_media: i64, options: *const kvfolio_open_options, cached_tokens: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_soon(manager: *const kvfolio_manager, root: *const kvfolio_root, tokens: *const i32, num_tokens: i64, media: *const kvfolio_media_span, num_media: i64, options: *const kvfolio_open_options, soon_tokens: *mut i32, by: *mut kvfolio_sequence, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_open_unnamed(manager: *mut kvfolio_manager, root: *const kvfolio_root, num_tokens: i64, media: *const kvfolio_media_span, num_media: i64, options: *const kvfolio_open_options, out: *mut kvfolio_sequence, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_fork(manager: *mut kvfolio_manager, parent: kvfolio_sequence, options: *const kvfolio_fork_options, out: *mut kvfolio_sequence, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_adopt(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, tables: *const i32, table_sizes: *const i64, num_tables: i32, num_tokens: i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_truncate(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, num_tokens: i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_clear(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_trim(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, num_sinks: i64, window: i64, dropped: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_close(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cancel(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_preempt(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_set_priority(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, priority: i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_touch(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_begin_step(manager: *mut kvfolio_manager, now_us: u64, out: *mut kvfolio_ticket, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_append(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, tokens: *const i32, num_tokens: i64, draft: i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_append_prompt(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, prompt: *const i32, num_tokens: i64, at_most: i64, num_appended: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_append_unnamed(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, num_tokens: i64, draft: i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_append_each(manager: *mut kvfolio_manager, sequences: *const kvfolio_sequence, tokens: *const i32, num_sequences: i64, num_appended: *mut i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_append_unnamed_each(manager: *mut kvfolio_manager, sequences: *const kvfolio_sequence, num_sequences: i64, num_appended: *mut i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_set_tokens(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, tokens: *const i32, num_tokens: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_set_tokens_each(manager: *mut kvfolio_manager, sequences: *const kvfolio_sequence, tokens: *const i32, num_sequences: i64, num_named: *mut i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_undo(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_plan(manager: *mut kvfolio_manager, options: *const kvfolio_plan_options, out: *mut kvfolio_step_plan, groups: *mut kvfolio_group_plan, num_groups: i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_plan_bytes(manager: *const kvfolio_manager, options: *const kvfolio_plan_options, bytes: *mut i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_run_copies(manager: *mut kvfolio_manager, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_commit(manager: *mut kvfolio_manager, ticket: kvfolio_ticket, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_complete(manager: *mut kvfolio_manager, ticket: kvfolio_ticket, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_finish(manager: *mut kvfolio_manager, ticket: kvfolio_ticket, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_drop(manager: *mut kvfolio_manager, ticket: kvfolio_ticket, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_fail(manager: *mut kvfolio_manager, ticket: kvfolio_ticket, ended: *mut *const kvfolio_ended, num_ended: *mut i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_accept(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, num_accepted: i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_admit(manager: *mut kvfolio_manager, sequences: *const kvfolio_sequence, num_tokens: *const i64, num_sequences: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_admit_prompt(manager: *const kvfolio_manager, root: *const kvfolio_root, tokens: *const i32, num_tokens: i64, media: *const kvfolio_media_span, num_media: i64, options: *const kvfolio_open_options, num_more: i64, most_per_step: i64, found: *mut kvfolio_found, blocks: *mut i32, num_groups: i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_admit_sequence(manager: *const kvfolio_manager, sequence: kvfolio_sequence, num_tokens: i64, most_per_step: i64, blocks: *mut i32, num_groups: i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_reserve(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, num_tokens: i64, most_per_step: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_evict(manager: *mut kvfolio_manager, group: i32, num_blocks: i32, evicted: *mut i32, capacity: i64, num_evicted: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_reset(manager: *mut kvfolio_manager, blocks: *mut i64, pins: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_forget_root(manager: *mut kvfolio_manager, root: *const kvfolio_root, blocks: *mut i64, pins: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_forget(manager: *mut kvfolio_manager, root: *const kvfolio_root, tokens: *const i32, num_tokens: i64, media: *const kvfolio_media_span, num_media: i64, blocks: *mut i64, pins: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_pin(manager: *mut kvfolio_manager, root: *const kvfolio_root, tokens: *const i32, num_tokens: i64, media: *const kvfolio_media_span, num_media: i64, options: *const kvfolio_open_options, out: *mut kvfolio_pin_id, pinned_tokens: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_unpin(manager: *mut kvfolio_manager, pin: kvfolio_pin_id, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_utilization(manager: *const kvfolio_manager) -> f64;
    pub fn kvfolio_needs_eviction(manager: *const kvfolio_manager) -> i32;
    pub fn kvfolio_select_victim(manager: *mut kvfolio_manager, policy: i32) -> kvfolio_sequence;
    pub fn kvfolio_preempt_to(manager: *mut kvfolio_manager, target: f64, policy: i32, ended: *mut *const kvfolio_ended, num_ended: *mut i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_begin_load(manager: *mut kvfolio_manager, sequence: kvfolio_sequence, prompt: *const i32, num_tokens: i64, end: i32, out: *mut kvfolio_load, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_blocks_to_load(manager: *const kvfolio_manager, load: kvfolio_load_id, group: i32, logical: *mut i32, blocks: *mut i32, capacity: i64, count: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_finish_load(manager: *mut kvfolio_manager, load: kvfolio_load_id, num_tokens: i32, stand: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_loadable(manager: *const kvfolio_manager, sequence: kvfolio_sequence, prompt: *const i32, num_tokens: i64, limit: i32, has: *mut u8, sizes: *const i64, num_groups: i32, begin: *mut i32, end: *mut i32, blocks: *mut i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_hold_blocks(manager: *mut kvfolio_manager, group: i32, blocks: *const i32, num_blocks: i64, out: *mut kvfolio_hold_id, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_release_hold(manager: *mut kvfolio_manager, hold: kvfolio_hold_id, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_take_findable(manager: *mut kvfolio_manager, out: *mut kvfolio_findable_block, capacity: i64) -> i32;
    pub fn kvfolio_entry_serial(manager: *const kvfolio_manager, group: i32, block: i32, out: *mut u64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_prefix_of(manager: *const kvfolio_manager, group: i32, block: i32, begin: i32, tokens: *mut i32, num_tokens: i64, media: *mut kvfolio_media_span, num_media: i64, path_tokens: *mut i32, path_media: *mut i32, root: *mut *mut kvfolio_root, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_block_at(manager: *const kvfolio_manager, group: i32, block: i32, of: i32, end: i32, out: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_info(manager: *const kvfolio_manager, sequence: kvfolio_sequence, out: *mut kvfolio_sequence_info, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_block_table(manager: *const kvfolio_manager, sequence: kvfolio_sequence, group: i32, out: *mut kvfolio_i32s, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_slot_mapping(manager: *const kvfolio_manager, sequence: kvfolio_sequence, group: i32, begin: i32, out: *mut i32, count: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_find(manager: *const kvfolio_manager, caller_id: u64, out: *mut kvfolio_sequence, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_num_sequences(manager: *const kvfolio_manager) -> i32;
    pub fn kvfolio_sequences(manager: *const kvfolio_manager, out: *mut kvfolio_sequence, capacity: i64) -> i32;
    pub fn kvfolio_usage(manager: *const kvfolio_manager, group: i32, out: *mut kvfolio_group_usage, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_block_state(manager: *const kvfolio_manager, group: i32, block: i32, out: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_ref_count(manager: *const kvfolio_manager, group: i32, block: i32, out: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_is_findable(manager: *const kvfolio_manager, group: i32, block: i32, out: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_findable_end(manager: *const kvfolio_manager, group: i32, block: i32, out: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_bytes_total(manager: *const kvfolio_manager) -> i64;
    pub fn kvfolio_bytes_used(manager: *const kvfolio_manager) -> i64;
    pub fn kvfolio_metadata(manager: *const kvfolio_manager, reserved: *mut i64, used: *mut i64);
    pub fn kvfolio_num_rows(manager: *const kvfolio_manager) -> i32;
    pub fn kvfolio_widest(manager: *const kvfolio_manager, group: i32, out: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_describe(manager: *const kvfolio_manager, out: *mut c_char, capacity: i64) -> i64;
    pub fn kvfolio_get_counters(manager: *const kvfolio_manager, out: *mut kvfolio_counters, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_num_groups(manager: *const kvfolio_manager) -> i32;
    pub fn kvfolio_get_group(manager: *const kvfolio_manager, group: i32, out: *mut kvfolio_group_spec, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_get_options(manager: *const kvfolio_manager, out: *mut kvfolio_manager_options, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_copy_to(manager: *const kvfolio_manager, target: *mut kvfolio_manager, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_state_hash(manager: *const kvfolio_manager, out: *mut u64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_check_invariants(manager: *const kvfolio_manager, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_op_log_create_fd(fd: i32, flush_each_call: i32, out: *mut *mut kvfolio_op_log, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_op_log_create(sink: *const kvfolio_byte_sink, flush_each_call: i32, out: *mut *mut kvfolio_op_log, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_record(manager: *mut kvfolio_manager, log: *mut kvfolio_op_log, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_op_log_flush(log: *mut kvfolio_op_log, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_op_log_status(log: *const kvfolio_op_log, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_op_log_num_calls(log: *const kvfolio_op_log) -> i64;
    pub fn kvfolio_op_log_destroy(log: *mut kvfolio_op_log);
    pub fn kvfolio_append_rows(cache: *mut kvfolio_view, layer: i32, k: *const c_void, k_rows: *const kvfolio_rows, v: *const c_void, v_rows: *const kvfolio_rows, slots: *const i32, num_slots: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_gather(cache: *const kvfolio_view, block_table: *const i32, num_entries: i64, options: *const kvfolio_gather_options, k: *mut c_void, k_rows: *const kvfolio_rows, v: *mut c_void, v_rows: *const kvfolio_rows, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_gather_sequence(manager: *const kvfolio_manager, sequence: kvfolio_sequence, group: i32, layer: i32, first: i32, k: *mut c_void, k_rows: *const kvfolio_rows, v: *mut c_void, v_rows: *const kvfolio_rows, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_write_token(cache: *mut kvfolio_view, layer: i32, head: i32, slot: i32, dtype: i32, k: *const c_void, v: *const c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_read_token(cache: *const kvfolio_view, layer: i32, head: i32, slot: i32, dtype: i32, k: *mut c_void, v: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_copy_blocks(cache: *mut kvfolio_view, src: *const i32, dst: *const i32, num_blocks: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_convert_blocks(from: *const kvfolio_view, to: *mut kvfolio_view, src: *const i32, dst: *const i32, num_blocks: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_convert(src: *const c_void, src_rows: *const kvfolio_rows, dst: *mut c_void, dst_rows: *const kvfolio_rows, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_target_name(target: i32) -> *const c_char;
    pub fn kvfolio_parse_target(name: *const c_char, out: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_targets(out: *mut i32, capacity: i32) -> i32;
    pub fn kvfolio_choose_target(cache: *const kvfolio_view, wanted: i32, out: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_thread_pool_create(num_threads: i32, out: *mut *mut kvfolio_thread_pool, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_thread_pool_destroy(pool: *mut kvfolio_thread_pool);
    pub fn kvfolio_thread_pool_num_threads(pool: *const kvfolio_thread_pool) -> i32;
    pub fn kvfolio_thread_pool_executor(pool: *mut kvfolio_thread_pool, out: *mut kvfolio_executor, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_attention_options_of(group: *const kvfolio_group_spec, out: *mut kvfolio_attention_options, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_choose_attention_target(cache: *const kvfolio_view, options: *const kvfolio_attention_options, out: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_attention_workspace_bytes(cache: *const kvfolio_view, num_q_heads: i32, max_kv_len: i32, target: i32, num_threads: i32, out: *mut i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_attend(cache: *const kvfolio_view, options: *const kvfolio_attention_options, num_sequences: i32, query_start: *const i32, kv_lens: *const i32, block_table: *const i32, block_table_stride: i32, trim_sinks: *const i32, trim_first_kept: *const i32, q: *const c_void, q_rows: *const kvfolio_rows, out: *mut c_void, out_rows: *const kvfolio_rows, lse: *mut c_void, lse_rows: *const kvfolio_rows, workspace: *mut c_void, workspace_bytes: i64, executor: *const kvfolio_executor, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_merge_states(a_out: *const c_void, a_rows: *const kvfolio_rows, a_lse: *const c_void, a_lse_rows: *const kvfolio_rows, b_out: *const c_void, b_rows: *const kvfolio_rows, b_lse: *const c_void, b_lse_rows: *const kvfolio_rows, out: *mut c_void, out_rows: *const kvfolio_rows, lse: *mut c_void, lse_rows: *const kvfolio_rows, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_token_store_create(options: *const kvfolio_token_store_options, resource: *const kvfolio_memory_resource, out: *mut *mut kvfolio_token_store, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_token_store_destroy(store: *mut kvfolio_token_store);
    pub fn kvfolio_token_store_copy(store: *const kvfolio_token_store, out: *mut *mut kvfolio_token_store, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_token_store_append(store: *mut kvfolio_token_store, k: *const c_void, v: *const c_void, num_tokens: i64, dtype: i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_token_store_gather(store: *const kvfolio_token_store, begin: i64, num_tokens: i64, dtype: i32, k: *mut c_void, v: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_token_store_at(store: *const kvfolio_token_store, i: i64, out: *mut *const c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_token_store_v_at(store: *const kvfolio_token_store, i: i64, out: *mut *const c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_token_store_clear(store: *mut kvfolio_token_store);
    pub fn kvfolio_token_store_size(store: *const kvfolio_token_store) -> i32;
    pub fn kvfolio_token_store_max_tokens(store: *const kvfolio_token_store) -> i32;
    pub fn kvfolio_token_store_memory_bytes(store: *const kvfolio_token_store) -> i64;
    pub fn kvfolio_token_store_bytes_used(store: *const kvfolio_token_store) -> i64;
    pub fn kvfolio_token_store_view(store: *const kvfolio_token_store, out: *mut *mut kvfolio_view, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_token_store_describe(store: *const kvfolio_token_store, out: *mut c_char, capacity: i64) -> i64;
    pub fn kvfolio_block_store_create(group: *const kvfolio_group_spec, resource: *const kvfolio_memory_resource, out: *mut *mut kvfolio_block_store, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_block_store_destroy(store: *mut kvfolio_block_store);
    pub fn kvfolio_block_store_allocate(store: *mut kvfolio_block_store, out: *mut i32, num_blocks: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_block_store_hold(store: *mut kvfolio_block_store, blocks: *const i32, num_blocks: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_block_store_release(store: *mut kvfolio_block_store, blocks: *const i32, num_blocks: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_block_store_make_writable(store: *mut kvfolio_block_store, block: i32, out: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_block_store_ref_count(store: *const kvfolio_block_store, block: i32, out: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_block_store_read(store: *const kvfolio_block_store, blocks: *const i32, num_blocks: i64, images: *mut c_void, image_bytes: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_block_store_write(store: *mut kvfolio_block_store, blocks: *const i32, num_blocks: i64, images: *const c_void, image_bytes: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_block_store_num_blocks(store: *const kvfolio_block_store) -> i32;
    pub fn kvfolio_block_store_num_free(store: *const kvfolio_block_store) -> i32;
    pub fn kvfolio_block_store_block_image_bytes(store: *const kvfolio_block_store) -> i64;
    pub fn kvfolio_block_store_memory_bytes(store: *const kvfolio_block_store) -> i64;
    pub fn kvfolio_block_store_view(store: *const kvfolio_block_store, out: *mut *mut kvfolio_view, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_block_store_describe(store: *const kvfolio_block_store, out: *mut c_char, capacity: i64) -> i64;
}
