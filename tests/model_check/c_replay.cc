// SPDX-License-Identifier: Apache-2.0
//
// A call of a log is a code and a tuple of its arguments. in_c() says what C takes for an argument;
// what follows these in the C function are the places of its results. So most calls need no line
// here: op_codes.h says how C names them, and manager.h which questions are of ids and numbers.

#include "model_check/c_replay.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <tuple>

#include "capi/capi.h"
#include "kvfolio/manager.h"
#include "model_check/model.h"
#include "oplog/op_reader.h"

namespace kvfolio::model_check {
namespace {

using Tokens = std::span<const std::int32_t>;
using Ids = std::span<const SequenceId>;

// ---- numbers ----

std::span<const std::int32_t> span_of(const kvfolio_i32s& array) {
  return {array.data, static_cast<std::size_t>(array.size)};
}
std::span<const std::int64_t> span_of(const kvfolio_i64s& array) {
  return {array.data, static_cast<std::size_t>(array.size)};
}
template <typename T>
std::span<const T> span_of(const std::span<const T>& array) {
  return array;
}
auto shared_prefixes_of(const GroupPlan& group) { return group.shared_prefixes; }
auto shared_prefixes_of(const kvfolio_group_plan& group) {
  return std::span(group.shared_prefixes, static_cast<std::size_t>(group.num_shared_prefixes));
}

class Numbers {
 public:
  template <typename... Parts>
  void add(const Parts&... parts) {
    (one(parts), ...);
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  template <typename T>
  void one(const T& part) {
    if constexpr (requires { part.valid(); }) {
      one(part.value());  // an id
    } else if constexpr (std::is_same_v<T, double>) {
      one(std::bit_cast<std::int64_t>(part));
    } else {
      text_ += ' ';
      text_ += std::to_string(static_cast<std::int64_t>(part));
    }
  }
  template <typename T>
  void one(const std::span<const T>& array) {
    one(array.size());
    for (const T& element : array) one(element);
  }
  template <typename T>
  void one(const std::span<T>& array) {
    one(std::span<const T>(array));
  }
  void one(const kvfolio_i32s& array) { one(span_of(array)); }
  void one(std::string_view bytes) {
    one(bytes.size());
    for (const char byte : bytes) one(static_cast<unsigned char>(byte));
  }
  void one(const std::optional<std::uint64_t>& id) { add(id.has_value(), id.value_or(0)); }
  void one(const EndedSequence& ended) { add(ended.sequence, ended.caller_id); }
  void one(const kvfolio_ended& ended) {
    add(ended.sequence, ended.has_caller_id, ended.caller_id);
  }
  void one(const FindableBlock& b) { add(b.group, b.block, b.end, b.serial); }
  void one(const kvfolio_findable_block& b) { add(b.group, b.block, b.end, b.serial); }
  // ---- arguments ----
  void one(const RootKey& key) {
    add(key.model, key.adapter, key.adapter_version, key.tenant_salt, key.epoch);
  }
  void one(const MediaSpan& span) {
    add(span.begin, span.end, span.attends_to_itself);
    for (const std::byte byte : span.content_id) one(byte);
  }
  void one(const OpenOptions& o) {
    add(o.root, o.media, !o.prefix_cache, !o.look_up, o.publish, o.caller_id, o.max_tokens,
        o.priority, o.late_names);
  }
  void one(const ForkOptions& options) { add(options.caller_id, options.priority); }
  void one(const TrimOptions& options) { add(options.num_sinks, options.window); }
  void one(const StepOptions& options) { one(options.now_us); }
  void one(const AppendOptions& options) { one(options.draft); }
  void one(const ReserveOptions& options) { one(options.most_per_step); }
  void one(const PlanOptions& o) {
    add(o.pad == 0, !o.block_tables, o.changed_entries, o.flashinfer, o.shared_prefixes,
        o.positions);
  }
  void one(std::optional<VictimPolicy> policy) {
    one(policy ? static_cast<std::int32_t>(*policy) : KVFOLIO_POLICY_OF_OPTIONS);
  }
  void one(const std::span<const AppendDemand>& demands) {
    one(demands.size());
    for (const AppendDemand& demand : demands) one(demand.sequence);
    one(demands.size());
    for (const AppendDemand& demand : demands) one(demand.num_tokens);
  }
  void one(const std::span<const Tokens>& tables) {
    std::size_t all = 0;
    for (const Tokens table : tables) all += table.size();
    one(all);
    for (const Tokens table : tables) {
      for (const std::int32_t block : table) one(block);
    }
    one(tables.size());
    for (const Tokens table : tables) one(table.size());
  }
  void one(const OutBlocks& out) { one(out.blocks.size()); }
  void one(const OutCount&) {}
  void one(const OutFindable& out) { one(out.blocks.size()); }

  std::string text_;
};

// ---- answers ----

// What a call answered, in C or in C++. Members of structs have the same names in both.
struct Said {
  std::int32_t code = KVFOLIO_OK;
  std::string sentence;
  Numbers out;   // what Rust compares, too
  Numbers more;  // what it does not, and the shortage

