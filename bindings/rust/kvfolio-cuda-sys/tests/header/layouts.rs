// SPDX-License-Identifier: Apache-2.0
//
// Written by kvfolio-cuda-sys/generate from include/kvfolio/kvfolio_cuda.h. Do not edit.

// rustfmt::skip: a line for each struct.
#[rustfmt::skip]
layouts! {
    kvfolio_cuda_device_info: struct_size ordinal capability_major capability_minor num_multiprocessors;
    kvfolio_cuda_kernel_options: struct_size no_pointer_checks;
    kvfolio_cuda_memory_options: struct_size source staging_bytes lent lent_bytes;
    kvfolio_cuda_attention: struct_size block_table_stride block_table query_start kv_lens trim_sinks trim_first_kept q out lse;
    kvfolio_cuda_attend_shape: struct_size num_sequences num_rows items groups prefill_items segments segments_per_block states many_nodes merges;
    kvfolio_cuda_attend_capacity: struct_size max_sequences max_sequence_tokens max_queries max_tokens;
    kvfolio_cuda_paged_kv: struct_size layout k v num_pages page_size num_kv_heads head_dim dtype reserved;
    kvfolio_cuda_batch_attention_options: struct_size max_sequences max_pages_of_sequence reserved max_image_bytes workspace_bytes padded max_queries max_tokens;
    kvfolio_cuda_batch_attention_params: struct_size num_qo_heads causal window sm_scale logits_soft_cap q_data_type o_data_type;
    kvfolio_cuda_plan_options: struct_size max_sequences max_tokens num_rows steps_in_flight pad_with_zero positions int64_slots no_batch_tables flashinfer max_changed_entries;
    kvfolio_cuda_plan_arrays: struct_size num_groups query_start rows kv_lens trim_sinks trim_first_kept positions counts;
    kvfolio_cuda_plan_group: struct_size table_stride slot_mapping slot_mapping_64 table batch_table kv_indptr kv_indices kv_last_page_len kv_first_live;
    kvfolio_cuda_upload_info: struct_size reserved bytes changed_entries whole_rows whole_entries;
}

#[rustfmt::skip]
constants! {
    KVFOLIO_CUDA_ABI_VERSION;
    KVFOLIO_CUDA_PLAIN;
    KVFOLIO_CUDA_POOL;
    KVFOLIO_CUDA_LENT;
}
