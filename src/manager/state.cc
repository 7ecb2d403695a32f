// SPDX-License-Identifier: Apache-2.0
// state_hash: one walk over all that a later answer depends on (state.h).

#include "manager/state.h"

#include <algorithm>
#include <bit>
#include <tuple>

#include "manager/impl.h"
#include "prefix/tree.h"

namespace kvfolio {

namespace {

auto fields(const RootKey& key) noexcept {
  return std::tie(key.model, key.adapter, key.adapter_version, key.tenant_salt, key.epoch);
}

}  // namespace

class StateReader::Writer {
  // Things get names 0, 1, 2, ... when they are met first.
  class Names {
   public:
    [[nodiscard]] bool allocate(std::int64_t size) noexcept {
      return names_.allocate_zeroed(size) && met_.allocate_zeroed(size);
    }
    // The name of -1, which means that there is none, is -1.
    std::int32_t of(std::int64_t id) noexcept {
      if (id < 0) return -1;
      std::int32_t& name = names_[id];
      if (name == 0) {
        met_[size_] = static_cast<std::int32_t>(id);
        name = ++size_;
      }
      return name - 1;
    }
    // The same for what was met before; else -2.
    [[nodiscard]] std::int32_t peek(std::int64_t id) const noexcept {
      if (id < 0) return -1;
      return names_[id] == 0 ? -2 : names_[id] - 1;
    }
    [[nodiscard]] std::int32_t size() const noexcept { return size_; }
    // The id that has this name.
    [[nodiscard]] std::int32_t met(std::int32_t name) const noexcept { return met_[name]; }

   private:
    FixedArray<std::int32_t> names_;  // + 1
    FixedArray<std::int32_t> met_;
    std::int32_t size_ = 0;
  };

 public:
  using Impl = KVCacheManager::Impl;

  Writer(const KVCacheManager& manager, Extent extent, StateWords& words) noexcept
      : m_(*manager.impl_),
        tree_(*m_.tree_->impl_),
        words_(words),
        all_(extent == Extent::kAll),
        unordered_(m_.options_.order == Order::kUnordered) {}

  Status run(std::span<const std::int32_t> open) {
    if (!allocate(open)) {
      return {ErrorCode::kOutOfMemory, "state_hash: no memory for the names of blocks and runs"};
    }
    if (all_) write_options();
    write_tree();
    put(-7);
    for (const std::int32_t row : open) rows_.of(row);
    for (const std::int32_t row : m_.rows_.closing()) rows_.of(row);
    for (std::int32_t name = 0; name < rows_.size(); ++name) write_sequence(rows_.met(name));
    write_announcements();
    write_resting();
    write_pins();
    write_steps();
    write_orders();
    for (std::int32_t g = 0; g < m_.num_groups(); ++g) meet_blocks(g);
    for (std::int32_t name = 0; name < blocks_.size(); ++name) write_block(blocks_.met(name));
    write_findable();
    return {};
  }

 private:
  template <typename T>
  void put(T value) {
    words_.put(static_cast<std::int64_t>(value));
  }

  // ---- names ----