  template <typename Found>
  void found(const Found& found, const Soon& soon) {
    out.add(found.cached_tokens);
    more.add(soon.tokens, soon.by);
  }
  void add(const kvfolio_found& f) { found(f, {f.soon_tokens, SequenceId(f.soon_by)}); }
  void add(const Opened& opened) {
    out.add(opened.sequence);
    found(opened, opened.soon);
  }
  void add(const Soon& soon) { out.add(soon.tokens, soon.by); }
  void add(const Pinned& pinned) { out.add(pinned.pin, pinned.pinned_tokens); }
  void add(const Forgotten& forgotten) { out.add(forgotten.blocks, forgotten.pins); }
  template <typename T>
  void add(const T& value) {
    if constexpr (requires { value.accepted_length; }) {
      info(value);
    } else if constexpr (requires { value.evictable; }) {
      out.add(value.num_blocks, value.free, value.held, value.cached, value.retiring,
              value.evictable, value.reserved);
      more.add(value.loading, value.on_hold);
    } else if constexpr (requires { value.blocks_unhung; }) {
      out.add(value.blocks_allocated, value.blocks_freed, value.blocks_evicted, value.blocks_unhung,
              value.block_copies, value.sequences_opened, value.sequences_closed,
              value.sequences_preempted, value.sequences_aborted, value.forks, value.tokens_loaded,
              value.tokens_looked_up, value.tokens_reused, value.tokens_committed,
              value.blocks_published, value.publications_skipped, value.blocks_used_peak,
              value.announcements_skipped);
    } else if constexpr (requires { value.id, value.begin, value.end; }) {  // a load
      out.add(value.id, value.begin, value.end);
    } else {
      out.add(value);
    }
  }
  template <typename Info>
  void info(const Info& i) {
    out.add(i.length, i.accepted_length, i.published_length, i.trim_sinks, i.trim_first_kept,
            i.in_open_step, i.num_unnamed, i.reserved_tokens);
    if constexpr (std::is_same_v<Info, SequenceInfo>) {
      out.add(i.caller_id);
    } else {
      out.add(i.has_caller_id, i.caller_id);
    }
    out.add(i.max_tokens, i.last_use, i.use_count, i.priority);
    more.add(i.load, i.rewinds, i.rewind_from);
  }
  template <typename Step, typename Groups>
  void plan(const Step& step, Ids sequences, const Groups& groups) {
    out.add(step.ticket, step.num_tokens, sequences);
    out.add(span_of(step.rows), span_of(step.query_start), span_of(step.kv_lens),
            span_of(step.trim_sinks), span_of(step.trim_first_kept), span_of(step.positions));
    more.add(span_of(step.rewinds), step.number, step.follows);
    for (const auto& g : groups) {
      out.add(g.block_table_stride, span_of(g.slot_mapping), span_of(g.block_table),
              span_of(g.kv_indptr), span_of(g.kv_indices), span_of(g.kv_last_page_len),
              span_of(g.copy_src), span_of(g.copy_dst), span_of(g.changed_rows),
              span_of(g.changed_columns), span_of(g.changed_blocks));
      for (const auto& shared : shared_prefixes_of(g)) {
        out.add(shared.first_sequence, shared.num_sequences, shared.num_blocks);
      }
      more.add(span_of(g.kv_first_live), span_of(g.slot_mapping_64));
    }
  }
  template <typename Lack>
  void shortage(const Lack& s, bool never) {
    more.add(s.group, s.needed, s.free, s.evictable, s.pinned, s.retiring, s.sequences, s.pins,
             s.reserved, s.loads, s.holds, s.num_blocks, s.kept, never);
  }

  // ---- of C++ ----

  void take(const Status& status) {
    code = static_cast<std::int32_t>(status.code());
    if (!status.ok()) sentence = status.message();
    if (sentence.size() > 255) sentence = sentence.substr(0, 252) + "...";
    if (const Shortage* const s = status.shortage()) shortage(*s, s->never());
  }
  template <typename T>
  void take(const Result<T>& result) {
    if (!result) return take(result.error());
    take(*result);
  }
  void take(const std::optional<SequenceId>& id) { out.add(id.value_or(SequenceId())); }
  void take(const StepPlan* p) {
    plan(*p, p->sequences, p->groups);
    more.add(p->caller_ids);
  }
  template <typename T>
  void take(const T& value) {
    add(value);
  }
};

// ---- arguments ----

// What C takes for an argument of C++.
template <typename T>
auto in_c(const T& value) {
  if constexpr (requires { value.valid(); }) {
    return std::tuple(value.value());
  } else {
    return std::tuple(value);
  }
}
inline auto in_c(Tokens array) {
  return std::tuple(array.data(), static_cast<std::int64_t>(array.size()));
}
inline auto in_c(std::span<std::int32_t> array) {
  return std::tuple(array.data(), static_cast<std::int64_t>(array.size()));
}
inline auto in_c(Ids ids) {
  return std::tuple(reinterpret_cast<const kvfolio_sequence*>(ids.data()),
                    static_cast<std::int64_t>(ids.size()));
}
inline auto in_c(const StepOptions& options) { return std::tuple(options.now_us); }
inline auto in_c(const AppendOptions& options) { return std::tuple(options.draft); }
inline auto in_c(const ReserveOptions& options) { return std::tuple(options.most_per_step); }
inline auto in_c(const TrimOptions& options) {
  return std::tuple(options.num_sinks, options.window);
}
inline auto in_c(std::optional<VictimPolicy> policy) {
  return std::tuple(policy ? static_cast<std::int32_t>(*policy) : KVFOLIO_POLICY_OF_OPTIONS);
}
// What a call about a prompt takes in C.
struct CPrompt {
  explicit CPrompt(const OpenOptions& options, kvfolio_error& error) {
    const RootKey& key = options.root;
    const auto bytes = [](std::string_view text) { return static_cast<std::int64_t>(text.size()); };
    code = kvfolio_root_create(key.model.data(), bytes(key.model), key.adapter.data(),
                               bytes(key.adapter), key.adapter_version.data(),
                               bytes(key.adapter_version), key.tenant_salt.data(),
                               bytes(key.tenant_salt), key.epoch, &root, &error);
    for (const MediaSpan& span : options.media) {
      kvfolio_media_span& to = media.emplace_back();
      to = {sizeof(to), span.begin, span.end, span.attends_to_itself ? 1 : 0, {}};
      std::memcpy(to.content_id, span.content_id.data(), sizeof(to.content_id));
    }
    open.struct_size = sizeof(open);
    open.no_prefix_cache = options.prefix_cache ? 0 : 1;
    open.no_look_up = options.look_up ? 0 : 1;
    open.publish = static_cast<std::int32_t>(options.publish);
    open.has_caller_id = options.caller_id ? 1 : 0;
    open.caller_id = options.caller_id.value_or(0);
    open.max_tokens = options.max_tokens;
    open.priority = options.priority;
    open.late_names = options.late_names ? 1 : 0;
    open.announce = options.announce ? 1 : 0;
  }
  CPrompt(const CPrompt&) = delete;
  CPrompt& operator=(const CPrompt&) = delete;
  ~CPrompt() { kvfolio_root_destroy(root); }

