// SPDX-License-Identifier: Apache-2.0
//
// Written by kvfolio-tiers-sys/generate from include/kvfolio/kvfolio_tiers.h. Do not edit.

use kvfolio_sys::*;
use std::os::raw::{c_char, c_void};

pub const KVFOLIO_TIERS_ABI_VERSION: u32 = 1;
pub const KVFOLIO_RECORD_HEADER_BYTES: i32 = 192;
pub const KVFOLIO_RECORD_KEY_BYTES: i32 = 32;
pub const KVFOLIO_TIER_EXISTS: i32 = 0;
pub const KVFOLIO_TIER_LOAD: i32 = 1;
pub const KVFOLIO_TIER_STORE: i32 = 2;
pub const KVFOLIO_TIER_ERASE: i32 = 3;
pub const KVFOLIO_TIER_OK: i32 = 0;
pub const KVFOLIO_TIER_MISS: i32 = 1;
pub const KVFOLIO_TIER_CORRUPT: i32 = 2;
pub const KVFOLIO_TIER_BUSY: i32 = 3;
pub const KVFOLIO_TIER_TIMEOUT: i32 = 4;
pub const KVFOLIO_TIER_IO_ERROR: i32 = 5;
pub const KVFOLIO_TIER_UNAVAILABLE: i32 = 6;
pub const KVFOLIO_TIER_CLOSED: i32 = 7;
pub const KVFOLIO_NUM_TIER_RESULTS: i32 = 8;
pub const KVFOLIO_DISK_AUTO: i32 = 0;
pub const KVFOLIO_DISK_IO_URING: i32 = 1;
pub const KVFOLIO_DISK_THREADS: i32 = 2;
pub const KVFOLIO_WRITE_THROUGH: i32 = 0;
pub const KVFOLIO_WRITE_SECOND_USE: i32 = 1;
pub const KVFOLIO_WRITE_OFF: i32 = 2;
pub const KVFOLIO_LOADED: i32 = 0;
pub const KVFOLIO_LOAD_PART: i32 = 1;
pub const KVFOLIO_LOAD_NOTHING: i32 = 2;
pub const KVFOLIO_LOAD_RECOMPUTE: i32 = 3;
pub const KVFOLIO_LOAD_TIMEOUT: i32 = 4;
pub const KVFOLIO_LOAD_NO_BLOCKS: i32 = 5;
pub const KVFOLIO_LOAD_FORGOTTEN: i32 = 6;
pub const KVFOLIO_NUM_LATENCIES: i32 = 10;


