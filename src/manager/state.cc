// SPDX-License-Identifier: Apache-2.0
// state_hash: one walk over all that a later answer depends on. Nouns whose whole state counts
// write it themselves (put_state()); here is what several of them say together.
//
// Left out is what is a matter of names alone (numbers of blocks, rows and ids, generations, and
// which free one is taken next), and what is history: counters, serials, ticks of uses beyond their
// order, ended steps, which table entries an engine was told of, and which words of arenas are
// free.

#include <algorithm>
#include <bit>

#include "base/state_writer.h"
#include "manager/impl.h"

namespace kvfolio {

namespace {

// `Impl`: KVCacheManager's, whose name is private.
template <typename Impl>
class StateWalk {
 public:
  StateWalk(const Impl& m, StateWriter& out) noexcept
      : m_(m),
        out_(out),
        all_(out.all_),
        unordered_(m.options_.order == Order::kUnordered),
        rows_(out.rows_) {}

  // False: no memory for names.
  [[nodiscard]] bool run(std::span<const std::int32_t> open) {
    if (!allocate(open)) return false;
    if (all_) write_options();
    if (!m_.tree_->put_state(out_)) return false;
    put(-7);
    for (const std::int32_t row : open) rows_.of(row);
    for (const std::int32_t row : m_.rows_.closing()) rows_.of(row);
    for (std::int32_t name = 0; name < rows_.size(); ++name) write_sequence(rows_.met(name));
    put(-17);
    m_.announcements_.put_state(out_);
    write_resting();
    put(-8);
    if (!m_.pins_.put_state(out_, m_.arena())) return false;
    write_steps();
    write_orders();
    for (std::int32_t g = 0; g < m_.num_groups(); ++g) meet_blocks(g);
    for (std::int32_t name = 0; name < out_.blocks_.size(); ++name) {
      write_block(out_.blocks_.met(name));
    }
    write_findable();
    return true;
  }

 private:
  template <typename T>
  void put(T value) {
    out_.put(value);
  }

  [[nodiscard]] bool allocate(std::span<const std::int32_t> open) {
    for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
      out_.add_group(m_.blocks_.pool(g).num_blocks());
    }
    const std::int64_t entries = m_.steps_.is_open() ? m_.steps_.open().num_entries : 0;
    if (!out_.blocks_.allocate(out_.num_blocks()) || !rows_.allocate(m_.rows_.size()) ||
        !scratch_.allocate_zeroed(std::max<std::int64_t>(out_.num_blocks(), m_.rows_.size())) ||
        !out_.uses_.allocate_zeroed(static_cast<std::int64_t>(open.size()) + entries)) {
      return false;
    }
    out_.set_last_ticket(m_.steps_.last_ticket());
    for (std::int32_t i = 0; i < m_.steps_.num_in_flight(); ++i) {
      out_.add_ticket(m_.steps_.in_flight(i).ticket);
    }
    if (m_.steps_.is_open()) out_.add_ticket(m_.steps_.open().ticket);
    // undo() brings back the last use before the open step.
    for (const std::int32_t row : open) out_.uses_[out_.num_uses_++] = m_.victims_.last_use(row);
    for (std::int32_t e = 0; e < entries; ++e) {
      out_.uses_[out_.num_uses_++] = m_.steps_.open().entries[e].last_use_before;
    }
    std::sort(out_.uses_.data(), out_.uses_.data() + out_.num_uses_);
    return true;
  }