  [[nodiscard]] bool allocate(std::span<const std::int32_t> open) {
    for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
      first_[index(g) + 1] = first_[index(g)] + m_.blocks_.pool(g).num_blocks();
    }
    const std::int64_t num_blocks = first_[index(m_.num_groups())];
    const std::int64_t entries = m_.steps_.is_open() ? m_.steps_.open().num_entries : 0;
    if (!blocks_.allocate(num_blocks) || !runs_.allocate(tree_.runs_.num_touched()) ||
        !rows_.allocate(m_.rows_.size()) ||
        !scratch_.allocate_zeroed(std::max<std::int64_t>(
            {num_blocks, tree_.keys_.num_keys(), m_.rows_.size(), m_.pins_.num_open()})) ||
        !pins_.allocate_zeroed(m_.pins_.num_open()) ||
        !ticks_.allocate_zeroed(static_cast<std::int64_t>(open.size()) + entries)) {
      return false;
    }
    for (std::int32_t i = 0; i < m_.steps_.num_in_flight(); ++i) {
      tickets_[index(num_tickets_++)] = m_.steps_.in_flight(i).ticket;
    }
    if (m_.steps_.is_open()) tickets_[index(num_tickets_++)] = m_.steps_.open().ticket;
    // Uses are told apart by their order; undo() brings back the last one before the open step.
    for (const std::int32_t row : open) ticks_[num_ticks_++] = m_.victims_.last_use(row);
    for (std::int32_t e = 0; e < entries; ++e) {
      ticks_[num_ticks_++] = m_.steps_.open().entries[e].last_use_before;
    }
    std::sort(ticks_.data(), ticks_.data() + num_ticks_);
    return true;
  }
  [[nodiscard]] static std::size_t index(std::int32_t i) noexcept {
    return static_cast<std::size_t>(i);
  }
  [[nodiscard]] std::int64_t number_of(std::int32_t g, std::int32_t block) const noexcept {
    return block < 0 ? -1 : first_[index(g)] + block;
  }
  std::int32_t name_of(std::int32_t g, std::int32_t block) noexcept {
    return blocks_.of(number_of(g, block));
  }
  // Tickets decide by which steps in flight, and which open one, they name or come after.
  [[nodiscard]] std::int32_t rank(std::uint64_t ticket) const noexcept {
    std::int32_t rank = 1;
    for (std::int32_t i = 0; i < num_tickets_; ++i) {
      const std::uint64_t each = tickets_[index(i)];
      if (each <= ticket) rank += each == ticket ? 1 : 2;
    }
    return rank;
  }
  // The rank of the newest ticket with these low bits.
  [[nodiscard]] std::int32_t rank_of_low(std::uint32_t low) const noexcept {
    const std::uint64_t last = m_.steps_.last_ticket();
    const std::uint64_t ticket = (last & ~std::uint64_t{0xffffffff}) | low;
    return rank(ticket > last ? 0 : ticket);
  }
  [[nodiscard]] std::int64_t rank_of_use(std::uint64_t tick) const noexcept {
    return std::lower_bound(ticks_.data(), ticks_.data() + num_ticks_, tick) - ticks_.data();
  }

  // ---- the parts ----

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

