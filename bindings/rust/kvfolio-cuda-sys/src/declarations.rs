// SPDX-License-Identifier: Apache-2.0
//
// Written by kvfolio-cuda-sys/generate from include/kvfolio/kvfolio_cuda.h. Do not edit.

use kvfolio_sys::*;
use std::os::raw::{c_char, c_void};

pub const KVFOLIO_CUDA_ABI_VERSION: u32 = 1;
pub const KVFOLIO_CUDA_PLAIN: i32 = 0;
pub const KVFOLIO_CUDA_POOL: i32 = 1;
pub const KVFOLIO_CUDA_LENT: i32 = 2;


/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_cuda_device {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_cuda_stream {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_cuda_event {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_cuda_kernels {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_cuda_pinned {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_cuda_memory {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_cuda_attend_plan {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_cuda_batch_attention {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_cuda_graph {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

/// A handle: only pointers to it exist.
#[repr(C)]
pub struct kvfolio_cuda_plan {
    _private: [u8; 0],
    _neither_send_nor_sync: std::marker::PhantomData<*mut u8>,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_cuda_device_info {
    pub struct_size: u32,
    pub ordinal: i32,
    pub capability_major: i32,
    pub capability_minor: i32,
    pub num_multiprocessors: i32,
}

impl kvfolio_cuda_device_info {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_cuda_device_info {
        kvfolio_cuda_device_info {
            struct_size: std::mem::size_of::<Self>() as u32,
            ordinal: 0,
            capability_major: 0,
            capability_minor: 0,
            num_multiprocessors: 0,
        }
    }
}

impl Default for kvfolio_cuda_device_info {
    fn default() -> kvfolio_cuda_device_info {
        kvfolio_cuda_device_info::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_cuda_kernel_options {
    pub struct_size: u32,
    pub no_pointer_checks: i32,
}

impl kvfolio_cuda_kernel_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_cuda_kernel_options {
        kvfolio_cuda_kernel_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            no_pointer_checks: 0,
        }
    }
}

impl Default for kvfolio_cuda_kernel_options {
    fn default() -> kvfolio_cuda_kernel_options {
        kvfolio_cuda_kernel_options::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_cuda_memory_options {
    pub struct_size: u32,
    pub source: i32,
    pub staging_bytes: i64,
    pub lent: *mut c_void,
    pub lent_bytes: i64,
}

impl kvfolio_cuda_memory_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_cuda_memory_options {
        kvfolio_cuda_memory_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            source: 0,
            staging_bytes: 0,
            lent: std::ptr::null_mut(),
            lent_bytes: 0,
        }
    }
}

impl Default for kvfolio_cuda_memory_options {
    fn default() -> kvfolio_cuda_memory_options {
        kvfolio_cuda_memory_options::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_cuda_attention {
    pub struct_size: u32,
    pub block_table_stride: i32,
    pub block_table: *const i32,
    pub query_start: *const i32,
    pub kv_lens: *const i32,
    pub trim_sinks: *const i32,
    pub trim_first_kept: *const i32,
    pub q: *const c_void,
    pub out: *mut c_void,
    pub lse: *mut f32,
}

impl kvfolio_cuda_attention {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_cuda_attention {
        kvfolio_cuda_attention {
            struct_size: std::mem::size_of::<Self>() as u32,
            block_table_stride: 0,
            block_table: std::ptr::null(),
            query_start: std::ptr::null(),
            kv_lens: std::ptr::null(),
            trim_sinks: std::ptr::null(),
            trim_first_kept: std::ptr::null(),
            q: std::ptr::null(),
            out: std::ptr::null_mut(),
            lse: std::ptr::null_mut(),
        }
    }
}

impl Default for kvfolio_cuda_attention {
    fn default() -> kvfolio_cuda_attention {
        kvfolio_cuda_attention::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_cuda_attend_shape {
    pub struct_size: u32,
    pub num_sequences: i32,
    pub num_rows: i32,
    pub items: i32,
    pub groups: i32,
    pub prefill_items: i32,
    pub segments: i32,
    pub segments_per_block: i32,
    pub states: i32,
    pub many_nodes: i32,
    pub merges: i32,
}

impl kvfolio_cuda_attend_shape {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_cuda_attend_shape {
        kvfolio_cuda_attend_shape {
            struct_size: std::mem::size_of::<Self>() as u32,
            num_sequences: 0,
            num_rows: 0,
            items: 0,
            groups: 0,
            prefill_items: 0,
            segments: 0,
            segments_per_block: 0,
            states: 0,
            many_nodes: 0,
            merges: 0,
        }
    }
}

impl Default for kvfolio_cuda_attend_shape {
    fn default() -> kvfolio_cuda_attend_shape {
        kvfolio_cuda_attend_shape::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_cuda_attend_capacity {
    pub struct_size: u32,
    pub max_sequences: i32,
    pub max_sequence_tokens: i32,
    pub max_queries: i32,
    pub max_tokens: i64,
}

impl kvfolio_cuda_attend_capacity {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_cuda_attend_capacity {
        kvfolio_cuda_attend_capacity {
            struct_size: std::mem::size_of::<Self>() as u32,
            max_sequences: 0,
            max_sequence_tokens: 0,
            max_queries: 0,
            max_tokens: 0,
        }
    }
}

impl Default for kvfolio_cuda_attend_capacity {
    fn default() -> kvfolio_cuda_attend_capacity {
        kvfolio_cuda_attend_capacity::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_cuda_paged_kv {
    pub struct_size: u32,
    pub layout: i32,
    pub k: *mut c_void,
    pub v: *mut c_void,
    pub num_pages: i32,
    pub page_size: i32,
    pub num_kv_heads: i32,
    pub head_dim: i32,
    pub dtype: i32,
    pub reserved: i32,
}

impl kvfolio_cuda_paged_kv {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_cuda_paged_kv {
        kvfolio_cuda_paged_kv {
            struct_size: std::mem::size_of::<Self>() as u32,
            layout: 0,
            k: std::ptr::null_mut(),
            v: std::ptr::null_mut(),
            num_pages: 0,
            page_size: 0,
            num_kv_heads: 0,
            head_dim: 0,
            dtype: 0,
            reserved: 0,
        }
    }
}

impl Default for kvfolio_cuda_paged_kv {
    fn default() -> kvfolio_cuda_paged_kv {
        kvfolio_cuda_paged_kv::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_cuda_batch_attention_options {
    pub struct_size: u32,
    pub max_sequences: i32,
    pub max_pages_of_sequence: i32,
    pub reserved: i32,
    pub max_image_bytes: i64,
    pub workspace_bytes: i64,
    pub padded: i32,
    pub max_queries: i32,
    pub max_tokens: i64,
}

impl kvfolio_cuda_batch_attention_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_cuda_batch_attention_options {
        kvfolio_cuda_batch_attention_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            max_sequences: 0,
            max_pages_of_sequence: 0,
            reserved: 0,
            max_image_bytes: 0,
            workspace_bytes: 0,
            padded: 0,
            max_queries: 0,
            max_tokens: 0,
        }
    }
}

impl Default for kvfolio_cuda_batch_attention_options {
    fn default() -> kvfolio_cuda_batch_attention_options {
        kvfolio_cuda_batch_attention_options::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_cuda_batch_attention_params {
    pub struct_size: u32,
    pub num_qo_heads: i32,
    pub causal: i32,
    pub window: i32,
    pub sm_scale: f64,
    pub logits_soft_cap: f64,
    pub q_data_type: i32,
    pub o_data_type: i32,
}

impl kvfolio_cuda_batch_attention_params {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_cuda_batch_attention_params {
        kvfolio_cuda_batch_attention_params {
            struct_size: std::mem::size_of::<Self>() as u32,
            num_qo_heads: 0,
            causal: 0,
            window: 0,
            sm_scale: 0.0,
            logits_soft_cap: 0.0,
            q_data_type: 0,
            o_data_type: 0,
        }
    }
}

impl Default for kvfolio_cuda_batch_attention_params {
    fn default() -> kvfolio_cuda_batch_attention_params {
        kvfolio_cuda_batch_attention_params::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_cuda_plan_options {
    pub struct_size: u32,
    pub max_sequences: i32,
    pub max_tokens: i32,
    pub num_rows: i32,
    pub steps_in_flight: i32,
    pub pad_with_zero: i32,
    pub positions: i32,
    pub int64_slots: i32,
    pub no_batch_tables: i32,
    pub flashinfer: i32,
    pub max_changed_entries: i64,
}

impl kvfolio_cuda_plan_options {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_cuda_plan_options {
        kvfolio_cuda_plan_options {
            struct_size: std::mem::size_of::<Self>() as u32,
            max_sequences: 0,
            max_tokens: 0,
            num_rows: 0,
            steps_in_flight: 0,
            pad_with_zero: 0,
            positions: 0,
            int64_slots: 0,
            no_batch_tables: 0,
            flashinfer: 0,
            max_changed_entries: 0,
        }
    }
}

impl Default for kvfolio_cuda_plan_options {
    fn default() -> kvfolio_cuda_plan_options {
        kvfolio_cuda_plan_options::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_cuda_plan_arrays {
    pub struct_size: u32,
    pub num_groups: i32,
    pub query_start: *const i32,
    pub rows: *const i32,
    pub kv_lens: *const i32,
    pub trim_sinks: *const i32,
    pub trim_first_kept: *const i32,
    pub positions: *const i32,
    pub counts: *const i32,
}

impl kvfolio_cuda_plan_arrays {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_cuda_plan_arrays {
        kvfolio_cuda_plan_arrays {
            struct_size: std::mem::size_of::<Self>() as u32,
            num_groups: 0,
            query_start: std::ptr::null(),
            rows: std::ptr::null(),
            kv_lens: std::ptr::null(),
            trim_sinks: std::ptr::null(),
            trim_first_kept: std::ptr::null(),
            positions: std::ptr::null(),
            counts: std::ptr::null(),
        }
    }
}

impl Default for kvfolio_cuda_plan_arrays {
    fn default() -> kvfolio_cuda_plan_arrays {
        kvfolio_cuda_plan_arrays::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_cuda_plan_group {
    pub struct_size: u32,
    pub table_stride: i32,
    pub slot_mapping: *const i32,
    pub slot_mapping_64: *const i64,
    pub table: *const i32,
    pub batch_table: *const i32,
    pub kv_indptr: *const i32,
    pub kv_indices: *const i32,
    pub kv_last_page_len: *const i32,
    pub kv_first_live: *const i32,
}

impl kvfolio_cuda_plan_group {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_cuda_plan_group {
        kvfolio_cuda_plan_group {
            struct_size: std::mem::size_of::<Self>() as u32,
            table_stride: 0,
            slot_mapping: std::ptr::null(),
            slot_mapping_64: std::ptr::null(),
            table: std::ptr::null(),
            batch_table: std::ptr::null(),
            kv_indptr: std::ptr::null(),
            kv_indices: std::ptr::null(),
            kv_last_page_len: std::ptr::null(),
            kv_first_live: std::ptr::null(),
        }
    }
}

impl Default for kvfolio_cuda_plan_group {
    fn default() -> kvfolio_cuda_plan_group {
        kvfolio_cuda_plan_group::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvfolio_cuda_upload_info {
    pub struct_size: u32,
    pub reserved: i32,
    pub bytes: i64,
    pub changed_entries: i64,
    pub whole_rows: i64,
    pub whole_entries: i64,
}

impl kvfolio_cuda_upload_info {
    /// All 0, but for a `struct_size`.
    pub const fn new() -> kvfolio_cuda_upload_info {
        kvfolio_cuda_upload_info {
            struct_size: std::mem::size_of::<Self>() as u32,
            reserved: 0,
            bytes: 0,
            changed_entries: 0,
            whole_rows: 0,
            whole_entries: 0,
        }
    }
}

impl Default for kvfolio_cuda_upload_info {
    fn default() -> kvfolio_cuda_upload_info {
        kvfolio_cuda_upload_info::new()
    }
}

extern "C" {
    pub fn kvfolio_cuda_abi_version() -> u32;
    pub fn kvfolio_cuda_kernel_revision() -> i32;
    pub fn kvfolio_cuda_available(error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_num_devices(out: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_device_open(ordinal: i32, out: *mut *mut kvfolio_cuda_device, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_device_destroy(device: *mut kvfolio_cuda_device);
    pub fn kvfolio_cuda_device_name(device: *const kvfolio_cuda_device) -> *const c_char;
    pub fn kvfolio_cuda_device_target(device: *const kvfolio_cuda_device) -> *const c_char;
    pub fn kvfolio_cuda_device_get_info(device: *const kvfolio_cuda_device, out: *mut kvfolio_cuda_device_info, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_device_status(device: *const kvfolio_cuda_device, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_device_synchronize(device: *const kvfolio_cuda_device, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_stream_create(device: *const kvfolio_cuda_device, out: *mut *mut kvfolio_cuda_stream, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_stream_destroy(stream: *mut kvfolio_cuda_stream);
    pub fn kvfolio_cuda_stream_handle(stream: *const kvfolio_cuda_stream) -> *mut c_void;
    pub fn kvfolio_cuda_stream_done(stream: *mut kvfolio_cuda_stream, out: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_stream_synchronize(stream: *mut kvfolio_cuda_stream, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_event_create(device: *const kvfolio_cuda_device, out: *mut *mut kvfolio_cuda_event, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_event_destroy(event: *mut kvfolio_cuda_event);
    pub fn kvfolio_cuda_event_handle(event: *const kvfolio_cuda_event) -> *mut c_void;
    pub fn kvfolio_cuda_event_record(event: *mut kvfolio_cuda_event, stream: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_event_passed(event: *mut kvfolio_cuda_event, out: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_event_synchronize(event: *mut kvfolio_cuda_event, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_event_hold_back(event: *mut kvfolio_cuda_event, stream: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_kernels_load(device: *const kvfolio_cuda_device, options: *const kvfolio_cuda_kernel_options, out: *mut *mut kvfolio_cuda_kernels, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_kernels_destroy(kernels: *mut kvfolio_cuda_kernels);
    pub fn kvfolio_cuda_pinned_allocate(device: *const kvfolio_cuda_device, bytes: i64, out: *mut *mut kvfolio_cuda_pinned, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_pinned_destroy(pinned: *mut kvfolio_cuda_pinned);
    pub fn kvfolio_cuda_pinned_data(pinned: *const kvfolio_cuda_pinned) -> *mut c_void;
    pub fn kvfolio_cuda_pinned_bytes(pinned: *const kvfolio_cuda_pinned) -> i64;
    pub fn kvfolio_cuda_memory_create(device: *const kvfolio_cuda_device, kernels: *const kvfolio_cuda_kernels, options: *const kvfolio_cuda_memory_options, out: *mut *mut kvfolio_cuda_memory, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_memory_destroy(memory: *mut kvfolio_cuda_memory);
    pub fn kvfolio_cuda_memory_resource(memory: *mut kvfolio_cuda_memory, out: *mut kvfolio_memory_resource, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_memory_take_error(memory: *mut kvfolio_cuda_memory, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_memory_allocate(memory: *mut kvfolio_cuda_memory, bytes: i64, out: *mut *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_memory_deallocate(memory: *mut kvfolio_cuda_memory, piece: *mut c_void, bytes: i64);
    pub fn kvfolio_cuda_memory_copy_in(memory: *mut kvfolio_cuda_memory, dst: *mut c_void, src: *const c_void, bytes: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_memory_copy_out(memory: *mut kvfolio_cuda_memory, dst: *mut c_void, src: *const c_void, bytes: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_memory_copy(memory: *mut kvfolio_cuda_memory, dst: *mut c_void, src: *const c_void, bytes: i64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_slot_fault(cache: *const kvfolio_view, fault: u64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_table_fault(cache: *const kvfolio_view, fault: u64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_append(kernels: *const kvfolio_cuda_kernels, cache: *mut kvfolio_view, layer: i32, k: *const c_void, k_rows: *const kvfolio_rows, v: *const c_void, v_rows: *const kvfolio_rows, slots: *const i32, num_slots: i64, stream: *mut c_void, fault: *mut u64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_gather(kernels: *const kvfolio_cuda_kernels, cache: *const kvfolio_view, block_table: *const i32, num_entries: i64, options: *const kvfolio_gather_options, k: *mut c_void, k_rows: *const kvfolio_rows, v: *mut c_void, v_rows: *const kvfolio_rows, stream: *mut c_void, fault: *mut u64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_copy_blocks(kernels: *const kvfolio_cuda_kernels, cache: *mut kvfolio_view, src: *const i32, dst: *const i32, num_blocks: i64, stream: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_convert_blocks(kernels: *const kvfolio_cuda_kernels, from: *const kvfolio_view, to: *mut kvfolio_view, src: *const i32, dst: *const i32, num_blocks: i64, stream: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_fill(kernels: *const kvfolio_cuda_kernels, cache: *mut kvfolio_view, value: u8, stream: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_plan_attend(kernels: *const kvfolio_cuda_kernels, cache: *const kvfolio_view, options: *const kvfolio_attention_options, on_device: *const kvfolio_cuda_attention, num_sequences: i32, query_start: *const i32, kv_lens: *const i32, trim_sinks: *const i32, trim_first_kept: *const i32, q_rows: *const kvfolio_rows, out_rows: *const kvfolio_rows, out: *mut *mut kvfolio_cuda_attend_plan, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_attend_plan_destroy(plan: *mut kvfolio_cuda_attend_plan);
    pub fn kvfolio_cuda_attend_plan_image(plan: *const kvfolio_cuda_attend_plan, bytes: *mut i64) -> *const c_void;
    pub fn kvfolio_cuda_attend_plan_workspace_bytes(plan: *const kvfolio_cuda_attend_plan) -> i64;
    pub fn kvfolio_cuda_attend_plan_zeroed_bytes(plan: *const kvfolio_cuda_attend_plan) -> i64;
    pub fn kvfolio_cuda_attend_plan_target(plan: *const kvfolio_cuda_attend_plan) -> *const c_char;
    pub fn kvfolio_cuda_attend_plan_get_shape(plan: *const kvfolio_cuda_attend_plan, out: *mut kvfolio_cuda_attend_shape, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_upload(kernels: *const kvfolio_cuda_kernels, plan: *const kvfolio_cuda_attend_plan, pinned: *mut c_void, pinned_bytes: i64, image: *mut c_void, workspace: *mut c_void, stream: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_attend(kernels: *const kvfolio_cuda_kernels, cache: *const kvfolio_view, options: *const kvfolio_attention_options, on_device: *const kvfolio_cuda_attention, num_sequences: i32, query_start: *const i32, kv_lens: *const i32, trim_sinks: *const i32, trim_first_kept: *const i32, q_rows: *const kvfolio_rows, out_rows: *const kvfolio_rows, plan: *const kvfolio_cuda_attend_plan, image: *const c_void, workspace: *mut c_void, stream: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_plan_attend_padded(kernels: *const kvfolio_cuda_kernels, cache: *const kvfolio_view, options: *const kvfolio_attention_options, on_device: *const kvfolio_cuda_attention, num_sequences: i32, query_start: *const i32, kv_lens: *const i32, trim_sinks: *const i32, trim_first_kept: *const i32, q_rows: *const kvfolio_rows, out_rows: *const kvfolio_rows, capacity: *const kvfolio_cuda_attend_capacity, out: *mut *mut kvfolio_cuda_attend_plan, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_plan_on_device(kernels: *const kvfolio_cuda_kernels, cache: *const kvfolio_view, options: *const kvfolio_attention_options, on_device: *const kvfolio_cuda_attention, num_sequences: i32, query_start: *const i32, kv_lens: *const i32, trim_sinks: *const i32, trim_first_kept: *const i32, q_rows: *const kvfolio_rows, out_rows: *const kvfolio_rows, plan: *const kvfolio_cuda_attend_plan, image: *mut c_void, workspace: *mut c_void, stream: *mut c_void, counts: *const i32, fault: *mut u64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_plan_fault(plan: *const kvfolio_cuda_attend_plan, fault: u64, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_attend_plan_get_capacity(plan: *const kvfolio_cuda_attend_plan, out: *mut kvfolio_cuda_attend_capacity, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_attend_plan_check(plan: *const kvfolio_cuda_attend_plan, num_sequences: i32, query_start: *const i32, kv_lens: *const i32, trim_sinks: *const i32, trim_first_kept: *const i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_attend_plan_explain(plan: *const kvfolio_cuda_attend_plan) -> *const c_char;
    pub fn kvfolio_cuda_paged_kv_view(tensors: *const kvfolio_cuda_paged_kv, out: *mut *mut kvfolio_view, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_batch_attention_create(kernels: *const kvfolio_cuda_kernels, options: *const kvfolio_cuda_batch_attention_options, out: *mut *mut kvfolio_cuda_batch_attention, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_batch_attention_destroy(attention: *mut kvfolio_cuda_batch_attention);
    pub fn kvfolio_cuda_batch_attention_plan(attention: *mut kvfolio_cuda_batch_attention, params: *const kvfolio_cuda_batch_attention_params, num_sequences: i32, qo_indptr: *const i32, kv_indptr: *const i32, kv_indices: *const i32, num_kv_indices: i64, kv_last_page_len: *const i32, paged_kv: *const kvfolio_view, stream: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_batch_attention_run(attention: *mut kvfolio_cuda_batch_attention, q: *const c_void, q_rows: *const kvfolio_rows, paged_kv: *const kvfolio_view, layer: i32, out: *mut c_void, out_rows: *const kvfolio_rows, lse: *mut f32, stream: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_batch_attention_get_shape(attention: *const kvfolio_cuda_batch_attention, out: *mut kvfolio_cuda_attend_shape, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_batch_attention_target(attention: *const kvfolio_cuda_batch_attention) -> *const c_char;
    pub fn kvfolio_cuda_batch_attention_device_bytes(attention: *const kvfolio_cuda_batch_attention) -> i64;
    pub fn kvfolio_cuda_batch_attention_pinned_bytes(attention: *const kvfolio_cuda_batch_attention) -> i64;
    pub fn kvfolio_cuda_graph_begin_capture(device: *const kvfolio_cuda_device, stream: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_graph_end_capture(device: *const kvfolio_cuda_device, stream: *mut c_void, out: *mut *mut kvfolio_cuda_graph, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_graph_drop_capture(device: *const kvfolio_cuda_device, stream: *mut c_void);
    pub fn kvfolio_cuda_graph_destroy(graph: *mut kvfolio_cuda_graph);
    pub fn kvfolio_cuda_graph_launch(graph: *mut kvfolio_cuda_graph, stream: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_graph_handle(graph: *const kvfolio_cuda_graph) -> *mut c_void;
    pub fn kvfolio_cuda_plan_create(kernels: *const kvfolio_cuda_kernels, options: *const kvfolio_cuda_plan_options, block_sizes: *const i32, table_strides: *const i32, num_groups: i32, out: *mut *mut kvfolio_cuda_plan, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_plan_destroy(plan: *mut kvfolio_cuda_plan);
    pub fn kvfolio_cuda_plan_get_arrays(plan: *const kvfolio_cuda_plan, out: *mut kvfolio_cuda_plan_arrays, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_plan_get_group(plan: *const kvfolio_cuda_plan, group: i32, out: *mut kvfolio_cuda_plan_group, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_plan_device_bytes(plan: *const kvfolio_cuda_plan) -> i64;
    pub fn kvfolio_cuda_plan_pinned_bytes(plan: *const kvfolio_cuda_plan) -> i64;
    pub fn kvfolio_cuda_plan_upload(plan: *mut kvfolio_cuda_plan, step: *const kvfolio_step_plan, groups: *const kvfolio_group_plan, num_groups: i32, stream: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_plan_needs_block_tables(plan: *mut kvfolio_cuda_plan, step: *const kvfolio_step_plan, groups: *const kvfolio_group_plan, num_groups: i32, out: *mut i32, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_plan_wait(plan: *mut kvfolio_cuda_plan, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_plan_send(plan: *mut kvfolio_cuda_plan, step: *const kvfolio_step_plan, groups: *const kvfolio_group_plan, num_groups: i32, stream: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_plan_apply(plan: *mut kvfolio_cuda_plan, stream: *mut c_void, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_plan_applied(plan: *mut kvfolio_cuda_plan);
    pub fn kvfolio_cuda_plan_last_upload(plan: *const kvfolio_cuda_plan, out: *mut kvfolio_cuda_upload_info, error: *mut kvfolio_error) -> i32;
    pub fn kvfolio_cuda_plan_resend(plan: *mut kvfolio_cuda_plan);
    pub fn kvfolio_cuda_plan_verify(plan: *mut kvfolio_cuda_plan, step: *const kvfolio_step_plan, groups: *const kvfolio_group_plan, num_groups: i32, stream: *mut c_void, error: *mut kvfolio_error) -> i32;
}
