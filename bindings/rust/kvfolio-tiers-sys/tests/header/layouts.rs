// SPDX-License-Identifier: Apache-2.0
//
// Written by kvfolio-tiers-sys/generate from include/kvfolio/kvfolio_tiers.h. Do not edit.

// rustfmt::skip: a line for each struct.
#[rustfmt::skip]
layouts! {
    kvfolio_text: data size;
    kvfolio_model_identity: struct_size shard num_shards pipeline_rank num_pipeline_ranks context_rank num_context_ranks reserved model weights tokenizer model_dtype positions engine layers scales;
    kvfolio_digest: bytes;
    kvfolio_tier_key: bytes;
    kvfolio_foreign_model: struct_size num_groups shard num_shards engine model weights model_dtype hash hash_seed layout scales;
    kvfolio_record_info: struct_size key_id key layout payload_bytes begin end epoch writer owner;
    kvfolio_tier_item: key data bytes tag;
    kvfolio_tier_done: tag result reserved;
    kvfolio_tier_health: struct_size unusable stores_ok loads_ok failures corrupt_unasked of_another_key;
    kvfolio_tier_functions: struct_size data_alignment record_bytes_max name context submit poll event_fd health close destroy;
    kvfolio_disk_options: struct_size engine bytes segment_bytes num_threads queue_depth no_direct reserved queued_bytes_max scrub_bytes_per_s items_max open_files_max record_key accepted_record_key;
    kvfolio_disk_stats: struct_size reserved bytes records segments recovered recovered_by_footer stored stored_bytes loaded loaded_bytes corrupt io_errors no_space dropped evicted reinserted scrubbed_bytes of_another_key;
    kvfolio_redis_tier_options: struct_size items_max servers user password key_prefix tls_ca_file tls_cert_file tls_key_file tls_server_name tls reserved ttl_ms record_bytes_max bytes_in_flight_max bytes_per_poll connect_timeout_us stall_timeout_us breaker_us_min breaker_us_max record_key accepted_record_key;
    kvfolio_redis_tier_counters: struct_size reserved stores_refused redirects retries connections connections_lost replies_refused bytes_sent bytes_received of_another_key;
    kvfolio_offload_tier: struct_size policy tier store_bytes_max load_bytes_max;
    kvfolio_root_epoch: root epoch;
    kvfolio_offload_options: struct_size reserved arena_bytes bytes_per_poll timeout_us copy_timeout_us load_bytes_per_s prefill_tokens_per_s epoch root_epochs num_root_epochs;
    kvfolio_sequence_ready: sequence cached_tokens why;
    kvfolio_offload_left: struct_size blocks stores loads questions;
    kvfolio_offload_counters: struct_size reserved stores stores_dropped loads tokens_loaded arena_corrupt tier_stores tier_stores_dropped tier_loads tier_misses tier_corrupt requests requests_canceled requests_timed_out unknown_completions manager_forgets steps_max copies_failed;
    kvfolio_offload_tier_counters: struct_size reserved stores stores_failed loads loads_corrupt loads_failed bytes_stored bytes_loaded store_latency load_latency store_us load_us stores_failed_in_a_row stores_dropped stores_again pauses bytes_held passed_over;
    kvfolio_arena_stats: struct_size reserved bytes bytes_published records pins writing quarantined evictions refusals;
    kvfolio_byte_source: struct_size reserved context size read_at;
    kvfolio_save_options: struct_size no_prefix_cache record_key;
    kvfolio_save_stats: struct_size reserved records tokens sequences bytes;
    kvfolio_restore_options: struct_size reserved record_key accepted_record_key;
    kvfolio_restore_stats: struct_size reserved records records_loaded records_refused sections_damaged paths paths_no_room tokens;
    kvfolio_restored_sequence: struct_size length sequence caller_id has_caller_id reserved tokens;
}

#[rustfmt::skip]
constants! {
    KVFOLIO_TIERS_ABI_VERSION;
    KVFOLIO_RECORD_HEADER_BYTES;
    KVFOLIO_RECORD_KEY_BYTES;
    KVFOLIO_TIER_EXISTS;
    KVFOLIO_TIER_LOAD;
    KVFOLIO_TIER_STORE;
    KVFOLIO_TIER_ERASE;
    KVFOLIO_TIER_OK;
    KVFOLIO_TIER_MISS;
    KVFOLIO_TIER_CORRUPT;
    KVFOLIO_TIER_BUSY;
    KVFOLIO_TIER_TIMEOUT;
    KVFOLIO_TIER_IO_ERROR;
    KVFOLIO_TIER_UNAVAILABLE;
    KVFOLIO_TIER_CLOSED;
    KVFOLIO_NUM_TIER_RESULTS;
    KVFOLIO_DISK_AUTO;
    KVFOLIO_DISK_IO_URING;
    KVFOLIO_DISK_THREADS;
    KVFOLIO_WRITE_THROUGH;
    KVFOLIO_WRITE_SECOND_USE;
    KVFOLIO_WRITE_OFF;
    KVFOLIO_LOADED;
    KVFOLIO_LOAD_PART;
    KVFOLIO_LOAD_NOTHING;
    KVFOLIO_LOAD_RECOMPUTE;
    KVFOLIO_LOAD_TIMEOUT;
    KVFOLIO_LOAD_NO_BLOCKS;
    KVFOLIO_LOAD_FORGOTTEN;
    KVFOLIO_NUM_LATENCIES;
}
