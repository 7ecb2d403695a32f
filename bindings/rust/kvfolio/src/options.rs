// SPDX-License-Identifier: Apache-2.0

use crate::sys;
use std::mem::size_of;

/// In which order steps complete.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Order {
    /// One stream: `complete(t)` completes all earlier steps, too.
    #[default]
    InOrder = sys::KVFOLIO_IN_ORDER,
    /// Steps complete in any order.
    Unordered = sys::KVFOLIO_UNORDERED,
}

/// Which sequence is preempted first.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Policy {
    /// The oldest last use.
    #[default]
    Lru = sys::KVFOLIO_LRU,
    /// The fewest uses.
    Lfu = sys::KVFOLIO_LFU,
    /// The most tokens.
    Longest = sys::KVFOLIO_LONGEST,
    /// The smallest priority.
    LowestPriority = sys::KVFOLIO_LOWEST_PRIORITY,
}

/// Options of a cache; `ManagerOptions` in `manager_types.h` says the limits. 0 is the default of
/// every number; where 0 is a value of its own there, -1 stands for it here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// 0: 1024.
    pub max_sequences: i32,
    /// 0: 256; -1: none.
    pub max_pins: i32,
    /// 0: 2.
    pub max_steps_in_flight: i32,
    /// In which order steps complete.
    pub order: Order,
    /// Nothing is ever findable.
    pub no_prefix_cache: bool,
    /// Expected; 0: derived.
    pub max_sequence_tokens: i32,
    /// 0: derived.
    pub max_runs: i32,
    /// 0: derived.
    pub max_index_tokens: i64,
    /// 0: 2^20; -1: none.
    pub max_root_key_bytes: i64,
    /// 0: derived.
    pub max_table_entries: i64,
    /// Mixed into every hash: a server that fears crafted prompts sets a random one.
    pub hash_seed: u64,
    /// 0: 0.90; -1: 0.
    pub high_watermark: f64,
    /// 0: 1024.
    pub max_root_keys: i32,
    /// 0: 4096; -1: none.
    pub max_media_extents: i32,
    /// The policy of calls that name none.
    pub victim_policy: Policy,
    /// Caches with different tags refuse each other's ids. A program with two caches sets it: with
    /// equal tags an id of one can be a sequence of the other.
    pub id_tag: u16,
    /// Loads, and holds, that are open at once. 0: 256; -1: none.
    pub max_transfers: i32,
    /// Keep a list for [`take_findable`](crate::Manager::take_findable).
    pub list_findable: bool,
    /// With storage: the host runs the copies of each plan in the order of its stream, as it must
    /// with several steps in flight: on a device by kernels of its own, since
    /// [`copy_blocks`](crate::StorageMut::copy_blocks) knows no stream. False: a step whose copies
    /// [`run_copies`](crate::Step::run_copies) has not run is refused.
    pub copies_by_host: bool,
    /// Block 0 of each group is held for ever and never given out, and plans are padded with 0. It is
    /// counted nowhere.
    pub null_block: bool,
    /// Tokens of all announcements together that are not published yet. 0: the tokens of the
    /// largest group.
    pub max_announced_tokens: i64,
}

impl Options {
    pub(crate) fn to_c(&self) -> sys::kvfolio_manager_options {
        sys::kvfolio_manager_options {
            struct_size: size_of::<sys::kvfolio_manager_options>() as u32,
            max_sequences: self.max_sequences,
            max_pins: self.max_pins,
            max_steps_in_flight: self.max_steps_in_flight,
            order: self.order as i32,
            no_prefix_cache: self.no_prefix_cache as i32,
            max_sequence_tokens: self.max_sequence_tokens,
            max_runs: self.max_runs,
            max_index_tokens: self.max_index_tokens,
            max_root_key_bytes: self.max_root_key_bytes,
            max_table_entries: self.max_table_entries,
            hash_seed: self.hash_seed,
            high_watermark: self.high_watermark,
            max_root_keys: self.max_root_keys,
            max_media_extents: self.max_media_extents,
            victim_policy: self.victim_policy as i32,
            id_tag: i32::from(self.id_tag),
            max_transfers: self.max_transfers,
            list_findable: self.list_findable as i32,
            copies_by_host: self.copies_by_host as i32,
            null_block: self.null_block as i32,
            max_announced_tokens: self.max_announced_tokens,
        }
    }

    pub(crate) fn from_c(c: &sys::kvfolio_manager_options) -> Options {
        Options {
            max_sequences: c.max_sequences,
            max_pins: c.max_pins,
            max_steps_in_flight: c.max_steps_in_flight,
            order: match c.order {
                sys::KVFOLIO_UNORDERED => Order::Unordered,
                _ => Order::InOrder,
            },
            no_prefix_cache: c.no_prefix_cache != 0,
            max_sequence_tokens: c.max_sequence_tokens,
            max_runs: c.max_runs,
            max_index_tokens: c.max_index_tokens,
            max_root_key_bytes: c.max_root_key_bytes,
            max_table_entries: c.max_table_entries,
            hash_seed: c.hash_seed,
            high_watermark: c.high_watermark,
            max_root_keys: c.max_root_keys,
            max_media_extents: c.max_media_extents,
            victim_policy: match c.victim_policy {
                sys::KVFOLIO_LFU => Policy::Lfu,
                sys::KVFOLIO_LONGEST => Policy::Longest,
                sys::KVFOLIO_LOWEST_PRIORITY => Policy::LowestPriority,
                _ => Policy::Lru,
            },
            id_tag: c.id_tag as u16,
            max_transfers: c.max_transfers,
            list_findable: c.list_findable != 0,
            copies_by_host: c.copies_by_host != 0,
            null_block: c.null_block != 0,
            max_announced_tokens: c.max_announced_tokens,
        }
    }
}