  std::int32_t code;  // a key that is too long is refused here, and not by the call
  kvfolio_root* root = nullptr;
  std::vector<kvfolio_media_span> media;
  kvfolio_open_options open{};
};
inline auto in_c(const std::vector<kvfolio_media_span>& media) {
  return std::tuple(media.data(), static_cast<std::int64_t>(media.size()));
}

template <typename... Given>
using InC = decltype(std::tuple_cat(in_c(std::declval<const Given&>())...));
// Whether the parameters of C behind the manager begin with these, and then are places of results
// only.
template <typename Wanted, typename InC, std::size_t At = 0>
constexpr bool fits() {
  constexpr std::size_t kWanted = std::tuple_size_v<Wanted>;
  if constexpr (At == kWanted) {
    return std::tuple_size_v<InC> < kWanted;
  } else if constexpr (At < std::tuple_size_v<InC>) {
    return std::is_convertible_v<std::tuple_element_t<At, InC>, std::tuple_element_t<At, Wanted>> &&
           fits<Wanted, InC, At + 1>();
  } else {
    using Place = std::tuple_element_t<At, Wanted>;
    return std::is_pointer_v<Place> && !std::is_const_v<std::remove_pointer_t<Place>> &&
           fits<Wanted, InC, At + 1>();
  }
}

std::vector<kvfolio_group_spec> groups_of(const CacheSpec& spec) {
  std::vector<kvfolio_group_spec> groups;
  for (const GroupSpec& group : spec.groups) {
    groups.push_back(capi::group_of(group));
    groups.back().struct_size = sizeof(kvfolio_group_spec);
  }
  return groups;
}

kvfolio_manager_options options_of(const ManagerOptions& options) {
  const auto zero_is = [](auto value) { return value == 0 ? -1 : value; };
  kvfolio_manager_options out{};
  out.struct_size = sizeof(out);
  out.max_sequences = options.max_sequences;
  out.max_pins = zero_is(options.max_pins);
  out.max_steps_in_flight = options.max_steps_in_flight;
  out.order = static_cast<std::int32_t>(options.order);
  out.no_prefix_cache = options.prefix_cache ? 0 : 1;
  out.max_sequence_tokens = options.max_sequence_tokens;
  out.max_runs = options.max_runs;
  out.max_index_tokens = options.max_index_tokens;
  out.max_root_key_bytes = zero_is(options.max_root_key_bytes);
  out.max_table_entries = options.max_table_entries;
  out.hash_seed = options.hash_seed;
  out.high_watermark = zero_is(options.high_watermark);
  out.max_root_keys = options.max_root_keys;
  out.max_media_extents = zero_is(options.max_media_extents);
  out.victim_policy = static_cast<std::int32_t>(options.victim_policy);
  out.id_tag = options.id_tag;
  out.max_transfers = zero_is(options.max_transfers);
  out.list_findable = options.list_findable ? 1 : 0;
  out.copies_by_host = options.copies_by_host ? 1 : 0;
  out.null_block = options.null_block ? 1 : 0;
  out.max_announced_tokens = options.max_announced_tokens;
  return out;
}

kvfolio_plan_options options_of(const PlanOptions& options) {
  kvfolio_plan_options out{};
  out.struct_size = sizeof(out);
  out.pad_with_zero = options.pad == 0 ? 1 : 0;
  out.no_block_tables = options.block_tables ? 0 : 1;
  out.changed_entries = options.changed_entries ? 1 : 0;
  out.flashinfer = options.flashinfer ? 1 : 0;
  out.shared_prefixes = options.shared_prefixes ? 1 : 0;
  out.positions = options.positions ? 1 : 0;
  out.caller_ids = options.caller_ids ? 1 : 0;
  out.table_stride = {options.table_stride.data(),
                      static_cast<std::int64_t>(options.table_stride.size())};
  out.padded_sequences = options.padded_sequences;
  out.padded_tokens = options.padded_tokens;
  out.int64_slots = options.int64_slots ? 1 : 0;
  out.memory = options.memory.data();
  out.memory_bytes = static_cast<std::int64_t>(options.memory.size());
  return out;
}

// Memory in place of that which the log says there was, aligned alike.
std::span<std::byte> memory_as(std::span<std::byte> said, std::vector<std::uint64_t>& words) {
  if (said.empty()) return {};
  words.assign(said.size() / 8 + 2, 0);
  const std::size_t behind = reinterpret_cast<std::uintptr_t>(said.data()) % 8;
  return {reinterpret_cast<std::byte*>(words.data()) + behind, said.size()};
}

// The parameters of a function behind the manager.
template <typename Function>
struct Behind;
template <typename R, typename Manager, typename... Wanted>
struct Behind<R (*)(Manager, Wanted...)> {
  using Type = std::tuple<Wanted...>;
};
template <typename Function>
using Parameters = typename Behind<Function>::Type;

// ---- a manager of C ----

class CManager {
 public:
  explicit CManager(const OpLogHeader& header) {
    const std::vector<kvfolio_group_spec> groups = groups_of(header.spec);
    const auto num_groups = static_cast<std::int32_t>(groups.size());
    const kvfolio_manager_options options = options_of(header.options);
    std::int32_t code = KVFOLIO_OK;
    if (header.has_storage) {
      kvfolio_storage* storage = nullptr;
      code = kvfolio_storage_create(groups.data(), num_groups, nullptr, &storage, &error_);
      if (code == KVFOLIO_OK) {
        code = kvfolio_manager_create_with_storage(&storage, &options, &manager_, &error_);
      }
      kvfolio_storage_destroy(storage);  // null, unless that failed
    } else {
      code = kvfolio_manager_create(groups.data(), num_groups, &options, &manager_, &error_);
    }
    KVFOLIO_REQUIRE(code == KVFOLIO_OK, std::string("create in C: ") + error_.message);
  }
  CManager(const CManager&) = delete;
  CManager& operator=(const CManager&) = delete;
  ~CManager() { kvfolio_manager_destroy(manager_); }

  [[nodiscard]] kvfolio_manager* get() const { return manager_; }
  kvfolio_error& error() { return error_; }
  void swap(CManager& other) { std::swap(manager_, other.manager_); }

  // f(manager, given as C has them, places of results, error).
  template <typename Handle, typename... Wanted, typename... Given>
  auto call(Said& said, std::int32_t (*f)(Handle*, Wanted...), const Given&... given)
      -> std::enable_if_t<fits<std::tuple<Wanted...>, InC<Given...>>()> {
    constexpr std::size_t kGiven = std::tuple_size_v<InC<Given...>>;
    call_with(said, f, std::tuple_cat(in_c(given)...), std::make_index_sequence<kGiven>(),
              std::make_index_sequence<sizeof...(Wanted) - 1 - kGiven>());
  }
  void note(Said& said, std::int32_t code) {
    said.code = code;
    if (code == KVFOLIO_OK) return;
    KVFOLIO_REQUIRE(code == error_.code, "the error says the code that the call returned");
    said.sentence = error_.message;
    if (code == KVFOLIO_ERR_NO_BLOCKS && error_.shortage.num_blocks != 0) {
      said.shortage(error_.shortage, error_.shortage.never != 0);
    }
  }