  void write_options() {
    for (const GroupSpec& group : m_.spec_.groups) {
      const auto& [num_layers, num_kv_heads, head_dim_k, head_dim_v, v_is_prefix_of_k, block_size,
                   dtype, format, kind, window, num_sinks, num_blocks, rewind] = group;
      for (const std::int32_t value : {num_layers, num_kv_heads, head_dim_k, head_dim_v, block_size,
                                       window, num_sinks, num_blocks, rewind}) {
        put(value);
      }
      put(v_is_prefix_of_k);
      put(dtype);
      put(format);
      put(kind);
    }
    // The tag is part of the ids, and these are names.
    const auto& [max_sequences, max_pins, max_transfers, max_steps_in_flight, order, prefix_cache,
                 max_sequence_tokens, max_index_tokens, max_runs, max_root_keys, max_root_key_bytes,
                 max_media_extents, max_table_entries, hash_seed, high_watermark, victim_policy,
                 list_findable, id_tag, copies_by_host, max_announced_tokens, null_block] =
        m_.options_;
    static_cast<void>(id_tag);
    for (const std::int64_t value :
         {std::int64_t{max_sequences}, std::int64_t{max_pins}, std::int64_t{max_transfers},
          std::int64_t{max_steps_in_flight}, std::int64_t{max_sequence_tokens}, max_index_tokens,
          std::int64_t{max_runs}, std::int64_t{max_root_keys}, max_root_key_bytes,
          std::int64_t{max_media_extents}, max_table_entries, static_cast<std::int64_t>(hash_seed),
          max_announced_tokens}) {
      put(value);
    }
    put(order);
    put(prefix_cache);
    put(std::bit_cast<std::uint64_t>(high_watermark));
    put(victim_policy);
    put(list_findable);
    put(copies_by_host);
    if (null_block) put(-13);  // without it the number is that of managers that know of none
  }

  void write_sequence(std::int32_t row) {
    const Sequence& s = m_.rows_[row];
    const SequenceDetails& d = m_.details(row);
    // What append() compares with the prompt. Also in its first step, which may be dropped; and of
    // a sequence that has found nothing, if a load may bring it the beginning of its prompt.
    const bool is_open = s.life == Sequence::Life::kOpen;
    const std::int32_t knows_from = m_.options_.max_transfers > 0 ? 0 : 1;
    if (is_open && !s.has_planned && d.found_tokens >= knows_from && d.found_tokens <= s.length) {
      put(-16);
      put(d.prompt_tokens);
      put(d.found_tokens);
      put(d.head_tokens);
      put(s.publishes ? 0 : d.head_hash);
      put(d.tail_hash);
    }
    put(s.life);
    put(s.publishes);
    put(s.used);
    put(s.replay ? d.replay_token : -1);
    put(s.length);
    put(s.accepted);
    put(unordered_ ? d.settled : 0);
    put(s.undecided());
    put(s.exact_until);
    put(s.unnamed_from);
    put(d.trim_sinks);
    put(d.trim_first_kept);
    if (all_) put(d.rewinds);
    if (all_ && m_.borders_.any()) put(d.rewind_base);
    put(s.step_entry >= 0);
    put(s.late_names);
    put(out_.rank(s.last_ticket));
    put(out_.rank(s.wrote_last()));
    put(unordered_ ? out_.rank(s.row_ticket()) : 0);
    if (all_) write_names(row);
    if (m_.promises_.has(row)) {
      m_.promises_.reservations().put_state(out_, row, s.accepted);
    } else {
      put(-1);
    }
    const auto stretches = m_.unnamed_.stretches(row);
    put(stretches.size());
    for (const UnnamedTokens::Stretch& stretch : stretches) {
      put(stretch.begin);
      put(stretch.end);
    }
    // One of them the accepted length and the length tell.
    for (const Drafts::Stretch& stretch : m_.drafts_.stretches(row)) {
      if (m_.drafts_.num(row) > 1) put(-18), put(stretch.end), put(stretch.draft);
    }
    if (m_.borders_.any()) put(d.prompt_end);
    if (s.publishes) {
      put(d.own_from);
      put(d.own_to);
      put(d.entries_seen != m_.blocks_.entry_changes());
      put(d.losses_seen != m_.blocks_.losses());
      out_.put_place(s.place);
      const std::int32_t* const pending = m_.arena().at(s.pending);
      const std::int32_t count = s.pending_end() - s.place.position;
      for (std::int32_t i = 0; i < count; ++i) put(pending[i]);
    }
    for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
      put(m_.append_rules_.promised_reuse(row, g));
      out_.put_table(g, m_.table(row, g).blocks(m_.arena()));
      put(m_.tables_.window_begin(row, g));
      if (!all_ || !m_.borders_.any()) continue;
      put(m_.tables_.border(row, g).first);
      put(m_.tables_.border(row, g).end);
    }
  }
  // What its caller said of it, and its uses.
  void write_names(std::int32_t row) {
    const Sequence& s = m_.rows_[row];
    const SequenceDetails& d = m_.details(row);
    put(s.has_caller_id);
    put(s.has_caller_id ? d.caller_id : 0);
    put(s.full_blocks_only);
    put(s.has_limit ? d.max_tokens : 0);
    put(d.priority);
    put(d.admitted);
    const std::span<const MediaSpan> media = m_.spans_.media_of(s);
    put(media.size());
    for (const MediaSpan& span : media) {
      put(span.begin);
      put(span.end);
      put(span.attends_to_itself);
      for (const std::byte byte : span.content_id) put(byte);
    }
    if (s.life != Sequence::Life::kOpen) return;
    put(out_.rank_of_use(m_.victims_.last_use(row)));
    put(m_.victims_.use_count(row));
  }
  // Rows without a sequence that a step uses: which of them does not matter.
  void write_resting() {
    put(-13);
    std::int32_t count = 0;
    for (const std::int32_t row : m_.rows_.resting()) {
      scratch_[count++] = out_.rank(m_.rows_[row].row_ticket());
    }
    std::sort(scratch_.data(), scratch_.data() + count);
    for (std::int32_t i = 0; i < count; ++i) put(scratch_[i]);
  }

