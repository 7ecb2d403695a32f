// SPDX-License-Identifier: Apache-2.0
//
// Written by kvfolio-sys/generate from include/kvfolio/kvfolio.h. Do not edit.

// rustfmt::skip: a line for each struct.
#[rustfmt::skip]
layouts! {
    kvfolio_shortage: struct_size group needed free evictable pinned retiring sequences pins reserved loads holds num_blocks kept never;
    kvfolio_error: struct_size code message shortage;
    kvfolio_group_spec: struct_size num_layers num_kv_heads head_dim_k head_dim_v v_is_prefix_of_k block_size dtype format kind window num_sinks num_blocks rewind;
    kvfolio_group_layout: struct_size reserved block_stride layer_stride k_head_stride k_token_stride v_offset v_head_stride v_token_stride k_scale_offset v_scale_offset scale_head_stride scale_token_stride payload_bytes_per_token bytes_per_block total_bytes;
    kvfolio_copy_run: dst src bytes;
    kvfolio_memory_resource: struct_size kind context allocate deallocate copy copy_batch copy_in copy_out;
    kvfolio_strides: layer block head token;
    kvfolio_borrowed_layer: k v k_scale v_scale;
    kvfolio_borrowed_group: struct_size num_layers k k_bytes k_strides v v_bytes v_strides k_scale k_scale_bytes k_scale_strides v_scale v_scale_bytes v_scale_strides layers;
    kvfolio_manager_options: struct_size max_sequences max_pins max_steps_in_flight order no_prefix_cache max_sequence_tokens max_runs max_index_tokens max_root_key_bytes max_table_entries hash_seed high_watermark max_root_keys max_media_extents victim_policy id_tag max_transfers list_findable copies_by_host null_block max_announced_tokens;
    kvfolio_media_span: struct_size begin end attends_to_itself content_id;
    kvfolio_open_options: struct_size no_prefix_cache no_look_up publish has_caller_id max_tokens caller_id priority late_names announce reserved;
    kvfolio_found: struct_size cached_tokens soon_tokens reserved soon_by;
    kvfolio_fork_options: struct_size has_caller_id caller_id priority reserved;
    kvfolio_i32s: data size;
    kvfolio_i64s: data size;
    kvfolio_plan_options: struct_size pad_with_zero no_block_tables changed_entries flashinfer shared_prefixes positions caller_ids table_stride padded_sequences padded_tokens memory memory_bytes int64_slots reserved;
    kvfolio_shared_prefix: first_sequence num_sequences num_blocks;
    kvfolio_group_plan: struct_size block_table_stride slot_mapping block_table kv_indptr kv_indices kv_last_page_len copy_src copy_dst changed_rows changed_columns changed_blocks shared_prefixes num_shared_prefixes kv_first_live slot_mapping_64;
    kvfolio_step_plan: struct_size num_tokens ticket sequences num_sequences rows query_start kv_lens trim_sinks trim_first_kept positions rewinds caller_ids number follows;
    kvfolio_ended: sequence caller_id has_caller_id reserved;
    kvfolio_load: struct_size reserved id begin end;
    kvfolio_findable_block: group block end reserved serial;
    kvfolio_sequence_info: struct_size length accepted_length published_length trim_sinks trim_first_kept in_open_step num_unnamed reserved_tokens caller_id has_caller_id max_tokens last_use use_count priority reserved load rewinds rewind_from;
    kvfolio_group_usage: struct_size num_blocks free held cached retiring evictable reserved loading on_hold;
    kvfolio_counters: struct_size reserved blocks_allocated blocks_freed blocks_evicted blocks_unhung block_copies sequences_opened sequences_closed sequences_preempted sequences_aborted forks tokens_looked_up tokens_reused tokens_committed blocks_published publications_skipped blocks_used_peak tokens_loaded announcements_skipped;
    kvfolio_byte_sink: struct_size reserved context write;
    kvfolio_rows: struct_size dtype num_tokens num_heads head_dim reserved token_stride head_stride;
    kvfolio_gather_options: struct_size length first count first_layer num_layers first_head reserved k_layer_stride v_layer_stride;
    kvfolio_executor: struct_size num_threads context parallel_for;
    kvfolio_attention_options: struct_size layer scale not_causal window num_sinks target slice first_row num_rows first_kv_head num_kv_heads chunk soft_cap alibi_slopes sink_logits num_alibi_slopes num_sink_logits;
    kvfolio_token_store_options: struct_size head_dim_k head_dim_v num_kv_heads dtype block_size max_tokens;
}

#[rustfmt::skip]
constants! {
    KVFOLIO_ABI_VERSION;
    KVFOLIO_POLICY_OF_OPTIONS;
    KVFOLIO_OK;
    KVFOLIO_ERR_INVALID_ARGUMENT;
    KVFOLIO_ERR_NOT_FOUND;
    KVFOLIO_ERR_FAILED_PRECONDITION;
    KVFOLIO_ERR_NO_BLOCKS;
    KVFOLIO_ERR_RESOURCE_EXHAUSTED;
    KVFOLIO_ERR_ABORTED;
    KVFOLIO_ERR_OUT_OF_MEMORY;
    KVFOLIO_ERR_UNSUPPORTED;
    KVFOLIO_ERR_UNAVAILABLE;
    KVFOLIO_ERR_TIMED_OUT;
    KVFOLIO_ERR_CORRUPT;
    KVFOLIO_DTYPE_DEFAULT;
    KVFOLIO_F64;
    KVFOLIO_F32;
    KVFOLIO_F16;
    KVFOLIO_BF16;
    KVFOLIO_INT8;
    KVFOLIO_E4M3;
    KVFOLIO_OPAQUE;
    KVFOLIO_HND;
    KVFOLIO_NHD;
    KVFOLIO_GRANULE;
    KVFOLIO_FULL;
    KVFOLIO_SLIDING_WINDOW;
    KVFOLIO_HOST;
    KVFOLIO_DEVICE;
    KVFOLIO_IN_ORDER;
    KVFOLIO_UNORDERED;
    KVFOLIO_LRU;
    KVFOLIO_LFU;
    KVFOLIO_LONGEST;
    KVFOLIO_LOWEST_PRIORITY;
    KVFOLIO_PUBLISH_ALL;
    KVFOLIO_PUBLISH_FULL_BLOCKS;
    KVFOLIO_PUBLISH_NOTHING;
    KVFOLIO_BLOCK_FREE;
    KVFOLIO_BLOCK_HELD;
    KVFOLIO_BLOCK_CACHED;
    KVFOLIO_BLOCK_RETIRING;
    KVFOLIO_TARGET_AUTO;
    KVFOLIO_TARGET_REFERENCE;
    KVFOLIO_TARGET_PORTABLE;
    KVFOLIO_TARGET_AVX2;
    KVFOLIO_TARGET_AVX512;
    KVFOLIO_TARGET_AVX512_BF16;
    KVFOLIO_TARGET_NEON;
}
