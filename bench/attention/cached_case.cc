// SPDX-License-Identifier: Apache-2.0
#include "cached_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kvfolio/dtype.h"

namespace kvfolio::bench {
namespace {

constexpr std::int32_t kTileTokens = 16;
constexpr std::int32_t kItemTokens = 1024;

GroupSpec spec_of(const CaseShape& shape) {
  std::int64_t blocks = 0;
  for (const std::int32_t length : shape.lengths) {
    blocks += (length + shape.block_size - 1) / shape.block_size;
  }
  return {.num_layers = shape.num_layers,
          .num_kv_heads = kKvHeads,
          .head_dim_k = kHeadDim,
          .head_dim_v = kHeadDim,
          .block_size = shape.block_size,
          .dtype = shape.dtype,
          .format = shape.format,
          .num_blocks = static_cast<std::int32_t>(blocks)};
}

// Numbers in (-1, 1), the same for the same key.
void fill_random(std::uint64_t key, float* values, std::size_t count) {
  Random random(key * 0x2545f4914f6cdd1du + 1);
  for (std::size_t i = 0; i < count; i += 4) {
    std::uint64_t bits = random();
    for (std::size_t j = i; j < std::min(i + 4, count); ++j, bits >>= 16) {
      values[j] = (static_cast<float>(bits & 0xffff) - 32767.5F) / 32768.0F;
    }
  }
}

RowsView rows_of(std::byte* data, std::int32_t tokens, std::int32_t heads, DType dtype) {
  const std::int64_t row = kHeadDim * std::int64_t{dtype_bytes(dtype)};
  return {data, heads * row, row, tokens, heads, kHeadDim, dtype};
}

std::string name_of(const CaseShape& shape) {
  return std::string(to_string(shape.dtype)) + " in " + to_string(shape.format) + ", block size " +
         std::to_string(shape.block_size);
}

std::uint64_t hash_of(const std::vector<float>& values) {
  std::uint64_t hash = 0;
  for (const float value : values) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    hash = (hash ^ bits) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

// A walk over the tiles of a case. An item is 1024 tokens of one sequence and layer, of one head
// (by head) or of all of them (by token).
class TileWalk {
 public:
  TileWalk(const CachedCase& cache, ReadOrder order, std::int64_t first_item, std::int64_t end_item)
      : cache_(cache),
        by_head_(order == ReadOrder::kByHead),
        item_(first_item),
        end_item_(end_item) {
    enter_item();
  }

  [[nodiscard]] bool done() const { return item_ >= end_item_; }
  void next() {
    position_ += kTileTokens;
    if (position_ < end_position_) return;
    if (!by_head_) {
      if (++head_ < kKvHeads) {
        position_ = first_position_;
        return;
      }
      if (end_position_ < end_of_item_) {
        head_ = 0;
        enter_tokens(end_position_);
        return;
      }
    }
    ++item_;
    enter_item();
  }
  [[nodiscard]] Tile tile() const {
    const KVView& view = cache_.view();
    const std::int32_t slot = cache_.slot(sequence_, position_);
    const std::int32_t block = slot / view.block_size;
    const std::int32_t offset = slot % view.block_size;
    const auto bytes = [](const std::byte* data) {
      return reinterpret_cast<const unsigned char*>(data);
    };
    Tile tile;
    tile.planes[0] = {bytes(view.k_at(layer_, block, head_, offset)), view.k_strides.token};
    tile.planes[1] = {bytes(view.v_at(layer_, block, head_, offset)), view.v_strides.token};
    if (view.k_scale != nullptr) {
      tile.planes[2] = {bytes(view.k_scale_at(layer_, block, head_, offset)),
                        view.k_scale_strides.token};
      tile.planes[3] = {bytes(view.v_scale_at(layer_, block, head_, offset)),
                        view.v_scale_strides.token};
    }
    return tile;
  }

  static std::int64_t num_items(const CachedCase& cache, ReadOrder order) {
    std::int64_t ranges = 0;
    for (const std::int32_t length : cache.shape().lengths) ranges += ranges_of(length);
    return cache.shape().num_layers * ranges * (order == ReadOrder::kByHead ? kKvHeads : 1);
  }

 private:
  static std::int64_t ranges_of(std::int32_t length) {
    return (length + kItemTokens - 1) / kItemTokens;
  }

  void enter_item() {
    if (done()) return;
    const std::vector<std::int32_t>& lengths = cache_.shape().lengths;
    head_ = by_head_ ? static_cast<std::int32_t>(item_ % kKvHeads) : 0;
    std::int64_t range = by_head_ ? item_ / kKvHeads : item_;
    std::int64_t per_layer = 0;
    for (const std::int32_t length : lengths) per_layer += ranges_of(length);
    layer_ = static_cast<std::int32_t>(range / per_layer);
    range %= per_layer;
    sequence_ = 0;
    while (range >= ranges_of(lengths[static_cast<std::size_t>(sequence_)])) {
      range -= ranges_of(lengths[static_cast<std::size_t>(sequence_)]);
      ++sequence_;
    }
    const std::int32_t first = static_cast<std::int32_t>(range) * kItemTokens;
    end_of_item_ = std::min(first + kItemTokens, lengths[static_cast<std::size_t>(sequence_)]);
    enter_tokens(first);
  }

  void enter_tokens(std::int32_t first) {
    first_position_ = position_ = first;
    end_position_ = by_head_ ? end_of_item_ : std::min(first + 64, end_of_item_);
  }

  const CachedCase& cache_;
  bool by_head_;
  std::int64_t item_;
  std::int64_t end_item_;
  std::int32_t layer_ = 0;
  std::int32_t sequence_ = 0;
  std::int32_t head_ = 0;
  std::int32_t first_position_ = 0;  // what one head reads before the next one
  std::int32_t end_position_ = 0;
  std::int32_t position_ = 0;
  std::int32_t end_of_item_ = 0;
};

}  // namespace

DType query_dtype(DType cache) { return cache == DType::kInt8 ? DType::kBF16 : cache; }

double tolerance(DType cache) {
  switch (cache) {
    case DType::kF32:
      return 2e-6;
    case DType::kF16:
      return 1e-3;
    case DType::kBF16:
      return 5e-3;
    default:
      return 1.5e-2;
  }
}

CachedCase::CachedCase(CaseShape shape)
    : shape_(std::move(shape)),
      storage_(take(KVStorage::create({.groups = {spec_of(shape_)}}), "storage")),
      view_(take(storage_.view(GroupId(0)), "a view")),
      memory_bytes_(storage_.memory_bytes()) {
  for (const std::int32_t length : shape_.lengths) {
    table_stride_ = std::max(table_stride_, (length + shape_.block_size - 1) / shape_.block_size);
  }
  std::vector<std::int32_t> order(static_cast<std::size_t>(view_.num_blocks));
  std::iota(order.begin(), order.end(), 0);
  if (shape_.shuffled) order = shuffled(view_.num_blocks, 77);
  std::size_t next = 0;
  for (const std::int32_t length : shape_.lengths) {
    const std::int32_t blocks = (length + shape_.block_size - 1) / shape_.block_size;
    for (std::int32_t b = 0; b < table_stride_; ++b) {
      table_.push_back(b < blocks ? order[next++] : -1);
    }
  }
  const std::int32_t row = kHeadDim * dtype_bytes(shape_.dtype);
  const bool together = view_.granule || view_.k_strides.token == row;
  for (int plane = 0; plane < 2; ++plane) {
    tile_shape_.rows[plane] = together ? 1 : kTileTokens;
    tile_shape_.row_bytes[plane] = together ? kTileTokens * row : row;
    if (view_.k_scale == nullptr) continue;
    const bool scales_together = view_.k_scale_strides.token == 4;
    tile_shape_.rows[plane + 2] = scales_together ? 1 : kTileTokens;
    tile_shape_.row_bytes[plane + 2] = scales_together ? kTileTokens * 4 : 4;
  }
  require(storage_.fill(std::byte{0}), "fill");  // no page is missing, no slot is not a number
  fill();
}

std::int32_t CachedCase::slot(std::int32_t sequence, std::int32_t position) const {
  const std::int32_t entry = sequence * table_stride_ + position / shape_.block_size;
  return table_[static_cast<std::size_t>(entry)] * shape_.block_size + position % shape_.block_size;
}

double CachedCase::token_heads() const {
  const std::int64_t tokens =
      std::accumulate(shape_.lengths.begin(), shape_.lengths.end(), std::int64_t{0});
  return static_cast<double>(tokens) * kKvHeads * shape_.num_layers;
}

double CachedCase::bytes() const {
  const double scales = shape_.dtype == DType::kInt8 ? 8 : 0;
  return token_heads() * (2.0 * kHeadDim * dtype_bytes(shape_.dtype) + scales);
}

void CachedCase::fill() {
  constexpr std::int32_t kChunk = 512;
  const std::size_t count = std::size_t{kChunk} * kKvHeads * kHeadDim;
  std::vector<float> k(count);
  std::vector<float> v(count);
  std::vector<std::int32_t> slots;
  for (std::int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    for (std::int32_t s = 0; s < num_sequences(); ++s) {
      const std::int32_t length = shape_.lengths[static_cast<std::size_t>(s)];
      for (std::int32_t first = 0; first < length; first += kChunk) {
        const auto key = static_cast<std::uint64_t>((std::int64_t{layer} * 1024 + s) << 24 | first);
        fill_random(2 * key, k.data(), count);
        fill_random(2 * key + 1, v.data(), count);
        const std::int32_t tokens = std::min(kChunk, length - first);
        slots.clear();
        for (std::int32_t t = 0; t < tokens; ++t) slots.push_back(slot(s, first + t));
        require(
            append(view_, layer,
                   rows_of(reinterpret_cast<std::byte*>(k.data()), tokens, kKvHeads, DType::kF32),
                   rows_of(reinterpret_cast<std::byte*>(v.data()), tokens, kKvHeads, DType::kF32),
                   slots),
            "append");
      }
    }
  }
}

double CachedCase::bytes_read(ReadOrder order) const {
  double bytes = 0;
  const std::int64_t items = TileWalk::num_items(*this, order);
  for (TileWalk walk(*this, order, 0, items); !walk.done(); walk.next()) {
    for (int plane = 0; plane < 4; ++plane) {
      bytes += tile_shape_.rows[plane] * tile_shape_.row_bytes[plane];
    }
  }
  return bytes;
}

void CachedCase::read_blocks(const Context& context, std::int32_t threads, ReadOrder order,
                             Distance ahead) const {
  const std::int64_t items = TileWalk::num_items(*this, order);
  const ReadTile read_tile = context.read_tile();
  parallel_for(context.executor(threads), threads, [&](std::int32_t part) {
    const std::int64_t first = items * part / threads;
    const std::int64_t end = items * (part + 1) / threads;
    TileWalk walk(*this, order, first, end);
    TileWalk leader(*this, order, first, end);
    for (std::int32_t i = 0; i < ahead.tiles && !leader.done(); ++i) leader.next();
    std::uint64_t sum = 0;
    for (; !walk.done(); walk.next()) {
      if (ahead.tiles == 0 || leader.done()) {
        sum += read_tile(tile_shape_, walk.tile(), {});
      } else {
        const Tile next = leader.tile();
        sum += read_tile(tile_shape_, walk.tile(), {&next, ahead.level});
        leader.next();
      }
    }
    keep(sum);
  });
}

void CachedCase::read_in_order(const Context& context, std::int32_t threads, Distance ahead) const {
  // The cache's memory begins with the first row of K.
  const auto* memory = reinterpret_cast<const unsigned char*>(view_.k);
  constexpr std::int32_t kPiece = 4096;
  const std::int64_t pieces = memory_bytes_ / kPiece;
  const ReadTile read_tile = context.read_tile();
  TileShape shape;
  shape.rows[0] = 1;
  shape.row_bytes[0] = kPiece;
  parallel_for(context.executor(threads), threads, [&](std::int32_t part) {
    const std::int64_t end = pieces * (part + 1) / threads;
    std::uint64_t sum = 0;
    for (std::int64_t i = pieces * part / threads; i < end; ++i) {
      Tile tile;
      tile.planes[0] = {memory + i * kPiece, 0};
      Tile next;
      next.planes[0] = {memory + std::min(i + ahead.tiles, end - 1) * kPiece, 0};
      sum += read_tile(shape, tile, {ahead.tiles == 0 ? nullptr : &next, ahead.level});
    }
    keep(sum);
  });
}

const char* to_string(ReadOrder order) {
  switch (order) {
    case ReadOrder::kByHead:
      return "by head";
    case ReadOrder::kByToken:
      return "by token";
    case ReadOrder::kMemory:
      return "memory";
  }
  return "invalid";
}

constexpr Distance kDistances[] = {{0},    {1, 1}, {2, 1}, {4, 1}, {8, 1},
                                   {1, 2}, {2, 2}, {4, 2}, {8, 2}};

ReadProbe ReadProbe::of_blocks(Panel& panel, const Context& context, const CachedCase& cache,
                               std::int32_t threads) {
  ReadProbe probe;
  for (const ReadOrder order : {ReadOrder::kByHead, ReadOrder::kByToken}) {
    for (const Distance ahead : kDistances) {
      const std::size_t piece = panel.add([&context, &cache, threads, order, ahead] {
        cache.read_blocks(context, threads, order, ahead);
      });
      probe.ways_.push_back({order, ahead, piece});
    }
  }
  return probe;
}

ReadProbe ReadProbe::of_memory(Panel& panel, const Context& context, const CachedCase& cache,
                               std::int32_t threads) {
  ReadProbe probe;
  for (const Distance ahead : {Distance{0}, Distance{2, 2}, Distance{8, 2}}) {
    const std::size_t piece = panel.add(
        [&context, &cache, threads, ahead] { cache.read_in_order(context, threads, ahead); });
    probe.ways_.push_back({ReadOrder::kMemory, ahead, piece});
  }
  return probe;
}

const ReadProbe::Way& ReadProbe::best(const Panel& panel) const {
  return *std::min_element(ways_.begin(), ways_.end(), [&](const Way& a, const Way& b) {
    return median(panel.seconds(a.piece)) < median(panel.seconds(b.piece));
  });
}

AttentionCall::AttentionCall(const Context& context, const CachedCase& cache, std::int32_t q_per_kv,
                             std::int32_t queries)
    : context_(context), cache_(cache), q_per_kv_(q_per_kv), query_start_{0} {
  const CaseShape& shape = cache.shape();
  for (std::int32_t s = 0; s < cache.num_sequences(); ++s) {
    query_start_.push_back(query_start_.back() +
                           std::min(queries, shape.lengths[static_cast<std::size_t>(s)]));
  }
  const DType dtype = query_dtype(shape.dtype);
  const std::size_t heads = num_heads();
  q_.resize(static_cast<std::size_t>(num_rows()) * heads * row_bytes(dtype));
  out_.resize(static_cast<std::size_t>(num_rows()) * heads * kHeadDim);
  const RowsView rows = rows_of(q_.data(), num_rows(), static_cast<std::int32_t>(heads), dtype);
  float values[kHeadDim];
  for (std::int32_t row = 0; row < num_rows(); ++row) {
    for (std::int32_t head = 0; head < rows.num_heads; ++head) {
      const std::int64_t key =
          (std::int64_t{row} * kKvHeads + head / q_per_kv) * kMostQueriesPerKv + head % q_per_kv;
      fill_random(static_cast<std::uint64_t>(key) | std::uint64_t{1} << 60, values, kHeadDim);
      for (float& value : values) value *= 2.0F;  // scores of a deviation near 1
      RowsView from = rows_of(reinterpret_cast<std::byte*>(values), 1, 1, DType::kF32);
      RowsView to = rows_of(rows.at(row, head), 1, 1, dtype);
      require(convert(from, to), "convert");
    }
  }
  q_rows_ = rows;
  std::int64_t bytes = 0;
  const std::int32_t longest = *std::max_element(shape.lengths.begin(), shape.lengths.end());
  for (const std::int32_t threads : context.thread_counts) {
    for (const KernelTarget target : {context.target(), KernelTarget::kReference}) {
      bytes = std::max(bytes, take(attention_workspace_bytes(cache.view(), rows.num_heads, longest,
                                                             target, threads),
                                   "a workspace"));
    }
  }
  workspace_.resize(static_cast<std::size_t>(bytes));
}

AttentionArgs AttentionCall::args() {
  AttentionArgs args;
  args.cache = cache_.view();
  args.batch = {.query_start = query_start_,
                .kv_lens = cache_.shape().lengths,
                .block_table = cache_.table(),
                .block_table_stride = cache_.table_stride()};
  args.params = {.scale = 1.0 / std::sqrt(double{kHeadDim})};
  args.q = q_rows_;
  args.out = rows_of(reinterpret_cast<std::byte*>(out_.data()), num_rows(), q_rows_.num_heads,
                     DType::kF32);
  args.workspace = workspace_;
  args.target = context_.target();
  return args;
}

void AttentionCall::run(std::int32_t threads) {
  AttentionArgs args = this->args();
  if (threads > 1) args.executor = &context_.executor(threads);
  for (args.layer = 0; args.layer < cache_.shape().num_layers; ++args.layer) {
    const Status done = attend(args);
    if (!done.ok()) require(done, "attend over " + name_of(cache_.shape()));
  }
}

void AttentionCall::run_reference(std::int32_t row, std::int32_t kv_head) {
  AttentionArgs args = this->args();
  args.layer = cache_.shape().num_layers - 1;
  args.target = KernelTarget::kReference;
  args.slice = {.first_row = row, .num_rows = 1, .first_kv_head = kv_head, .num_kv_heads = 1};
  require(attend(args), "the reference over " + name_of(cache_.shape()));
}

double AttentionCall::operations() const {
  double scores = 0;  // of one query head
  for (std::size_t s = 0; s + 1 < query_start_.size(); ++s) {
    const double queries = query_start_[s + 1] - query_start_[s];
    const double length = cache_.shape().lengths[s];
    scores += queries * length - queries * (queries - 1) / 2;
  }
  return scores * 4 * kHeadDim * static_cast<double>(num_heads()) * cache_.shape().num_layers;
}

Expected::Expected(const Context& context, const CachedCase& cache, std::int32_t queries,
                   std::int32_t most) {
  AttentionCall call(context, cache, kMostQueriesPerKv, queries);
  const std::int32_t count = std::min(most, call.num_rows());
  for (std::int32_t i = 0; i < count; ++i) {
    Row row;
    // The first, the last and some between.
    row.row = count == 1
                  ? call.num_rows() - 1
                  : static_cast<std::int32_t>(std::int64_t{call.num_rows() - 1} * i / (count - 1));
    row.kv_head = i % kKvHeads;
    call.run_reference(row.row, row.kv_head);
    const float* out = call.row(row.row, row.kv_head, 0);
    row.out.assign(out, out + kMostQueriesPerKv * kHeadDim);
    rows_.push_back(std::move(row));
  }
}

void Expected::check(AttentionCall& call, const Context& context, const CaseShape& shape) {
  const std::string what = context.target_name() + " over " + name_of(shape) + ", " +
                           std::to_string(call.q_per_kv()) + " query heads per KV head";
  for (const std::int32_t threads : context.thread_counts) {
    call.run(threads);
    for (const Row& expected : rows_) {
      for (std::int32_t g = 0; g < call.q_per_kv(); ++g) {
        const float* got = call.row(expected.row, expected.kv_head, g);
        const float* wanted = expected.out.data() + g * kHeadDim;
        double error = 0;
        double length = 0;
        for (std::int32_t d = 0; d < kHeadDim; ++d) {
          error += std::pow(double{got[d]} - double{wanted[d]}, 2);
          length += std::pow(double{wanted[d]}, 2);
        }
        const double relative = std::sqrt(error / length);
        if (relative <= tolerance(shape.dtype)) continue;
        char digits[64];
        std::snprintf(digits, sizeof digits, "%.3g, allowed: %.3g", relative,
                      tolerance(shape.dtype));
        throw WrongResult(what + ", " + std::to_string(threads) + " threads: row " +
                          std::to_string(expected.row) + ", query head " + std::to_string(g) +
                          " of KV head " + std::to_string(expected.kv_head) +
                          " differs from the reference by " + digits);
      }
    }
    const std::uint64_t hash = hash_of(call.out());
    const auto known = std::find_if(hashes_.begin(), hashes_.end(), [&](const auto& entry) {
      return entry.first == call.q_per_kv();
    });
    if (known == hashes_.end()) {
      hashes_.emplace_back(call.q_per_kv(), hash);
    } else {
      require(known->second == hash, what + ", " + std::to_string(threads) +
                                         " threads: other bits than with one thread, or than "
                                         "over another format or block size");
    }
  }
}

}  // namespace kvfolio::bench