 private:
  template <typename Function, typename Given, std::size_t... I, std::size_t... Out>
  void call_with(Said& said, Function f, const Given& given, std::index_sequence<I...>,
                 std::index_sequence<Out...>) {
    using Wanted = Parameters<Function>;
    std::tuple<std::remove_pointer_t<std::tuple_element_t<sizeof...(I) + Out, Wanted>>...> out{};
    [[maybe_unused]] const auto set_size = [](auto& value) {
      if constexpr (requires { value.struct_size; }) value.struct_size = sizeof(value);
    };
    (set_size(std::get<Out>(out)), ...);
    note(said, f(manager_, static_cast<std::tuple_element_t<I, Wanted>>(std::get<I>(given))...,
                 &std::get<Out>(out)..., &error_));
    if (said.code != KVFOLIO_OK) return;
    if constexpr (std::is_same_v<decltype(out), std::tuple<const kvfolio_ended*, std::int64_t>>) {
      said.out.add(std::span(std::get<0>(out), static_cast<std::size_t>(std::get<1>(out))));
    } else {
      (said.add(std::get<Out>(out)), ...);
    }
  }
  kvfolio_manager* manager_ = nullptr;
  kvfolio_error error_ = KVFOLIO_ERROR_INIT;
};

// ---- both ----

// A prompt that outlives the call about it.
class LastPrompt {
 public:
  void keep(Tokens tokens, const OpenOptions& options) {
    tokens_.assign(tokens.begin(), tokens.end());
    const RootKey& key = options.root;
    texts_ = {std::string(key.model), std::string(key.adapter), std::string(key.adapter_version),
              std::string(key.tenant_salt)};
    media_.assign(options.media.begin(), options.media.end());
    options_ = options;
    options_.root = {texts_[0], texts_[1], texts_[2], texts_[3], key.epoch};
    options_.media = media_;
  }
  [[nodiscard]] Tokens tokens() const { return tokens_; }
  [[nodiscard]] const OpenOptions& options() const { return options_; }