/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_identity {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_foreign_identity {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_record_keys {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_tier {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_offload {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_save_list {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_restored {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_text {
    pub data: *const c_char,
    pub size: i64,
}

impl kvfolio_text {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_text {
        kvfolio_text {
            data: std::ptr::null(),
            size: 0,
        }
    }
}

impl Default for kvfolio_text {
    fn default() -> kvfolio_text {
        kvfolio_text::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_model_identity {
    pub struct_size: u32,
    pub shard: i32,
    pub num_shards: i32,
    pub pipeline_rank: i32,
    pub num_pipeline_ranks: i32,
    pub context_rank: i32,
    pub num_context_ranks: i32,
    pub reserved: i32,
    pub model: kvfolio_text,
    pub weights: kvfolio_text,
    pub tokenizer: kvfolio_text,
    pub model_dtype: kvfolio_text,
    pub positions: kvfolio_text,
    pub engine: kvfolio_text,
    pub layers: kvfolio_text,
    pub scales: kvfolio_text,
}

impl kvfolio_model_identity {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_model_identity {
        kvfolio_model_identity {
            struct_size: std::mem::size_of::<Self>() as u32,
            shard: 0,
            num_shards: 0,
            pipeline_rank: 0,
            num_pipeline_ranks: 0,
            context_rank: 0,
            num_context_ranks: 0,
            reserved: 0,
            model: kvfolio_text::new(),
            weights: kvfolio_text::new(),
            tokenizer: kvfolio_text::new(),
            model_dtype: kvfolio_text::new(),
            positions: kvfolio_text::new(),
            engine: kvfolio_text::new(),
            layers: kvfolio_text::new(),
            scales: kvfolio_text::new(),
        }
    }
}

impl Default for kvfolio_model_identity {
    fn default() -> kvfolio_model_identity {
        kvfolio_model_identity::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_digest {
    pub bytes: [u8; 32],
}

impl kvfolio_digest {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_digest {
        kvfolio_digest {
            bytes: [0; 32],
        }
    }
}

impl Default for kvfolio_digest {
    fn default() -> kvfolio_digest {
        kvfolio_digest::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_tier_key {
    pub bytes: [u8; 72],
}

impl kvfolio_tier_key {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_tier_key {
        kvfolio_tier_key {
            bytes: [0; 72],
        }
    }
}

impl Default for kvfolio_tier_key {
    fn default() -> kvfolio_tier_key {
        kvfolio_tier_key::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_foreign_model {
    pub struct_size: u32,
    pub num_groups: i32,
    pub shard: i32,
    pub num_shards: i32,
    pub engine: kvfolio_text,
    pub model: kvfolio_text,
    pub weights: kvfolio_text,
    pub model_dtype: kvfolio_text,
    pub hash: kvfolio_text,
    pub hash_seed: kvfolio_text,
    pub layout: kvfolio_text,
    pub scales: kvfolio_text,
}

impl kvfolio_foreign_model {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_foreign_model {
        kvfolio_foreign_model {
            struct_size: std::mem::size_of::<Self>() as u32,
            num_groups: 0,
            shard: 0,
            num_shards: 0,
            engine: kvfolio_text::new(),
            model: kvfolio_text::new(),
            weights: kvfolio_text::new(),
            model_dtype: kvfolio_text::new(),
            hash: kvfolio_text::new(),
            hash_seed: kvfolio_text::new(),
            layout: kvfolio_text::new(),
            scales: kvfolio_text::new(),
        }
    }
}

impl Default for kvfolio_foreign_model {
    fn default() -> kvfolio_foreign_model {
        kvfolio_foreign_model::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_record_info {
    pub struct_size: u32,
    pub key_id: u32,
    pub key: kvfolio_tier_key,
    pub layout: kvfolio_digest,
    pub payload_bytes: i64,
    pub begin: i32,
    pub end: i32,
    pub epoch: u64,
    pub writer: u64,
    pub owner: u64,
}

impl kvfolio_record_info {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_record_info {
        kvfolio_record_info {
            struct_size: std::mem::size_of::<Self>() as u32,
            key_id: 0,
            key: kvfolio_tier_key::new(),
            layout: kvfolio_digest::new(),
            payload_bytes: 0,
            begin: 0,
            end: 0,
            epoch: 0,
            writer: 0,
            owner: 0,
        }
    }
}

impl Default for kvfolio_record_info {
    fn default() -> kvfolio_record_info {
        kvfolio_record_info::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_tier_item {
    pub key: kvfolio_tier_key,
    pub data: *mut c_void,
    pub bytes: i64,
    pub tag: u64,
}

impl kvfolio_tier_item {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_tier_item {
        kvfolio_tier_item {
            key: kvfolio_tier_key::new(),
            data: std::ptr::null_mut(),
            bytes: 0,
            tag: 0,
        }
    }
}

impl Default for kvfolio_tier_item {
    fn default() -> kvfolio_tier_item {
        kvfolio_tier_item::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_tier_done {
    pub tag: u64,
    pub result: i32,
    pub reserved: i32,
}

impl kvfolio_tier_done {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_tier_done {
        kvfolio_tier_done {
            tag: 0,
            result: 0,
            reserved: 0,
        }
    }
}

impl Default for kvfolio_tier_done {
    fn default() -> kvfolio_tier_done {
        kvfolio_tier_done::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_tier_health {
    pub struct_size: u32,
    pub unusable: i32,
    pub stores_ok: u64,
    pub loads_ok: u64,
    pub failures: u64,
    pub corrupt_unasked: u64,
    pub of_another_key: u64,
}

impl kvfolio_tier_health {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_tier_health {
        kvfolio_tier_health {
            struct_size: std::mem::size_of::<Self>() as u32,
            unusable: 0,
            stores_ok: 0,
            loads_ok: 0,
            failures: 0,
            corrupt_unasked: 0,
            of_another_key: 0,
        }
    }
}

impl Default for kvfolio_tier_health {
    fn default() -> kvfolio_tier_health {
        kvfolio_tier_health::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_tier_functions {
    pub struct_size: u32,
    pub data_alignment: i32,
    pub record_bytes_max: i64,
    pub name: *const c_char,
    pub context: *mut c_void,
    pub submit: Option<unsafe extern "C" fn(context: *mut c_void, op: i32, items: *const kvfolio_tier_item, num_items: i64, deadline_us: u64) -> i64>,
    pub poll: Option<unsafe extern "C" fn(context: *mut c_void, now_us: u64, done: *mut kvfolio_tier_done, capacity: i64) -> i64>,
    pub event_fd: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    pub health: Option<unsafe extern "C" fn(context: *mut c_void, out: *mut kvfolio_tier_health)>,
    pub close: Option<unsafe extern "C" fn(context: *mut c_void, deadline_us: u64) -> i32>,
    pub destroy: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

impl kvfolio_tier_functions {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_tier_functions {
        kvfolio_tier_functions {
            struct_size: std::mem::size_of::<Self>() as u32,
            data_alignment: 0,
            record_bytes_max: 0,
            name: std::ptr::null(),
            context: std::ptr::null_mut(),
            submit: None,
            poll: None,
            event_fd: None,
            health: None,
            close: None,
            destroy: None,
        }
    }
}

impl Default for kvfolio_tier_functions {
    fn default() -> kvfolio_tier_functions {
        kvfolio_tier_functions::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_disk_options {
    pub struct_size: u32,
    pub engine: i32,
    pub bytes: i64,
    pub segment_bytes: i64,
    pub num_threads: i32,
    pub queue_depth: i32,
    pub no_direct: i32,
    pub reserved: i32,
    pub queued_bytes_max: i64,
    pub scrub_bytes_per_s: i64,
    pub items_max: i32,
    pub open_files_max: i32,
    pub record_key: *const u8,
    pub accepted_record_key: *const u8,
}

impl kvfolio_disk_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_disk_options {
        kvfolio_disk_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            engine: 0,
            bytes: 0,
            segment_bytes: 0,
            num_threads: 0,
            queue_depth: 0,
            no_direct: 0,
            reserved: 0,
            queued_bytes_max: 0,
            scrub_bytes_per_s: 0,
            items_max: 0,
            open_files_max: 0,
            record_key: std::ptr::null(),
            accepted_record_key: std::ptr::null(),
        }
    }
}

impl Default for kvfolio_disk_options {
    fn default() -> kvfolio_disk_options {
        kvfolio_disk_options::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_disk_stats {
    pub struct_size: u32,
    pub reserved: u32,
    pub bytes: i64,
    pub records: i64,
    pub segments: i64,
    pub recovered: u64,
    pub recovered_by_footer: u64,
    pub stored: u64,
    pub stored_bytes: u64,
    pub loaded: u64,
    pub loaded_bytes: u64,
    pub corrupt: u64,
    pub io_errors: u64,
    pub no_space: u64,
    pub dropped: u64,
    pub evicted: u64,
    pub reinserted: u64,
    pub scrubbed_bytes: u64,
    pub of_another_key: u64,
}

impl kvfolio_disk_stats {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_disk_stats {
        kvfolio_disk_stats {
            struct_size: std::mem::size_of::<Self>() as u32,
            reserved: 0,
            bytes: 0,
            records: 0,
            segments: 0,
            recovered: 0,
            recovered_by_footer: 0,
            stored: 0,
            stored_bytes: 0,
            loaded: 0,
            loaded_bytes: 0,
            corrupt: 0,
            io_errors: 0,
            no_space: 0,
            dropped: 0,
            evicted: 0,
            reinserted: 0,
            scrubbed_bytes: 0,
            of_another_key: 0,
        }
    }
}

impl Default for kvfolio_disk_stats {
    fn default() -> kvfolio_disk_stats {
        kvfolio_disk_stats::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_redis_tier_options {
    pub struct_size: u32,
    pub items_max: i32,
    pub servers: *const c_char,
    pub user: *const c_char,
    pub password: *const c_char,
    pub key_prefix: *const c_char,
    pub tls_ca_file: *const c_char,
    pub tls_cert_file: *const c_char,
    pub tls_key_file: *const c_char,
    pub tls_server_name: *const c_char,
    pub tls: i32,
    pub reserved: i32,
    pub ttl_ms: u64,
    pub record_bytes_max: i64,
    pub bytes_in_flight_max: i64,
    pub bytes_per_poll: i64,
    pub connect_timeout_us: u64,
    pub stall_timeout_us: u64,
    pub breaker_us_min: u64,
    pub breaker_us_max: u64,
    pub record_key: *const u8,
    pub accepted_record_key: *const u8,
}

impl kvfolio_redis_tier_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_redis_tier_options {
        kvfolio_redis_tier_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            items_max: 0,
            servers: std::ptr::null(),
            user: std::ptr::null(),
            password: std::ptr::null(),
            key_prefix: std::ptr::null(),
            tls_ca_file: std::ptr::null(),
            tls_cert_file: std::ptr::null(),
            tls_key_file: std::ptr::null(),
            tls_server_name: std::ptr::null(),
            tls: 0,
            reserved: 0,
            ttl_ms: 0,
            record_bytes_max: 0,
            bytes_in_flight_max: 0,
            bytes_per_poll: 0,
            connect_timeout_us: 0,
            stall_timeout_us: 0,
            breaker_us_min: 0,
            breaker_us_max: 0,
            record_key: std::ptr::null(),
            accepted_record_key: std::ptr::null(),
        }
    }
}

impl Default for kvfolio_redis_tier_options {
    fn default() -> kvfolio_redis_tier_options {
        kvfolio_redis_tier_options::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_redis_tier_counters {
    pub struct_size: u32,
    pub reserved: u32,
    pub stores_refused: u64,
    pub redirects: u64,
    pub retries: u64,
    pub connections: u64,
    pub connections_lost: u64,
    pub replies_refused: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub of_another_key: u64,
}

impl kvfolio_redis_tier_counters {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_redis_tier_counters {
        kvfolio_redis_tier_counters {
            struct_size: std::mem::size_of::<Self>() as u32,
            reserved: 0,
            stores_refused: 0,
            redirects: 0,
            retries: 0,
            connections: 0,
            connections_lost: 0,
            replies_refused: 0,
            bytes_sent: 0,
            bytes_received: 0,
            of_another_key: 0,
        }
    }
}

impl Default for kvfolio_redis_tier_counters {
    fn default() -> kvfolio_redis_tier_counters {
        kvfolio_redis_tier_counters::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_offload_tier {
    pub struct_size: u32,
    pub policy: i32,
    pub tier: *mut kvfolio_tier,
    pub store_bytes_max: i64,
    pub load_bytes_max: i64,
}

impl kvfolio_offload_tier {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_offload_tier {
        kvfolio_offload_tier {
            struct_size: std::mem::size_of::<Self>() as u32,
            policy: 0,
            tier: std::ptr::null_mut(),
            store_bytes_max: 0,
            load_bytes_max: 0,
        }
    }
}

impl Default for kvfolio_offload_tier {
    fn default() -> kvfolio_offload_tier {
        kvfolio_offload_tier::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_root_epoch {
    pub root: kvfolio_digest,
    pub epoch: u64,
}

impl kvfolio_root_epoch {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_root_epoch {
        kvfolio_root_epoch {
            root: kvfolio_digest::new(),
            epoch: 0,
        }
    }
}

impl Default for kvfolio_root_epoch {
    fn default() -> kvfolio_root_epoch {
        kvfolio_root_epoch::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_offload_options {
    pub struct_size: u32,
    pub reserved: i32,
    pub arena_bytes: i64,
    pub bytes_per_poll: i64,
    pub timeout_us: u64,
    pub copy_timeout_us: u64,
    pub load_bytes_per_s: f64,
    pub prefill_tokens_per_s: f64,
    pub epoch: u64,
    pub root_epochs: *const kvfolio_root_epoch,
    pub num_root_epochs: i64,
}

impl kvfolio_offload_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_offload_options {
        kvfolio_offload_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            reserved: 0,
            arena_bytes: 0,
            bytes_per_poll: 0,
            timeout_us: 0,
            copy_timeout_us: 0,
            load_bytes_per_s: 0.0,
            prefill_tokens_per_s: 0.0,
            epoch: 0,
            root_epochs: std::ptr::null(),
            num_root_epochs: 0,
        }
    }
}

impl Default for kvfolio_offload_options {
    fn default() -> kvfolio_offload_options {
        kvfolio_offload_options::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_sequence_ready {
    pub sequence: kvfolio_sequence,
    pub cached_tokens: i32,
    pub why: i32,
}

impl kvfolio_sequence_ready {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_sequence_ready {
        kvfolio_sequence_ready {
            sequence: 0,
            cached_tokens: 0,
            why: 0,
        }
    }
}

impl Default for kvfolio_sequence_ready {
    fn default() -> kvfolio_sequence_ready {
        kvfolio_sequence_ready::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_offload_left {
    pub struct_size: u32,
    pub blocks: i32,
    pub stores: i64,
    pub loads: i64,
    pub questions: i64,
}

impl kvfolio_offload_left {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_offload_left {
        kvfolio_offload_left {
            struct_size: std::mem::size_of::<Self>() as u32,
            blocks: 0,
            stores: 0,
            loads: 0,
            questions: 0,
        }
    }
}

impl Default for kvfolio_offload_left {
    fn default() -> kvfolio_offload_left {
        kvfolio_offload_left::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_offload_counters {
    pub struct_size: u32,
    pub reserved: u32,
    pub stores: u64,
    pub stores_dropped: u64,
    pub loads: u64,
    pub tokens_loaded: u64,
    pub arena_corrupt: u64,
    pub tier_stores: u64,
    pub tier_stores_dropped: u64,
    pub tier_loads: u64,
    pub tier_misses: [u64; 8],
    pub tier_corrupt: u64,
    pub requests: u64,
    pub requests_canceled: u64,
    pub requests_timed_out: u64,
    pub unknown_completions: u64,
    pub manager_forgets: u64,
    pub steps_max: u64,
    pub copies_failed: u64,
}

impl kvfolio_offload_counters {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_offload_counters {
        kvfolio_offload_counters {
            struct_size: std::mem::size_of::<Self>() as u32,
            reserved: 0,
            stores: 0,
            stores_dropped: 0,
            loads: 0,
            tokens_loaded: 0,
            arena_corrupt: 0,
            tier_stores: 0,
            tier_stores_dropped: 0,
            tier_loads: 0,
            tier_misses: [0; 8],
            tier_corrupt: 0,
            requests: 0,
            requests_canceled: 0,
            requests_timed_out: 0,
            unknown_completions: 0,
            manager_forgets: 0,
            steps_max: 0,
            copies_failed: 0,
        }
    }
}

impl Default for kvfolio_offload_counters {
    fn default() -> kvfolio_offload_counters {
        kvfolio_offload_counters::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_offload_tier_counters {
    pub struct_size: u32,
    pub reserved: u32,
    pub stores: u64,
    pub stores_failed: u64,
    pub loads: u64,
    pub loads_corrupt: u64,
    pub loads_failed: [u64; 8],
    pub bytes_stored: u64,
    pub bytes_loaded: u64,
    pub store_latency: [u64; 10],
    pub load_latency: [u64; 10],
    pub store_us: u64,
    pub load_us: u64,
    pub stores_failed_in_a_row: u64,
    pub stores_dropped: u64,
    pub stores_again: u64,
    pub pauses: u64,
    pub bytes_held: i64,
    pub passed_over: u64,
}

impl kvfolio_offload_tier_counters {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_offload_tier_counters {
        kvfolio_offload_tier_counters {
            struct_size: std::mem::size_of::<Self>() as u32,
            reserved: 0,
            stores: 0,
            stores_failed: 0,
            loads: 0,
            loads_corrupt: 0,
            loads_failed: [0; 8],
            bytes_stored: 0,
            bytes_loaded: 0,
            store_latency: [0; 10],
            load_latency: [0; 10],
            store_us: 0,
            load_us: 0,
            stores_failed_in_a_row: 0,
            stores_dropped: 0,
            stores_again: 0,
            pauses: 0,
            bytes_held: 0,
            passed_over: 0,
        }
    }
}

impl Default for kvfolio_offload_tier_counters {
    fn default() -> kvfolio_offload_tier_counters {
        kvfolio_offload_tier_counters::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_arena_stats {
    pub struct_size: u32,
    pub reserved: u32,
    pub bytes: i64,
    pub bytes_published: i64,
    pub records: i64,
    pub pins: i64,
    pub writing: i64,
    pub quarantined: i64,
    pub evictions: u64,
    pub refusals: u64,
}

impl kvfolio_arena_stats {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_arena_stats {
        kvfolio_arena_stats {
            struct_size: std::mem::size_of::<Self>() as u32,
            reserved: 0,
            bytes: 0,
            bytes_published: 0,
            records: 0,
            pins: 0,
            writing: 0,
            quarantined: 0,
            evictions: 0,
            refusals: 0,
        }
    }
}

impl Default for kvfolio_arena_stats {
    fn default() -> kvfolio_arena_stats {
        kvfolio_arena_stats::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_byte_source {
    pub struct_size: u32,
    pub reserved: i32,
    pub context: *mut c_void,
    pub size: i64,
    pub read_at: Option<unsafe extern "C" fn(context: *mut c_void, offset: i64, out: *mut c_void, num_bytes: i64) -> i32>,
}

impl kvfolio_byte_source {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_byte_source {
        kvfolio_byte_source {
            struct_size: std::mem::size_of::<Self>() as u32,
            reserved: 0,
            context: std::ptr::null_mut(),
            size: 0,
            read_at: None,
        }
    }
}

impl Default for kvfolio_byte_source {
    fn default() -> kvfolio_byte_source {
        kvfolio_byte_source::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_save_options {
    pub struct_size: u32,
    pub no_prefix_cache: i32,
    pub record_key: *const u8,
}

impl kvfolio_save_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_save_options {
        kvfolio_save_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            no_prefix_cache: 0,
            record_key: std::ptr::null(),
        }
    }
}

impl Default for kvfolio_save_options {
    fn default() -> kvfolio_save_options {
        kvfolio_save_options::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_save_stats {
    pub struct_size: u32,
    pub reserved: u32,
    pub records: i64,
    pub tokens: i64,
    pub sequences: i64,
    pub bytes: i64,
}

impl kvfolio_save_stats {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_save_stats {
        kvfolio_save_stats {
            struct_size: std::mem::size_of::<Self>() as u32,
            reserved: 0,
            records: 0,
            tokens: 0,
            sequences: 0,
            bytes: 0,
        }
    }
}

impl Default for kvfolio_save_stats {
    fn default() -> kvfolio_save_stats {
        kvfolio_save_stats::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_restore_options {
    pub struct_size: u32,
    pub reserved: i32,
    pub record_key: *const u8,
    pub accepted_record_key: *const u8,
}

impl kvfolio_restore_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_restore_options {
        kvfolio_restore_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            reserved: 0,
            record_key: std::ptr::null(),
            accepted_record_key: std::ptr::null(),
        }
    }
}

impl Default for kvfolio_restore_options {
    fn default() -> kvfolio_restore_options {
        kvfolio_restore_options::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_restore_stats {
    pub struct_size: u32,
    pub reserved: u32,
    pub records: i64,
    pub records_loaded: i64,
    pub records_refused: i64,
    pub sections_damaged: i64,
    pub paths: i64,
    pub paths_no_room: i64,
    pub tokens: i64,
}

impl kvfolio_restore_stats {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_restore_stats {
        kvfolio_restore_stats {
            struct_size: std::mem::size_of::<Self>() as u32,
            reserved: 0,
            records: 0,
            records_loaded: 0,
            records_refused: 0,
            sections_damaged: 0,
            paths: 0,
            paths_no_room: 0,
            tokens: 0,
        }
    }
}

impl Default for kvfolio_restore_stats {
    fn default() -> kvfolio_restore_stats {
        kvfolio_restore_stats::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_restored_sequence {
    pub struct_size: u32,
    pub length: i32,
    pub sequence: kvfolio_sequence,
    pub caller_id: u64,
    pub has_caller_id: i32,
    pub reserved: i32,
    pub tokens: kvfolio_i32s,
}

impl kvfolio_restored_sequence {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_restored_sequence {
        kvfolio_restored_sequence {
            struct_size: std::mem::size_of::<Self>() as u32,
            length: 0,
            sequence: 0,
            caller_id: 0,
            has_caller_id: 0,
            reserved: 0,
            tokens: kvfolio_i32s::new(),
        }
    }
}

impl Default for kvfolio_restored_sequence {
    fn default() -> kvfolio_restored_sequence {
        kvfolio_restored_sequence::new()
    }
}

extern "C" {
    pub fn kvfolio_tiers_abi_version() -> u32;
    pub fn kvfolio_identity_create(model: *const kvfolio_model_identity, groups: *const kvfolio_group_spec, num_groups: i32, out: *mut *mut kvfolio_identity, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_identity_destroy(identity: *mut kvfolio_identity);
    pub fn kvfolio_identity_check_groups(identity: *const kvfolio_identity, groups: *const kvfolio_group_spec, num_groups: i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_identity_unit(identity: *const kvfolio_identity) -> i32;
    pub fn kvfolio_identity_num_groups(identity: *const kvfolio_identity) -> i32;
    pub fn kvfolio_identity_namespace(identity: *const kvfolio_identity, group: i32, out: *mut kvfolio_digest, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_identity_num_fields(identity: *const kvfolio_identity) -> i32;
    pub fn kvfolio_identity_field(identity: *const kvfolio_identity, index: i32, name: *mut kvfolio_text, value: *mut kvfolio_text, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_identity_root(identity: *mut kvfolio_identity, root: *const kvfolio_root, epoch: u64, out: *mut kvfolio_digest, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_identity_next(identity: *mut kvfolio_identity, before: *const kvfolio_digest, begin: i32, tokens: *const i32, num_tokens: i64, media: *const kvfolio_media_span, num_media: i64, out: *mut kvfolio_digest, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_identity_key(identity: *mut kvfolio_identity, group: i32, tokens: *const kvfolio_digest, out: *mut kvfolio_tier_key, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_foreign_identity_create(model: *const kvfolio_foreign_model, out: *mut *mut kvfolio_foreign_identity, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_foreign_identity_destroy(identity: *mut kvfolio_foreign_identity);
    pub fn kvfolio_foreign_identity_namespace(identity: *const kvfolio_foreign_identity, group: i32, out: *mut kvfolio_digest, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_foreign_identity_key(identity: *const kvfolio_foreign_identity, group: i32, salt: *const kvfolio_text, engine_hash: *const u8, hash_bytes: i64, out: *mut kvfolio_tier_key, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_record_keys_create(key: *const u8, accepted_key: *const u8, out: *mut *mut kvfolio_record_keys, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_record_keys_destroy(keys: *mut kvfolio_record_keys);
    pub fn kvfolio_record_seal(keys: *const kvfolio_record_keys, info: *const kvfolio_record_info, payload: *const c_void, header: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_record_verify(keys: *const kvfolio_record_keys, expected: *const kvfolio_record_info, header: *const c_void, payload: *const c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_record_read(header: *const c_void, out: *mut kvfolio_record_info, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_tier_result_name(result: i32) -> *const c_char;
    pub fn kvfolio_tier_create(functions: *const kvfolio_tier_functions, out: *mut *mut kvfolio_tier, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_tier_create_memory(manager: *mut kvfolio_manager, bytes: i64, resource: *const kvfolio_memory_resource, out: *mut *mut kvfolio_tier, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_tier_open_disk(directory: *const c_char, options: *const kvfolio_disk_options, out: *mut *mut kvfolio_tier, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_tier_disk_stats(tier: *const kvfolio_tier, out: *mut kvfolio_disk_stats, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_tier_create_redis(options: *const kvfolio_redis_tier_options, out: *mut *mut kvfolio_tier, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_tier_redis_counters(tier: *const kvfolio_tier, out: *mut kvfolio_redis_tier_counters, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_tier_share(memory: *const kvfolio_tier, out: *mut *mut kvfolio_tier, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_tier_destroy(tier: *mut kvfolio_tier);
    pub fn kvfolio_tier_name(tier: *const kvfolio_tier) -> *const c_char;
    pub fn kvfolio_tier_limits(tier: *const kvfolio_tier, record_bytes_max: *mut i64, data_alignment: *mut i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_tier_submit(tier: *mut kvfolio_tier, op: i32, items: *const kvfolio_tier_item, num_items: i64, deadline_us: u64, accepted: *mut i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_tier_poll(tier: *mut kvfolio_tier, now_us: u64, done: *mut kvfolio_tier_done, capacity: i64) -> i64;
    pub fn kvfolio_tier_event_fd(tier: *const kvfolio_tier) -> i32;
    pub fn kvfolio_tier_get_health(tier: *const kvfolio_tier, out: *mut kvfolio_tier_health, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_tier_close(tier: *mut kvfolio_tier, deadline_us: u64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_tier_wait_until_ready(tier: *mut kvfolio_tier, now_us: u64, timeout_us: u64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_tier_describe(tier: *const kvfolio_tier, out: *mut c_char, capacity: i64) -> i64;
    pub fn kvfolio_offload_create(manager: *mut kvfolio_manager, model: *const kvfolio_model_identity, options: *const kvfolio_offload_options, tiers: *const kvfolio_offload_tier, num_tiers: i32, resource: *const kvfolio_memory_resource, out: *mut *mut kvfolio_offload, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_offload_destroy(offload: *mut kvfolio_offload);
    pub fn kvfolio_offload_is_of(offload: *const kvfolio_offload, manager: *const kvfolio_manager) -> i32;
    pub fn kvfolio_offload_open(offload: *mut kvfolio_offload, root: *const kvfolio_root, tokens: *const i32, num_tokens: i64, media: *const kvfolio_media_span, num_media: i64, options: *const kvfolio_open_options, out: *mut kvfolio_sequence, cached_tokens: *mut i32, pending: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_load_end_name(why: i32) -> *const c_char;
    pub fn kvfolio_offload_poll(offload: *mut kvfolio_offload, now_us: u64, ready: *mut kvfolio_sequence_ready, capacity: i64) -> i64;
    pub fn kvfolio_offload_cancel(offload: *mut kvfolio_offload, sequence: kvfolio_sequence, length: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_offload_idle(offload: *const kvfolio_offload) -> i32;
    pub fn kvfolio_offload_drain(offload: *mut kvfolio_offload, now_us: u64, out: *mut kvfolio_offload_left, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_offload_forget_root(offload: *mut kvfolio_offload, root: *const kvfolio_root, blocks: *mut i64, pins: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_offload_forget(offload: *mut kvfolio_offload, root: *const kvfolio_root, tokens: *const i32, num_tokens: i64, media: *const kvfolio_media_span, num_media: i64, blocks: *mut i64, pins: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_offload_reset(offload: *mut kvfolio_offload, blocks: *mut i64, pins: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_offload_epoch(offload: *const kvfolio_offload) -> u64;
    pub fn kvfolio_offload_epochs(offload: *const kvfolio_offload, epoch: *mut u64, roots: *mut kvfolio_root_epoch, capacity: i64) -> i64;
    pub fn kvfolio_offload_get_counters(offload: *const kvfolio_offload, out: *mut kvfolio_offload_counters, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_offload_num_tiers(offload: *const kvfolio_offload) -> i32;
    pub fn kvfolio_offload_get_tier_counters(offload: *const kvfolio_offload, tier: i32, out: *mut kvfolio_offload_tier_counters, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_offload_arena(offload: *const kvfolio_offload, out: *mut kvfolio_arena_stats, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_offload_identity(offload: *mut kvfolio_offload) -> *mut kvfolio_identity;
    pub fn kvfolio_offload_check_invariants(offload: *const kvfolio_offload, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_save_list_create(out: *mut *mut kvfolio_save_list, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_save_list_destroy(list: *mut kvfolio_save_list);
    pub fn kvfolio_save_list_add(list: *mut kvfolio_save_list, sequence: kvfolio_sequence, root: *const kvfolio_root, tokens: *const i32, num_tokens: i64, media: *const kvfolio_media_span, num_media: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_save(manager: *mut kvfolio_manager, identity: *mut kvfolio_identity, sink: *const kvfolio_byte_sink, list: *const kvfolio_save_list, options: *const kvfolio_save_options, stats: *mut kvfolio_save_stats, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_save_file(manager: *mut kvfolio_manager, identity: *mut kvfolio_identity, path: *const c_char, list: *const kvfolio_save_list, options: *const kvfolio_save_options, stats: *mut kvfolio_save_stats, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_restore(manager: *mut kvfolio_manager, identity: *mut kvfolio_identity, source: *const kvfolio_byte_source, out: *mut *mut kvfolio_restored, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_restore_file(manager: *mut kvfolio_manager, identity: *mut kvfolio_identity, path: *const c_char, out: *mut *mut kvfolio_restored, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_restore_with(manager: *mut kvfolio_manager, identity: *mut kvfolio_identity, source: *const kvfolio_byte_source, options: *const kvfolio_restore_options, out: *mut *mut kvfolio_restored, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_restore_file_with(manager: *mut kvfolio_manager, identity: *mut kvfolio_identity, path: *const c_char, options: *const kvfolio_restore_options, out: *mut *mut kvfolio_restored, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_restored_destroy(restored: *mut kvfolio_restored);
    pub fn kvfolio_restored_stats(restored: *const kvfolio_restored, out: *mut kvfolio_restore_stats, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_restored_num_sequences(restored: *const kvfolio_restored) -> i32;
    pub fn kvfolio_restored_get(restored: *const kvfolio_restored, index: i32, out: *mut kvfolio_restored_sequence, error: *mut kvfolio_error) -> i32;
}