  // The oldest first.
  void write_steps() {
    put(m_.steps_.num_in_flight());
    put(m_.steps_.is_open());
    for (std::int32_t i = 0; i < m_.steps_.num_in_flight(); ++i) write_step(m_.steps_.in_flight(i));
    if (m_.steps_.is_open()) write_step(m_.steps_.open());
  }
  void write_step(const Step& step) {
    put(-9);
    put(out_.rank(step.ticket));
    put(step.num_entries - step.num_removed);
    put(step.has_unnamed);
    if (all_) put(step.copies_ran);
    const bool is_open = m_.steps_.is_open() && &step == &m_.steps_.open();
    if (is_open && step.num_planned != Step::kNoPlan) {
      put(-15);
      const auto has_left = [&](std::int32_t e) { return step.entries[e].row < 0 ? 1 : 0; };
      std::int32_t planned = step.num_planned;
      for (std::int32_t e = 0; e < step.num_planned; ++e) planned -= has_left(e);
      put(planned);
      if (step.num_taken_out > 0) put(step.num_taken_out);
    }
    for (std::int32_t e = 0; e < step.num_entries; ++e) {
      const StepEntry& entry = step.entries[e];
      if (entry.row < 0) continue;  // taken out: the next plan() drops the entry
      const bool same = m_.rows_[entry.row].birth == entry.birth &&
                        m_.rows_[entry.row].life != Sequence::Life::kUnused;
      put(same ? rows_.peek(entry.row) : -3);
      put(entry.begin);
      put(entry.end);
      put(entry.write_begin);
      put(entry.draft);
      put(entry.unnamed);
      put(entry.used_before);
      put(entry.replay_before);
      if (all_ && is_open) put(out_.rank_of_use(entry.last_use_before));
      for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
        const TailChange& change = step.change(e, g);
        put(out_.name_of(g, change.source));
        put(out_.name_of(g, change.copy_to));
        put(change.valid_before);
        put(rows_.peek(change.writer_before));
        put(out_.rank_of_low(change.written_before));
      }
    }
  }

  // Blocks that retire, in order, and all that have a rank, the coldest first.
  void write_orders() {
    for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
      put(-10);
      m_.blocks_.pool(g).put_retiring(out_, g);
    }
    const LruOrder& order = m_.blocks_.room().order();
    std::int32_t count = 0;
    for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
      for (std::int32_t b = 0; b < m_.blocks_.pool(g).num_blocks(); ++b) {
        if (!order.has_rank(GroupId(g), BlockId(b))) continue;
        scratch_[count++] = static_cast<std::int32_t>(out_.number_of(g, b));
      }
    }
    std::sort(scratch_.data(), scratch_.data() + count,
              [&](std::int32_t a, std::int32_t b) { return order.colder(member(a), member(b)); });
    put(-11);
    for (std::int32_t i = 0; i < count; ++i) {
      const LruOrder::Member at = member(scratch_[i]);
      put(out_.blocks_.of(scratch_[i]));
      put(order.turn(at.group, at.block));
    }
    put(-12);
  }
  [[nodiscard]] LruOrder::Member member(std::int32_t number) const noexcept {
    return {GroupId(out_.group_of(number)), BlockId(out_.block_of(number))};
  }

  // Free blocks are all alike: which is taken first is a matter of names.
  void meet_blocks(std::int32_t g) {
    const BlockPool& pool = m_.blocks_.pool(g);
    for (std::int32_t b = 0; b < pool.num_blocks(); ++b) {
      if (pool.state(BlockId(b)) != BlockState::kFree) out_.name_of(g, b);
    }
  }
  void write_block(std::int32_t number) {
    const LruOrder::Member at = member(number);
    const std::int32_t g = at.group.value();
    const BlockPool& pool = m_.blocks_.pool(g);
    put(pool.state(at.block));
    if (pool.state(at.block) == BlockState::kFree) return;
    put(g);
    pool.put_state(out_, at.block, unordered_);
    put(rows_.peek(m_.promises_.reservations().owner(g, at.block)));
    if (all_) put(m_.blocks_.room().is_border(g, at.block));
  }

  // Those that take_findable() hands out next.
  void write_findable() {
    m_.blocks_.findable().for_each_waiting([&](std::int32_t g, std::int32_t block) {
      if (m_.blocks_.findable().serial(g, block) != 0) put(out_.name_of(g, block));
    });
  }

  const Impl& m_;
  StateWriter& out_;
  const bool all_;
  const bool unordered_;
  StateNames& rows_;
  FixedArray<std::int32_t> scratch_;  // what is sorted
};

}  // namespace