 private:
  std::vector<std::int32_t> tokens_;
  std::array<std::string, 4> texts_;
  std::vector<MediaSpan> media_;
  OpenOptions options_;
};

std::vector<std::int32_t> blocks_of(const GroupSpec& group) {
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(group.num_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  return blocks;
}
// No two blocks are equal, if they are not of a few bytes.
void draw_pattern(std::uint64_t seed, std::vector<std::byte>& images) {
  Rng rng(seed);
  for (std::byte& each : images) each = static_cast<std::byte>(rng.next());
}

class Replay {
 public:
  Replay(const OpLogHeader& header, std::uint64_t seed, std::string* record)
      : header_(header), rng_(~seed), record_(record), c_(header), cpp_(create(header)) {
    fill(c_.get(), cpp_);
    if (record_ == nullptr) return;
    Numbers all;
    const std::vector<kvfolio_group_spec> groups = groups_of(header.spec);
    const kvfolio_manager_options o = options_of(header.options);
    all.add(groups.size());
    for (const kvfolio_group_spec& g : groups) {
      all.add(g.num_layers, g.num_kv_heads, g.head_dim_k, g.head_dim_v, g.v_is_prefix_of_k,
              g.block_size, g.dtype, g.format, g.kind, g.window, g.num_sinks, g.num_blocks);
    }
    all.add(o.max_sequences, o.max_pins, o.max_steps_in_flight, o.order, o.no_prefix_cache,
            o.max_sequence_tokens, o.max_runs, o.max_index_tokens, o.max_root_key_bytes,
            o.max_table_entries, o.hash_seed, o.high_watermark, o.max_root_keys,
            o.max_media_extents, o.victim_policy, o.id_tag, o.max_transfers, o.copies_by_host);
    write(header.has_storage ? "create_with_storage" : "create", all, {});
  }

  template <typename Function, typename... Given>
  void make(Op op, Function function, std::tuple<Given...>& given) {
    ++done_.calls;
    Said c;
    const bool has_words = call_c(c, op, given);
    Said cpp;
    std::vector<std::uint64_t> words;
    if constexpr (std::is_same_v<std::tuple<Given...>, std::tuple<PlanOptions>>) {
      std::get<0>(given).memory = memory_as(std::get<0>(given).memory, words);
      words_.push_back(std::move(words));  // a plan lies there until its step ends
    }
    cpp.take(std::apply([&](auto&... each) { return function(cpp_, each...); }, given));
    std::apply([&](const auto&... each) { (add_out(cpp, each), ...); }, given);
    Numbers arguments;
    if constexpr (std::is_same_v<std::tuple<Given...>, std::tuple<SequenceId, std::int64_t>>) {
      const AppendDemand one{std::get<0>(given), std::get<1>(given)};
      arguments.add(std::span<const AppendDemand>(&one, 1));  // in C admit() takes many
    } else {
      std::apply([&](const auto&... each) { arguments.add(each...); }, given);
    }
    const std::string_view name = op == Op::kForgetRoot ? "forget_root" : name_of(op).name;
    KVFOLIO_REQUIRE(has_words || c.code == KVFOLIO_OK || c.code == cpp.code,
                    "C refuses what C++ refuses");
    if (!has_words) return;
    ++done_.made[name];
    compare(name, arguments, c, cpp);
    write(name, arguments, c);
    if (op == Op::kRunCopies) compare_bytes();
    if constexpr (std::is_same_v<std::tuple<Given...>, std::tuple<Tokens, OpenOptions>>) {
      if (c.code == KVFOLIO_OK || rng_.chance(10)) {
        prompt_.keep(std::get<0>(given), std::get<1>(given));
      }
    }
    ask();
    if (record_ != nullptr) return;
    if (rng_.below(40) == 0) go_on_with_a_copy();
    make_more();
  }
  [[nodiscard]] const CReplay& done() const { return done_; }
  void end() {
    Said c;
    Said cpp;
    c_.call(c, kvfolio_state_hash);
    cpp.take(cpp_.state_hash());
    compare("state_hash", {}, c, cpp);
    KVFOLIO_REQUIRE(kvfolio_check_invariants(c_.get(), &c_.error()) == KVFOLIO_OK,
                    c_.error().message);
    compare_bytes();
  }

 private:
  static KVCacheManager create(const OpLogHeader& header) {
    if (!header.has_storage) return made(KVCacheManager::create(header.spec, header.options));
    return made(KVCacheManager::create(made(KVStorage::create(header.spec)), header.options));
  }
  template <typename T>
  static T made(Result<T> result) {
    KVFOLIO_REQUIRE(result.has_value(), result ? "" : result.error().message());
    return *std::move(result);
  }

  static void add_out(Said& said, const OutCount& out) {
    if (out.count != nullptr) said.more.add(*out.count);
  }
  static void add_out(Said& said, const OutBlocks& out) {
    if (said.code == KVFOLIO_OK) said.out.add(first_of(said, out.blocks));
  }
  static void add_out(Said& said, const OutFindable& out) {
    said.out.add(first_of(said, out.blocks));
  }
  template <typename T>
  static void add_out(Said&, const T&) {}
  // As many as the answer says, if they fit.
  template <typename T>
  static std::span<const T> first_of(const Said& said, std::span<T> all) {
    return all.first(std::min<std::size_t>(all.size(), std::stoull(said.out.text())));
  }

  // False: C has no words for the call. It is made all the same, or refused by both.
  template <typename... Given>
  bool call_c(Said& said, Op op, const std::tuple<Given...>& given);
  template <typename F>
  bool about_prompt(Said& said, const OpenOptions& options, const F& call) {
    const CPrompt prompt(options, c_.error());
    if (prompt.code == KVFOLIO_OK) call(prompt);
    if (prompt.code != KVFOLIO_OK) c_.note(said, prompt.code);
    return prompt.code == KVFOLIO_OK;
  }
  void plan_in_c(Said& said, PlanOptions options);
  // Every block of both storages, with bytes of its own.
  void fill(kvfolio_manager* c, KVCacheManager& cpp);
  void compare_bytes();

  void compare(std::string_view name, const Numbers& arguments, const Said& c, const Said& cpp) {
    // What C refuses in front of the call it says in its own words.
    const bool own_words = c.sentence.starts_with("kvfolio_");
    const auto text = [own_words](const Said& said) {
      return std::to_string(said.code) + said.out.text() + " ;" + said.more.text() + " ; " +
             (own_words ? "" : said.sentence);
    };
    done_.errors += c.code != KVFOLIO_OK ? 1 : 0;
    KVFOLIO_REQUIRE(text(c) == text(cpp), "call " + std::to_string(done_.calls) + " " +
                                              std::string(name) + arguments.text() + ": C says " +
                                              text(c) + ", C++ " + text(cpp));
  }
  void write(std::string_view name, const Numbers& arguments, const Said& said) {
    if (record_ == nullptr) return;
    *record_ += std::string(name) + arguments.text() + " = " + std::to_string(said.code) +
                (said.code == KVFOLIO_OK ? said.out.text() + " ; " : " ; " + said.sentence) + "\n";
  }

  // A question with arguments of these types, which are drawn.
  template <typename... Given, typename Function, typename Ask>
  void ask_of(std::string_view name, Function f, const Ask& in_cpp) {
    GroupId of;
    const std::tuple<Given...> arguments{drawn<Given>(of)...};  // in their order
    std::apply(
        [&](const Given&... given) {
          Said c;
          c_.call(c, f, given...);
          answer(name, c, in_cpp(given...), given...);
        },
        arguments);
  }
  template <typename Answered, typename... Given>
  void answer(std::string_view name, const Said& c, const Answered& answered,
              const Given&... given) {
    ++done_.questions;
    ++done_.asked[name];
    Said cpp;
    cpp.take(answered);
    Numbers arguments;
    arguments.add(given...);
    compare(name, arguments, c, cpp);
    static constexpr std::string_view kOfRust[] = {
        "info",        "block_table", "usage", "ref_count",    "is_findable",
        "block_state", "find",        "probe", "admit_prompt", "blocks_to_load"};
    if (std::find(std::begin(kOfRust), std::end(kOfRust), name) != std::end(kOfRust)) {
      write(name, arguments, c);
    }
  }
  void ask();
  void ask_admission();
  void ask_blocks_to_load();
  void ask_slots();
  void ask_about_prompt(Tokens tokens, const OpenOptions& options);
  void ask_about_last_prompt();
  void ask_whole();
  void go_on_with_a_copy();
  // Calls that the model check does not draw: all from this one on.
  static constexpr Op kFirstNotDrawn = Op::kTouch;
  void make_more();
  template <typename R, typename... Given>
  void make_another(Op op, R (*function)(KVCacheManager&, Given...)) {
    GroupId of;
    std::tuple<Given...> arguments{drawn<Given>(of)...};  // in their order
    make(op, function, arguments);
  }
  // A value for an argument; `of`: the last group that was drawn.
  template <typename T>
  T drawn(GroupId& of);
  [[nodiscard]] SequenceId any_sequence() {
    std::vector<SequenceId> open(static_cast<std::size_t>(cpp_.num_sequences()));
    cpp_.sequences(open);
    open.emplace_back();  // that of none
    return rng_.pick(open);
  }

  const OpLogHeader& header_;
  Rng rng_;  // seeded far from that of the model check, whose draws it would repeat
  std::string* record_;
  CManager c_;
  KVCacheManager cpp_;
  std::vector<std::vector<std::uint64_t>> words_;
  LastPrompt prompt_;  // of the last call about one; of a few that were refused
  LoadId load_{};      // the last one
  CReplay done_;
};

void Replay::plan_in_c(Said& said, PlanOptions options) {
  std::vector<std::uint64_t> words;
  options.memory = memory_as(options.memory, words);
  words_.push_back(std::move(words));
  const kvfolio_plan_options ours = options_of(options);
  Said bytes;
  c_.call(bytes, kvfolio_plan_bytes, &ours);
  answer("plan_bytes", bytes, cpp_.plan_bytes(options), options);
  kvfolio_step_plan step{};
  step.struct_size = sizeof(step);
  std::vector<kvfolio_group_plan> groups(static_cast<std::size_t>(kvfolio_num_groups(c_.get())));
  for (kvfolio_group_plan& group : groups) group.struct_size = sizeof(group);
  c_.note(said, kvfolio_plan(c_.get(), &ours, &step, groups.data(),
                             static_cast<std::int32_t>(groups.size()), &c_.error()));
  if (said.code != KVFOLIO_OK) return;
  said.plan(step, capi::ids_of(step.sequences, step.num_sequences), groups);
  const std::int64_t ids = step.caller_ids != nullptr ? step.num_sequences : 0;
  said.more.add(std::span(step.caller_ids, static_cast<std::size_t>(ids)));
}

void Replay::fill(kvfolio_manager* c, KVCacheManager& cpp) {
  if (!header_.has_storage) return;
  for (std::int32_t g = 0; g < static_cast<std::int32_t>(header_.spec.groups.size()); ++g) {
    const std::vector<std::int32_t> blocks =
        blocks_of(header_.spec.groups[static_cast<std::size_t>(g)]);
    KVStorage& ours = *cpp.storage();
    std::vector<std::byte> images(static_cast<std::size_t>(ours.block_image_bytes(GroupId(g))) *
                                  blocks.size());
    draw_pattern(static_cast<std::uint64_t>(g), images);
    const Status filled = ours.write_blocks(GroupId(g), blocks, images);
    KVFOLIO_REQUIRE(filled.ok(), filled.message());
    KVFOLIO_REQUIRE(
        kvfolio_storage_write_blocks(
            kvfolio_manager_storage(c), g, blocks.data(), static_cast<std::int64_t>(blocks.size()),
            images.data(), static_cast<std::int64_t>(images.size()), &c_.error()) == KVFOLIO_OK,
        c_.error().message);
  }
}

void Replay::compare_bytes() {
  if (!header_.has_storage) return;
  for (std::int32_t g = 0; g < static_cast<std::int32_t>(header_.spec.groups.size()); ++g) {
    const std::vector<std::int32_t> blocks =
        blocks_of(header_.spec.groups[static_cast<std::size_t>(g)]);
    const KVStorage& ours = *cpp_.storage();
    std::vector<std::byte> in_cpp(static_cast<std::size_t>(ours.block_image_bytes(GroupId(g))) *
                                  blocks.size());
    std::vector<std::byte> in_c(in_cpp.size());
    const Status read = ours.read_blocks(GroupId(g), blocks, in_cpp);
    KVFOLIO_REQUIRE(read.ok(), read.message());
    KVFOLIO_REQUIRE(kvfolio_storage_read_blocks(kvfolio_manager_storage(c_.get()), g, blocks.data(),
                                                static_cast<std::int64_t>(blocks.size()),
                                                in_c.data(), static_cast<std::int64_t>(in_c.size()),
                                                &c_.error()) == KVFOLIO_OK,
                    c_.error().message);
    KVFOLIO_REQUIRE(in_c == in_cpp, "call " + std::to_string(done_.calls) +
                                        ": C has other bytes in group " + std::to_string(g));
  }
}

template <typename... Given>
bool Replay::call_c(Said& said, Op op, const std::tuple<Given...>& given) {
  // A function whose parameters are the arguments in their order. What does not fit is of another
  // call than `op`.
  const auto plain = [&](auto f) {
    if constexpr (requires(const Given&... each) { c_.call(said, f, each...); }) {
      std::apply([&](const Given&... each) { c_.call(said, f, each...); }, given);
      return true;
    } else {
      KVFOLIO_REQUIRE(false, "C takes other arguments");
      return false;
    }
  };
  const auto own = [&](const auto& f) {
    if constexpr (std::is_invocable_v<decltype(f), const Given&...>) {
      if constexpr (std::is_same_v<bool, std::invoke_result_t<decltype(f), const Given&...>>) {
        return std::apply(f, given);
      } else {
        std::apply(f, given);
        return true;
      }
    } else {
      KVFOLIO_REQUIRE(false, "the call has other arguments");
      return false;
    }
  };
  const auto with_prompt = [&](auto f) {
    return own([&](Tokens tokens, const OpenOptions& o) {
      return about_prompt(
          said, o, [&](const CPrompt& p) { c_.call(said, f, p.root, tokens, p.media, &p.open); });
    });
  };
  const auto admit = [&](std::span<const AppendDemand> demands) {
    std::vector<kvfolio_sequence> ids;
    std::vector<std::int64_t> counts;
    for (const AppendDemand& demand : demands) {
      ids.push_back(demand.sequence.value());
      counts.push_back(demand.num_tokens);
    }
    c_.note(said, kvfolio_admit(c_.get(), ids.data(), counts.data(),
                                static_cast<std::int64_t>(ids.size()), &c_.error()));
  };
  kvfolio_manager* const m = c_.get();
  kvfolio_error* const e = &c_.error();
  const auto count = [&](std::int32_t code, const OutCount& out, std::int64_t done) {
    c_.note(said, code);
    if (out.count != nullptr) said.more.add(done);
  };
  switch (op) {
    case Op::kOpen:
      return with_prompt(kvfolio_open);
    case Op::kOpenUnnamed:
      return own([&](std::int64_t n, const OpenOptions& o) {
        return about_prompt(said, o, [&](const CPrompt& p) {
          c_.call(said, kvfolio_open_unnamed, p.root, n, p.media, &p.open);
        });
      });
    case Op::kPin:
      return with_prompt(kvfolio_pin);
    case Op::kForget:
      return own([&](Tokens tokens, const OpenOptions& o) {
        return about_prompt(said, o, [&](const CPrompt& p) {
          c_.call(said, kvfolio_forget, p.root, tokens, p.media);
        });
      });
    case Op::kForgetRoot:
      return own([&](const RootKey& key) {
        return about_prompt(said, {.root = key},
                            [&](const CPrompt& p) { c_.call(said, kvfolio_forget_root, p.root); });
      });
    case Op::kFork:
      return own([&](SequenceId parent, const ForkOptions& o) {
        const kvfolio_fork_options ours{sizeof(ours), o.caller_id ? 1 : 0, o.caller_id.value_or(0),
                                        o.priority, 0};
        c_.call(said, kvfolio_fork, parent, &ours);
      });
    case Op::kAdopt:
      return own([&](SequenceId id, std::span<const Tokens> tables, std::int32_t n) {
        std::vector<std::int32_t> all;
        std::vector<std::int64_t> sizes;
        for (const Tokens table : tables) {
          all.insert(all.end(), table.begin(), table.end());
          sizes.push_back(static_cast<std::int64_t>(table.size()));
        }
        c_.note(said, kvfolio_adopt(m, id.value(), all.data(), sizes.data(),
                                    static_cast<std::int32_t>(sizes.size()), n, e));
      });
    case Op::kAppendEach:
    case Op::kSetTokensEach:
      return own([&](Ids ids, Tokens tokens, const OutCount& out) {
        std::int32_t done = 0;
        const OutCount unseen{out.count != nullptr ? &done : nullptr};
        if (ids.size() != tokens.size()) {  // in C there is one count
          static_cast<void>(op == Op::kAppendEach
                                ? m->manager.append_each(ids, tokens, unseen.count)
                                : m->manager.set_tokens_each(ids, tokens, unseen.count));
          return false;
        }
        const auto [sequences, size] = in_c(ids);
        const auto f = op == Op::kAppendEach ? kvfolio_append_each : kvfolio_set_tokens_each;
        std::int64_t all = 0;
        const std::int32_t code = f(m, sequences, tokens.data(), size, &all, e);
        count(code, out, all);
        return true;
      });
    case Op::kAppendUnnamedEach:
      return own([&](Ids ids, const OutCount& out) {
        const auto [sequences, size] = in_c(ids);
        std::int64_t all = 0;
        const std::int32_t code = kvfolio_append_unnamed_each(m, sequences, size, &all, e);
        count(code, out, all);
      });
    case Op::kPlan:
      return own([&](const PlanOptions& options) {
        const bool has_words = options.pad == 0 || options.pad == -1;
        if (has_words) plan_in_c(said, options);
        if (!has_words) static_cast<void>(m->manager.plan(options));
        return has_words;
      });
    case Op::kAdmit:
      return own(admit);
    case Op::kAdmitOne:
      return own([&](SequenceId id, std::int64_t n) {
        const AppendDemand one{id, n};
        admit({&one, 1});
      });
    case Op::kEvict:
      return own([&](GroupId group, std::int32_t n, const OutBlocks& out) {
        std::vector<std::int32_t> blocks(out.blocks.size());
        c_.call(said, kvfolio_evict, group, n, std::span(blocks));
        add_out(said, OutBlocks{blocks});
      });
    case Op::kTakeFindable:
      return own([&](const OutFindable& out) {
        std::vector<kvfolio_findable_block> found(out.blocks.size());
        said.out.add(
            kvfolio_take_findable(m, found.data(), static_cast<std::int64_t>(found.size())));
        said.out.add(first_of(said, std::span(found)));
      });
    case Op::kSelectVictim:
      return own([&](std::optional<VictimPolicy> policy) {
        said.out.add(kvfolio_select_victim(m, std::get<0>(in_c(policy))));
      });
    case Op::kBeginLoad:
      return own([&](SequenceId id, Tokens prompt, std::int32_t end) {
        c_.call(said, kvfolio_begin_load, id, prompt, end);
        if (said.code == KVFOLIO_OK) load_ = LoadId(std::stoull(said.out.text()));
      });
    default:
      break;
  }
  // The others: the parameters of C are the arguments in their order.
  switch (op) {
#define KVFOLIO_IN_C(number, code, name, ...) \
  case Op::code:                              \
    return plain(kvfolio_##name);
    KVFOLIO_OPS(KVFOLIO_IN_C)
#undef KVFOLIO_IN_C
    case Op::kEnd:
      break;
  }
  return false;
}

// ---- questions ----

template <typename T>
T Replay::drawn(GroupId& of) {
  const auto num_groups = static_cast<int>(header_.spec.groups.size());
  if constexpr (std::is_same_v<T, SequenceId>) {
    return any_sequence();
  } else if constexpr (std::is_same_v<T, GroupId>) {
    return of = GroupId(rng_.between(0, rng_.chance(5) ? num_groups : num_groups - 1));
  } else if constexpr (std::is_same_v<T, BlockId>) {  // of the group in front of it
    const auto& group = header_.spec.groups[static_cast<std::size_t>(of.value() % num_groups)];
    return BlockId(rng_.between(0, group.num_blocks - (rng_.chance(5) ? 0 : 1)));
  } else if constexpr (std::is_same_v<T, Tokens>) {
    return prompt_.tokens();
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {  // a name of a caller
    return std::uint64_t(rng_.below(40));
  } else if constexpr (std::is_integral_v<T>) {
    return T(rng_.between(-1, 8));
  } else {
    return T{};
  }
}

// Each kind of question is asked after one call in 15, however many kinds there are.
void Replay::ask() {
  const auto is_asked = [this] { return rng_.below(15) == 0; };
#define CALL(name, types, is_const)
#define QUESTION(name, ...)                                                                     \
  if (is_asked()) {                                                                             \
    ask_of<__VA_ARGS__>(#name, kvfolio_##name,                                                  \
                        [this](const auto&... of) { return std::as_const(cpp_).name(of...); }); \
  }
#include "manager_calls.inc"
#undef CALL
#undef QUESTION
  if (is_asked()) ask_about_last_prompt();
  if (is_asked()) ask_about_last_prompt();
  if (is_asked()) ask_whole();
  if (is_asked()) ask_admission();
  if (is_asked()) ask_blocks_to_load();
  if (is_asked()) ask_slots();
}

void Replay::ask_admission() {
  const SequenceId id = any_sequence();
  const ReserveOptions chunks{.most_per_step = rng_.below(6)};
  const std::int64_t n = rng_.below(20);
  const int num_groups = kvfolio_num_groups(c_.get());
  std::array<std::int32_t, kMaxGroups> blocks{};
  Said c;
  c_.note(c, kvfolio_admit_sequence(c_.get(), id.value(), n, chunks.most_per_step, blocks.data(),
                                    num_groups, &c_.error()));
  const Result<Admission> admitted = std::as_const(cpp_).admit(id, n, chunks);
  if (c.code == KVFOLIO_OK) c.out.add(std::span<const std::int32_t>(blocks));
  if (!admitted) return answer("admit_sequence", c, admitted.error(), id, n, chunks);
  answer("admit_sequence", c, std::span<const std::int32_t>(admitted->blocks), id, n, chunks);
}

void Replay::ask_blocks_to_load() {
  GroupId g;
  g = drawn<GroupId>(g);
  std::vector<std::int32_t> logical(6);
  std::vector<std::int32_t> blocks(6);
  std::vector<LoadBlock> ours(6);
  Said c;
  c_.call(c, kvfolio_blocks_to_load, load_, g, logical.data(), std::span(blocks));
  const Result<std::int32_t> count = cpp_.blocks_to_load(load_, g, ours);
  for (std::size_t i = 0; count && i < 6 && i < static_cast<std::size_t>(*count); ++i) {
    KVFOLIO_REQUIRE(logical[i] == ours[i].logical && blocks[i] == ours[i].block.value(),
                    "C names the same blocks to load");
  }
  answer("blocks_to_load", c, count, load_, g);
}

void Replay::ask_slots() {
  const SequenceId id = any_sequence();
  GroupId g;
  g = drawn<GroupId>(g);
  std::vector<std::int32_t> slots(static_cast<std::size_t>(rng_.below(5)));
  std::vector<std::int32_t> ours(slots);
  const std::int32_t begin = rng_.between(-1, 12);
  Said c;
  c_.call(c, kvfolio_slot_mapping, id, g, begin, std::span(slots));
  const Status status = cpp_.slot_mapping(id, g, begin, ours);
  KVFOLIO_REQUIRE(slots == ours, "C gives the same slots");
  answer("slot_mapping", c, status, id, g, begin);
}

// As it was, or without a part of it.
void Replay::ask_about_last_prompt() {
  OpenOptions options = prompt_.options();
  // C refuses here what C++ does not read.
  if (options.publish < Publish::kAll || options.publish > Publish::kNothing) options.publish = {};
  switch (rng_.below(8)) {
    case 0:
      options.root = {};
      break;
    case 1:
      options.media = {};
      break;
    case 2:
      options.prefix_cache = !options.prefix_cache;
      break;
    case 3:
      options.look_up = !options.look_up;
      break;
    default:
      break;
  }
  ask_about_prompt(prompt_.tokens(), options);
}

void Replay::ask_about_prompt(Tokens tokens, const OpenOptions& options) {
  const CPrompt p(options, c_.error());
  if (p.code != KVFOLIO_OK) return;  // the call of this prompt has compared that
  Said probe;
  c_.call(probe, kvfolio_probe, p.root, tokens, p.media, &p.open);
  const Result<std::int32_t> cached = cpp_.probe(tokens, options);
  answer("probe", probe, cached, tokens, options);
  Said soon;
  c_.call(soon, kvfolio_soon, p.root, tokens, p.media, &p.open);
  const Result<Soon> to_come = cpp_.soon(tokens, options);
  answer("soon", soon, to_come, tokens, options);
  ++done_.prompts;
  done_.found += cached && *cached > 0 ? 1 : 0;
  done_.soon += to_come && to_come->tokens > 0 ? 1 : 0;

  const std::int64_t num_more = rng_.below(10);
  const ReserveOptions chunks{.most_per_step = record_ != nullptr ? 0 : rng_.below(6)};
  std::array<std::int32_t, kMaxGroups> blocks{};
  const auto num_groups = static_cast<std::size_t>(kvfolio_num_groups(c_.get()));
  kvfolio_found found{};
  found.struct_size = sizeof(found);
  Said c;
  c_.note(c, kvfolio_admit_prompt(c_.get(), p.root, tokens.data(),
                                  static_cast<std::int64_t>(tokens.size()), p.media.data(),
                                  static_cast<std::int64_t>(p.media.size()), &p.open, num_more,
                                  chunks.most_per_step, &found, blocks.data(),
                                  static_cast<std::int32_t>(num_groups), &c_.error()));
  const auto add = [&](Said& said, const auto& of, const Soon& announced) {
    said.found(of, announced);
    said.out.add(std::span<const std::int32_t>(blocks).first(num_groups));
  };
  if (c.code == KVFOLIO_OK) add(c, found, {found.soon_tokens, SequenceId(found.soon_by)});
  const Result<Admission> admitted = cpp_.admit(tokens, options, num_more, chunks);
  Said cpp;
  if (admitted) {
    blocks = admitted->blocks;
    add(cpp, *admitted, admitted->soon);
  } else {
    cpp.take(admitted.error());
  }
  Numbers arguments;
  arguments.add(tokens, options, num_more);
  compare("admit_prompt", arguments, c, cpp);
  write("admit_prompt", arguments, c);
  ++done_.questions;
  ++done_.asked["admit_prompt"];
}

// What is said of the manager as a whole.
void Replay::ask_whole() {
  kvfolio_manager* const m = c_.get();
  Said c;
  c_.call(c, kvfolio_get_counters);
  answer("counters", c, cpp_.counters());
  Said hash;
  c_.call(hash, kvfolio_state_hash);
  answer("state_hash", hash, cpp_.state_hash());
  std::vector<SequenceId> sequences(static_cast<std::size_t>(kvfolio_num_sequences(m)));
  std::vector<SequenceId> ours(sequences.size());
  const auto size = static_cast<std::int64_t>(sequences.size());
  const bool same =
      kvfolio_sequences(m, reinterpret_cast<kvfolio_sequence*>(sequences.data()), size) ==
          cpp_.sequences(ours) &&
      sequences == ours && kvfolio_num_sequences(m) == cpp_.num_sequences() &&
      kvfolio_num_rows(m) == cpp_.num_rows() && kvfolio_utilization(m) == cpp_.utilization() &&
      (kvfolio_needs_eviction(m) != 0) == cpp_.needs_eviction() &&
      kvfolio_bytes_used(m) == cpp_.bytes_used() && kvfolio_bytes_total(m) == cpp_.bytes_total();
  KVFOLIO_REQUIRE(same, "C says the same of the manager as a whole");
  std::string text(static_cast<std::size_t>(kvfolio_describe(m, nullptr, 0)), ' ');
  kvfolio_describe(m, text.data(), static_cast<std::int64_t>(text.size()) + 1);
  KVFOLIO_REQUIRE(text == cpp_.describe(), "C describes the manager as C++ does");
}

void Replay::make_more() {
  for (auto op = kFirstNotDrawn; static_cast<std::size_t>(op) < kNumOps;
       op = static_cast<Op>(static_cast<int>(op) + 1)) {
    const int times = op == Op::kTouch ? 6 : op == Op::kAppendPrompt ? 3 : 1;
    if (rng_.below(400) >= times) continue;
    with_call(op, [&](auto function) { make_another(op, +function); });
  }
}

void Replay::go_on_with_a_copy() {
  CManager other(header_);
  KVCacheManager twin = create(header_);
  fill(other.get(), twin);
  Said c;
  c_.note(c, kvfolio_copy_to(c_.get(), other.get(), &c_.error()));
  answer("copy_to", c, cpp_.copy_to(twin));
  if (c.code != KVFOLIO_OK) return;
  ++done_.copies;
  c_.swap(other);
  cpp_ = std::move(twin);
}

}  // namespace

CReplay replay_in_c(ByteSource& log, std::uint64_t seed, std::string* record) {
  OpDecoder decoder(log);
  OpLogHeader header;
  const Status status = decoder.read_header(header);
  KVFOLIO_REQUIRE(status.ok(), status.message());
  std::int64_t num_blocks = 0;
  for (const GroupSpec& group : header.spec.groups) num_blocks += group.num_blocks;
  decoder.set_most_blocks(num_blocks);
  Replay replay(header, seed, record);
  while (decoder.next([&](Op op, auto function, auto& arguments, const Answer*) {
    replay.make(op, function, arguments);
  })) {
  }
  KVFOLIO_REQUIRE(decoder.status().ok(), decoder.status().message());
  replay.end();
  return replay.done();
}

}  // namespace kvfolio::model_check