  void write_tree() {
    std::int32_t* const roots = scratch_.data();
    std::int32_t num_roots = 0;
    for (std::int32_t r = 0; r < tree_.runs_.num_touched(); ++r) {
      const Run& run = tree_.runs_.run(r);
      if (run.alive != 0 && tree_.runs_.is_root(r)) roots[num_roots++] = r;
    }
    const auto key_of = [&](std::int32_t r) {
      return tree_.keys_.key_of(tree_.runs_.run(r).tokens);
    };
    std::sort(roots, roots + num_roots, [&](std::int32_t a, std::int32_t b) {
      const RootKey left = key_of(a);
      const RootKey right = key_of(b);
      return fields(left) < fields(right);
    });
    for (std::int32_t i = 0; i < num_roots; ++i) {
      if (all_) write_key(key_of(roots[i]));
      for (std::int32_t r = roots[i]; r >= 0; r = next_run(r, roots[i])) write_run(r);
    }
  }
  void write_key(const RootKey& key) {
    for (const std::string_view field :
         {key.model, key.adapter, key.adapter_version, key.tenant_salt}) {
      put(field.size());
      for (const char byte : field) put(static_cast<unsigned char>(byte));
    }
    put(key.epoch);
  }
  // A run comes before what hangs below it. Without recursion: a tree may be deep.
  [[nodiscard]] std::int32_t next_run(std::int32_t r, std::int32_t root) const noexcept {
    const std::int32_t child = tree_.children_.first(r);
    if (child >= 0) return child;
    for (; r != root; r = tree_.runs_.run(r).parent) {
      const std::int32_t sibling = tree_.children_.next(r);
      if (sibling >= 0) return sibling;
    }
    return -1;
  }
  void write_media(const Run& run) {
    tree_.media_.visit(run.extents, run.start, run.length, [this](const MediaExtents::Part& part) {
      put(part.begin);
      put(part.end);
      put(part.offset);
      put(part.span_length);
      put(part.attends_to_itself);
      for (const std::byte byte : part.content_id) put(byte);
    });
    put(-1);
  }
  void write_run(std::int32_t r) {
    const Run& run = tree_.runs_.run(r);
    runs_.of(r);
    put(run.start);
    put(run.length);
    put(run.places);
    if (!tree_.runs_.is_root(r)) {
      const std::int32_t* const tokens = tree_.runs_.tokens(r);
      for (std::int32_t i = 0; i < run.length; ++i) put(tokens[i]);
      if (all_) write_media(run);
    }
    for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
      const RunEntries& entries = tree_.runs_.entries(r, g);
      put(entries.first);
      put(entries.count);
      const std::int32_t* const hung = tree_.runs_.blocks(r, g);
      for (std::int32_t i = 0; i < entries.count; ++i) {
        put(name_of(g, hung[i]));
        if (hung[i] < 0) continue;
        const auto& where = tree_.where(GroupId(g), BlockId(hung[i]));
        put(where.end);
        put(where.idle);
        if (m_.windowed(g)) put(tree_.groups_[index(g)].is_read(hung[i]));
      }
    }
    put(run.num_children);
  }

  void write_place(const Place& place) {
    put(place.valid() ? runs_.of(place.run) : -1);
    put(place.position);
  }
  void write_table(std::int32_t g, std::span<const std::int32_t> table) {
    put(table.size());
    for (const std::int32_t block : table) put(name_of(g, block));
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
    put(rank(s.last_ticket));
    put(rank(s.wrote_last()));
    put(unordered_ ? rank(s.row_ticket()) : 0);
    if (all_) write_names(row);
    write_promise(row);
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
      write_place(s.place);
      const std::int32_t* const pending = m_.arena().at(s.pending);
      const std::int32_t count = s.pending_end() - s.place.position;
      for (std::int32_t i = 0; i < count; ++i) put(pending[i]);
    }
    for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
      put(m_.append_rules_.promised_reuse(row, g));
      write_table(g, m_.table(row, g).blocks(m_.arena()));
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
    put(rank_of_use(m_.victims_.last_use(row)));
    put(m_.victims_.use_count(row));
  }
  void write_promise(std::int32_t row) {
    if (!m_.promises_.has(row)) {
      put(-1);
      return;
    }
    const Reservations& reservations = m_.promises_.reservations();
    put(reservations.tokens(row));
    put(reservations.most_per_step(row));
    put(reservations.spent(row));
    put(reservations.lacks(row));
    // What a draft that is rejected brings back lies behind what is accepted.
    const Reservations::Spent spent = reservations.spent_from(row, m_.rows_[row].accepted);
    put(spent.begin);
    put(spent.end);
    for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
      put(reservations.num_taken(row, g));
      // Which of them is taken first is a matter of names.
      put(reservations.num_ready(row, g));
    }
  }

  // In the order of opening, which decides between equals.
  void write_announcements() {
    put(-17);
    const Announcements& announced = m_.announcements_;
    announced.for_each([&](std::int32_t row) {
      put(rows_.peek(row));
      put(announced.end(row));
      const std::int32_t unit = m_.tree_->unit();
      for (std::int32_t at = announced.begin(row); at < announced.end(row); at += unit) {
        for (const std::int32_t token : announced.unit_at(row, at)) put(token);
      }
    });
  }

  // Rows without a sequence that a step uses: which of them does not matter.
  void write_resting() {
    put(-13);
    std::int32_t count = 0;
    for (const std::int32_t row : m_.rows_.resting()) {
      scratch_[count++] = rank(m_.rows_[row].row_ticket());
    }
    std::sort(scratch_.data(), scratch_.data() + count);
    for (std::int32_t i = 0; i < count; ++i) put(scratch_[i]);
  }

  // In the order of what they hold, as far as that has names already.
  void write_pins() {
    put(-8);
    std::int32_t count = 0;
    m_.pins_.for_each_open([&](std::int32_t pin) {
      const Place& place = m_.pins_.place(pin);
      StateWords content;
      content.put(place.valid() ? runs_.peek(place.run) : -1);
      content.put(place.position);
      for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
        for (const std::int32_t block : m_.pins_.table(pin, g).blocks(m_.arena())) {
          content.put(blocks_.peek(number_of(g, block)));
        }
      }
      pins_[count++] = {content.hash(), pin};
    });
    std::sort(pins_.data(), pins_.data() + count);
    put(count);
    for (std::int32_t i = 0; i < count; ++i) {
      const std::int32_t pin = pins_[i].pin;
      write_place(m_.pins_.place(pin));
      for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
        write_table(g, m_.pins_.table(pin, g).blocks(m_.arena()));
      }
    }
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
    put(rank(step.ticket));
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
      if (all_ && is_open) put(rank_of_use(entry.last_use_before));
      for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
        const TailChange& change = step.change(e, g);
        put(name_of(g, change.source));
        put(name_of(g, change.copy_to));
        put(change.valid_before);
        put(rows_.peek(change.writer_before));
        put(rank_of_low(change.written_before));
      }
    }
  }

  // Blocks that retire, in order, and all that have a rank, the coldest first.
  void write_orders() {
    for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
      const BlockPool& pool = m_.blocks_.pool(g);
      put(-10);
      for (std::int32_t b = pool.retiring_head_; b >= 0; b = pool.next_of(b)) {
        put(name_of(g, b));
        put(rank_of_low(pool.at(BlockId(b)).stamp));
      }
    }
    const LruOrder& order = m_.blocks_.room().order();
    std::int32_t count = 0;
    for (std::int32_t g = 0; g < m_.num_groups(); ++g) {
      for (std::int32_t b = 0; b < m_.blocks_.pool(g).num_blocks(); ++b) {
        if (!order.has_rank(GroupId(g), BlockId(b))) continue;
        scratch_[count++] = static_cast<std::int32_t>(number_of(g, b));
      }
    }
    std::sort(scratch_.data(), scratch_.data() + count,
              [&](std::int32_t a, std::int32_t b) { return order.colder(member(a), member(b)); });
    put(-11);
    for (std::int32_t i = 0; i < count; ++i) {
      const LruOrder::Member at = member(scratch_[i]);
      put(blocks_.of(scratch_[i]));
      put(order.turn(at.group, at.block));
    }
    put(-12);
  }
  [[nodiscard]] LruOrder::Member member(std::int32_t number) const noexcept {
    std::int32_t g = m_.num_groups() - 1;
    while (first_[index(g)] > number) --g;
    return {GroupId(g), BlockId(static_cast<std::int32_t>(number - first_[index(g)]))};
  }

  // Free blocks are all alike: which is taken first is a matter of names.
  void meet_blocks(std::int32_t g) {
    for (std::int32_t b = 0; b < m_.blocks_.pool(g).num_blocks(); ++b) {
      if (m_.blocks_.pool(g).at(BlockId(b)).state != BlockState::kFree) name_of(g, b);
    }
  }
  void write_block(std::int32_t number) {
    const LruOrder::Member at = member(number);
    const std::int32_t g = at.group.value();
    const BlockPool& pool = m_.blocks_.pool(g);
    const auto& block = pool.at(at.block);
    put(block.state);
    if (block.state == BlockState::kFree) return;
    put(g);
    put(pool.refs(at.block));
    put(rows_.peek(pool.writer(at.block)));
    put(rank_of_low(block.written));
    put(block.valid);
    put(block.touched);
    put(block.wanted);
    put(block.steps);
    put(unordered_ ? rank_of_low(block.stamp) : 0);
    put(rows_.peek(m_.promises_.reservations().owner(g, at.block)));
    if (all_) put(m_.blocks_.room().is_border(g, at.block));
  }

  // Those that take_findable() hands out next.
  void write_findable() {
    m_.blocks_.findable().for_each_waiting([&](std::int32_t g, std::int32_t block) {
      if (m_.blocks_.findable().serial(g, block) != 0) put(name_of(g, block));
    });
  }

  struct NamedPin {
    std::uint64_t content;
    std::int32_t pin;
    bool operator<(const NamedPin& other) const noexcept {
      return std::tie(content, pin) < std::tie(other.content, other.pin);
    }
  };

  const Impl& m_;
  const PrefixTree::Impl& tree_;
  StateWords& words_;
  const bool all_;
  const bool unordered_;
  Names blocks_;  // by number among the blocks of all groups
  Names runs_;
  Names rows_;
  std::array<std::int64_t, kMaxGroups + 1> first_{};  // by group: the number of its first block
  std::array<std::uint64_t, 65> tickets_{};           // 64 in flight and the open one
  std::int32_t num_tickets_ = 0;
  FixedArray<std::uint64_t> ticks_;
  std::int32_t num_ticks_ = 0;
  FixedArray<NamedPin> pins_;
  FixedArray<std::int32_t> scratch_;
};

Status StateReader::write(const KVCacheManager& manager, std::span<const std::int32_t> open,
                          Extent extent, StateWords& words) {
  return Writer(manager, extent, words).run(open);
}

Result<std::uint64_t> StateReader::hash(const KVCacheManager& manager) {
  const KVCacheManager::Impl& m = *manager.impl_;
  KVFOLIO_RETURN_IF_ERROR(m.transfers_.check_none_open("state_hash", "this manager"));
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
  KVFOLIO_RETURN_IF_ERROR(write(manager, {open.data(), rows.size()}, Extent::kAll, words));
  return words.hash();
}

Result<std::uint64_t> KVCacheManager::state_hash() const {
  KVFOLIO_RETURN_IF_MOVED("state_hash");
  return StateReader::hash(*this);
}

}  // namespace kvfolio