Status KVCacheManager::Impl::put_state(std::span<const std::int32_t> open, StateWriter& out) const {
  if (StateWalk(*this, out).run(open)) return {};
  return {ErrorCode::kOutOfMemory, "state_hash: no memory for the names of blocks and runs"};
}

Result<std::uint64_t> KVCacheManager::state_hash() const {
  KVFOLIO_RETURN_IF_MOVED("state_hash");
  const Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(m.transfers_.check_none_open("state_hash", "this manager"));
  // By last use, the oldest first: an order that does not depend on names.
  const std::span<const std::int32_t> rows = m.rows_.open();
  FixedArray<std::int32_t> open;
  if (!open.allocate_zeroed(static_cast<std::int64_t>(rows.size()))) {
    return Status(ErrorCode::kOutOfMemory, "state_hash: no memory for the order of sequences");
  }
  std::copy(rows.begin(), rows.end(), open.data());
  std::sort(open.data(), open.data() + rows.size(), [&m](std::int32_t a, std::int32_t b) {
    return m.victims_.last_use(a) < m.victims_.last_use(b);
  });
  StateWords words;
  StateWriter out(words, StateWriter::Extent::kAll);
  KVFOLIO_RETURN_IF_ERROR(m.put_state({open.data(), rows.size()}, out));
  return words.hash();
}

}  // namespace kvfolio
