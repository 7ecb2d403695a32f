// SPDX-License-Identifier: Apache-2.0
//
// What users of the four systems that kvfolio replaces write in Rust. docs/coming-from.md shows the
// marked lines.

use kvfolio::{
    Cache, DType, Error, ForkOptions, Format, GatherOptions, GroupSpec, OpenOptions, Options,
    Policy, Result, Rows, RowsMut, Storage, TokenStore, TokenStoreOptions,
};

fn ids_only(num_blocks: i32) -> Result<Cache> {
    let group = GroupSpec { head_dim_k: 4, head_dim_v: 4, num_blocks, ..GroupSpec::default() };
    Cache::new(&[group], &Options::default())
}

#[test]
fn one_vector_per_token_lies_where_it_was_appended() -> Result<()> {
    // shown: cjc
    let options = TokenStoreOptions {
        head_dim_k: 2, // no V
        dtype: DType::F64,
        max_tokens: 20,
        ..TokenStoreOptions::default()
    };
    let mut store = TokenStore::new(&options)?;
    store.append(&[1.0, 2.0], &[])?; // append
    store.append(&[3.0, 4.0, 5.0, 6.0], &[])?; // append_tensor: all rows or none
    let token: &[f64] = store.at(1)?; // get_token, without a copy
    assert_eq!(token, [3.0, 4.0]);
    let mut all = vec![0f64; store.len() * 2]; // as_tensor, or any range
    store.gather(0, &mut all, &mut [])?;
    let copy = store.copy()?; // Clone: the blocks in use
    store.clear();
    // shown end
    assert_eq!((all, copy.len(), store.len()), (vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3, 0));
    let full = store.append(&[0f64; 21 * 2], &[]).unwrap_err();
    assert_eq!(full.message(), "append of 21 tokens: full: 0 of 20 tokens");
    Ok(())
}

#[test]
fn sequences_are_kept_under_the_ids_of_their_caller() -> Result<()> {
    let mut cache = ids_only(16)?;
    // shown: cbtop
    let mut step = cache.begin_step()?;
    let of_caller = OpenOptions { caller_id: Some(7), ..OpenOptions::default() };
    let sequence = step.open_unnamed(40, &of_caller)?; // allocate(7, 40)
    step.finish()?;
    let child = ForkOptions { caller_id: Some(8), ..ForkOptions::default() };
    let parent = cache.find(7)?;
    let fork = cache.fork(parent, &child)?; // fork(7, 8)
    let mut step = cache.begin_step()?;
    step.append_unnamed(fork, 1)?; // append(8, 1): to a copy of the block that both share
    step.finish()?;
    let dropped = cache.trim(sequence, 4, 16)?; // apply_streaming_llm: positions stay
    if let Some(victim) = cache.select_victim(Some(Policy::Lfu)) {
        cache.preempt(victim)?; // evict
    }
    // evict_to_threshold
    let gone = cache.preempt_to(0.1, Some(Policy::Lru))?;
    // shown end
    assert_eq!((dropped, gone.len(), cache.num_sequences()), (20, 1, 0));
    Ok(())
}

#[test]
fn pool_refuses_what_it_has_no_room_for_and_loses_nothing() -> Result<()> {
    // shown: llama_rs
    let group = GroupSpec {
        num_layers: 2,
        num_kv_heads: 2,
        head_dim_k: 4,
        head_dim_v: 4,
        num_blocks: 10,
        ..GroupSpec::default()
    };
    let mut cache = Cache::with_storage(Storage::new(&[group])?, &Options::default())?;
    let sequence = cache.open(&[], &OpenOptions::default())?.sequence;
    let mut step = cache.begin_step()?;
    let too_many = step.append_unnamed(sequence, 11 * 16); // allocate_blocks(11) of 10
    assert!(matches!(too_many, Err(Error::NoBlocks { .. }))); // and all 10 are free still
    step.append_unnamed(sequence, 1)?;
    let mut plan = step.plan(&Default::default())?;
    let slot = plan.group(0).slot_mapping()[0];
    let (k, v) = ([1.0, 2.0, 3.0, 4.0], [5.0; 4]);
    let row = |data| Some(Rows::f32(data, [1, 1, 4]));
    for (layer, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        plan.view_mut(0)?.write_token(layer, head, slot, row(&k), row(&v))?; // append_token
    }
    step.finish()?; // advance_token: lengths advance here, not by hand
    let mut back = [0f32; 4];
    let range = GatherOptions { length: 1, count: 1, first_layer: 1, ..GatherOptions::default() };
    let table = cache.block_table(sequence, 0)?;
    let to = Some(RowsMut::f32(&mut back, [1, 1, 4]));
    cache.view(0)?.gather(table, &range, to, None)?; // get_kv_for_attention
                                                     // free: a second one is an error
    cache.close(sequence)?;
    // shown end
    assert_eq!(back, k);
    assert!(matches!(cache.close(sequence), Err(Error::NotFound(_))));
    assert_eq!(cache.usage(0)?.free, 10);
    Ok(())
}

#[test]
fn layers_are_written_by_slot_mapping() -> Result<()> {
    // shown: boostr
    let group = GroupSpec {
        num_layers: 4,
        head_dim_k: 2,
        head_dim_v: 2,
        format: Format::Nhd, // [block, offset, head, dim]
        num_blocks: 8,
        ..GroupSpec::default()
    };
    let mut cache = Cache::with_storage(Storage::new(&[group])?, &Options::default())?;
    let prompt: Vec<i32> = (0..20).collect();
    let opened = cache.open(&prompt, &OpenOptions::default())?; // its prefix cache: holds what it finds
    let mut step = cache.begin_step()?;
    step.append(opened.sequence, &prompt)?; // allocate_blocks
    let mut plan = step.plan(&Default::default())?;
    let slots = plan.group(0).slot_mapping(); // compute_slot_mapping
    let (key, value) = (vec![0.5f32; 20 * 2], vec![0.25f32; 20 * 2]);
    for layer in 0..4 {
        let rows = |data| Rows::f32(data, [20, 1, 2]);
        plan.view_mut(0)?.append_rows(layer, rows(&key), Some(rows(&value)), slots)?;
        // update
    }
    step.finish()?; // set_seq_len
    let same = cache.open(&[], &OpenOptions::default())?.sequence;
    let blocks = cache.block_table(opened.sequence, 0)?.to_vec();
    cache.adopt(same, &[&blocks], 20)?; // set_blocks: the references are counted
                                        // reset: gives its blocks back
    cache.clear(opened.sequence)?;
    // shown end
    assert_eq!((cache.info(same)?.length, cache.usage(0)?.held), (20, 2));
    assert_eq!(cache.view(0)?.v::<f32>(3, blocks[1], 0, 3), Some(&[0.25, 0.25][..]));
    Ok(())
}
