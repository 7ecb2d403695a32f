// SPDX-License-Identifier: Apache-2.0
#pragma once

// TokenStore holds one sequence: a row of K for each token, and a row of V if the store has V. It
// is for programs that have no use for a manager: no ids, no steps, no sharing. It knows rows, but
// no token ids and no other sequence.
//
//   TokenStore store = *TokenStore::create({.head_dim_k = 8, .dtype = DType::kF64,
//                                           .max_tokens = 4096});
//   std::vector<double> row(8);
//   Status status = store.append(row);                    // kResourceExhausted: it is full
//   std::span<const double> first = *store.at<double>(0);  // where it lies, without a copy
//
// A row of K has num_kv_heads * head_dim_k elements, a row of V num_kv_heads * head_dim_v; the
// heads of a token follow each other. Rows lie in blocks of block_size tokens (KVStorage in format
// NHD, one layer, blocks in order), so token i is in block i / block_size. Invariant: 0 <= size()
// <= max_tokens().
//
// A store of f64, f32, f16 or bf16 keeps rows of its own type bit for bit, and converts others by
// the rules of dtype.h. Types with scales (has_scales()) take rows of any of these types and keep a
// scale for each token and head; gather() and read() turn them back. The bytes are those that
// append() of kernels.h writes. Elements that are given as std::uint16_t are the bits of the
// store's own type, f16 or bf16.
//
// Memory for max_tokens is taken at creation. HostMemory backs a page when it is first written, so
// tokens that never come cost address space only. A row never moves: a span of at() stays valid
// until the store is destroyed or assigned to, and a move passes it on. Its elements stay until an
// append after clear().
//
// Every argument is checked before the first byte is written: a call that fails changes nothing.
// Nothing takes heap memory after create() but copy(), to_string() and the text of an error. A
// moved-from store holds 0 of 0 tokens.
//
// Thread safety: several threads may run const calls at the same time while no other call runs. If
// the store was given a resource, copy() calls it, under the rules of memory.h.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "kvfolio/dtype.h"
#include "kvfolio/export.h"
#include "kvfolio/memory.h"
#include "kvfolio/status.h"
#include "kvfolio/storage.h"
#include "kvfolio/view.h"

namespace kvfolio {

struct TokenStoreOptions {
  std::int32_t head_dim_k = 0;    // 1 .. 2^20
  std::int32_t head_dim_v = 0;    // 0 .. 2^20; 0: there is no V, only one vector per token
  std::int32_t num_kv_heads = 1;  // 1 .. 2^20
  DType dtype = DType::kF32;
  std::int32_t block_size = 16;  // tokens, 1 .. 1024
  // The exact cap, whatever the block size is: 1 .. 2^30.
  std::int32_t max_tokens = 0;

  friend bool operator==(const TokenStoreOptions&, const TokenStoreOptions&) = default;
};

class TokenStore {
 public:
  // `resource` must outlive the store and its copies; null: HostMemory of the store's own.
  // kInvalidArgument: an option, with its value and what is allowed; sizes that overflow 63 bits.
  // kUnsupported: the CPU may not touch the resource's memory. kOutOfMemory: the bytes that were
  // asked, and the resource's error.
  KVFOLIO_API static Result<TokenStore> create(const TokenStoreOptions& options,
                                               MemoryResource* resource = nullptr);

  KVFOLIO_API TokenStore(TokenStore&& other) noexcept;
  KVFOLIO_API TokenStore& operator=(TokenStore&& other) noexcept;
  TokenStore(const TokenStore&) = delete;
  TokenStore& operator=(const TokenStore&) = delete;
  ~TokenStore() = default;

  // A store of its own with the same options and tokens. It copies the blocks in use and no others.
  // Errors: as create().
  [[nodiscard]] KVFOLIO_API Result<TokenStore> copy() const;

  // Appends any whole number of rows that follow each other, all or none; no elements: nothing. `v`
  // has as many rows as `k`, and is empty if the store has no V.
  // kInvalidArgument: a null pointer, elements that make no whole number of rows, another number of
  // rows of V than of K, a V that the store does not have or one that is missing; std::uint16_t for
  // a store that is neither f16 nor bf16. kResourceExhausted: "full: 4 of 4 tokens".
  Status append(std::span<const double> k, std::span<const double> v = {}) {
    return append_elements(k, v);
  }
  Status append(std::span<const float> k, std::span<const float> v = {}) {
    return append_elements(k, v);
  }
  Status append(std::span<const std::uint16_t> k, std::span<const std::uint16_t> v = {}) {
    return append_elements(k, v);
  }
  // The same for rows with any strides: k [tokens, num_kv_heads, head_dim_k], v [tokens,
  // num_kv_heads, head_dim_v] or empty, f64, f32, f16 or bf16 each.
  KVFOLIO_API Status append(const ConstRowsView& k, const ConstRowsView& v = {});

  // The row of K of token i, where it lies: double for f64, float for f32, std::uint16_t for f16
  // and bf16, std::byte for all three. kInvalidArgument: no such token, or T is not the store's
  // type. kUnsupported: the store is of a type with scales, whose elements mean nothing without
  // them.
  template <typename T = std::byte>
  [[nodiscard]] Result<std::span<const T>> at(std::int64_t i) const {
    return row_at<T>(k_, i);
  }
  // The row of V. kInvalidArgument also if the store has no V.
  template <typename T = std::byte>
  [[nodiscard]] Result<std::span<const T>> v_at(std::int64_t i) const {
    return row_at<T>(v_, i);
  }

  // Copies token i to one row each, converted to the element type of the spans. An empty span is
  // not written. kInvalidArgument: as gather(), and spans that are not one row.
  Status read(std::int64_t i, std::span<double> k, std::span<double> v = {}) const {
    return read_elements(i, k, v);
  }
  Status read(std::int64_t i, std::span<float> k, std::span<float> v = {}) const {
    return read_elements(i, k, v);
  }
  Status read(std::int64_t i, std::span<std::uint16_t> k, std::span<std::uint16_t> v = {}) const {
    return read_elements(i, k, v);
  }

  // Copies tokens begin, begin + 1, ... to as many rows as the spans hold, converted to their type.
  // An empty span is not written; otherwise both hold equally many rows.
  // kInvalidArgument: tokens that the store does not have, a V that it does not have, a null
  // pointer, elements that make no whole number of rows; std::uint16_t for a store that is neither
  // f16 nor bf16.
  Status gather(std::int64_t begin, std::span<double> k, std::span<double> v = {}) const {
    return gather_elements("gather", begin, elements_of(k), elements_of(v));
  }
  Status gather(std::int64_t begin, std::span<float> k, std::span<float> v = {}) const {
    return gather_elements("gather", begin, elements_of(k), elements_of(v));
  }
  Status gather(std::int64_t begin, std::span<std::uint16_t> k,
                std::span<std::uint16_t> v = {}) const {
    return gather_elements("gather", begin, elements_of(k), elements_of(v));
  }
  // The same for rows with any strides, f64, f32, f16 or bf16 each; null data: not written.
  KVFOLIO_API Status gather(std::int64_t begin, const RowsView& k, const RowsView& v = {}) const;

  // Forgets every token and keeps the memory.
  void clear() noexcept { size_ = 0; }

  [[nodiscard]] std::int32_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::int32_t max_tokens() const noexcept { return max_tokens_; }
  [[nodiscard]] const TokenStoreOptions& options() const noexcept { return options_; }
  [[nodiscard]] std::int32_t num_blocks() const noexcept { return blocks_for(max_tokens_); }
  [[nodiscard]] std::int32_t num_blocks_used() const noexcept { return blocks_for(size_); }
  // Bytes of all blocks, padding included: what was taken from the resource.
  [[nodiscard]] std::int64_t memory_bytes() const noexcept { return storage_.memory_bytes(); }
  // Bytes of the blocks that hold tokens.
  [[nodiscard]] std::int64_t bytes_used() const noexcept {
    return num_blocks_used() * view_.k_strides.block;
  }
  // For the kernels: layer 0, blocks in order, so the block table of the sequence is 0, 1, 2, ...
  // Valid as long as the memory.
  [[nodiscard]] const KVView& view() const noexcept { return view_; }

 private:
  // The rows of K, or those of V.
  struct Rows {
    std::byte* base = nullptr;
    std::int64_t row_bytes = 0;    // as they lie
    std::int64_t block_gap = 0;    // bytes from the end of a block's rows to those of the next one
    std::size_t num_elements = 0;  // of a row; 0: there are none
    std::string_view name;
  };
  // Elements of a caller: 8 bytes are f64, 4 are f32, 2 are of the store's own type.
  struct ConstElements {
    const std::byte* data = nullptr;
    std::size_t size = 0;
    std::int32_t element_bytes = 0;
  };
  struct Elements {
    std::byte* data = nullptr;
    std::size_t size = 0;
    std::int32_t element_bytes = 0;
  };

  TokenStore(KVStorage storage, const TokenStoreOptions& options, MemoryResource* resource);

  template <typename T>
  static ConstElements elements_of(std::span<const T> elements) noexcept {
    return {reinterpret_cast<const std::byte*>(elements.data()), elements.size(), sizeof(T)};
  }
  template <typename T>
  static Elements elements_of(std::span<T> elements) noexcept {
    return {reinterpret_cast<std::byte*>(elements.data()), elements.size(), sizeof(T)};
  }

  // Whether rows lie here as elements of T.
  template <typename T>
  [[nodiscard]] bool keeps() const noexcept {
    static_assert(
        std::is_same_v<T, double> || std::is_same_v<T, float> || std::is_same_v<T, std::uint16_t> ||
            std::is_same_v<T, std::byte>,
        "elements are double, float, std::uint16_t (f16, bf16) or std::byte (as they lie)");
    if constexpr (std::is_same_v<T, std::byte>) {
      return element_bytes_ != dtype_bytes(DType::kInt8);
    } else {
      return element_bytes_ == std::int32_t{sizeof(T)};
    }
  }
  [[nodiscard]] std::int32_t block_of(std::int32_t i) const noexcept {
    return shift_ >= 0 ? i >> shift_ : i / options_.block_size;
  }
  [[nodiscard]] std::int32_t blocks_for(std::int32_t tokens) const noexcept {
    return tokens == 0 ? 0 : block_of(tokens - 1) + 1;
  }
  // Requires: 0 <= i < max_tokens().
  [[nodiscard]] std::byte* address(const Rows& rows, std::int32_t i) const noexcept {
    return rows.base + i * rows.row_bytes + block_of(i) * rows.block_gap;
  }
  [[nodiscard]] bool has(std::int64_t i) const noexcept {
    return static_cast<std::uint64_t>(i) < static_cast<std::uint64_t>(size_);
  }
  // Whether these elements are one row, to be copied as it is.
  template <typename T>
  [[nodiscard]] static bool is_row(std::span<T> elements, const Rows& rows) noexcept {
    return elements.size() == rows.num_elements && elements.data() != nullptr;
  }

  // One row that is kept as given is written here; everything else takes the long way.
  template <typename T>
  Status append_elements(std::span<const T> k, std::span<const T> v) {
    const bool v_fits = v_.num_elements == 0 ? v.empty() : is_row(v, v_);
    if (!keeps<T>() || !is_row(k, k_) || !v_fits || size_ >= max_tokens_) [[unlikely]] {
      return append_slowly(elements_of(k), elements_of(v));
    }
    std::memcpy(address(k_, size_), k.data(), k.size_bytes());
    if (!v.empty()) std::memcpy(address(v_, size_), v.data(), v.size_bytes());
    ++size_;
    return {};
  }
  template <typename T>
  [[nodiscard]] Result<std::span<const T>> row_at(const Rows& rows, std::int64_t i) const {
    if (!has(i) || !keeps<T>() || rows.num_elements == 0) [[unlikely]] {
      return no_row(rows, i, std::is_same_v<T, std::byte> ? 0 : std::int32_t{sizeof(T)});
    }
    return std::span<const T>(
        reinterpret_cast<const T*>(address(rows, static_cast<std::int32_t>(i))),
        static_cast<std::size_t>(rows.row_bytes) / sizeof(T));
  }
  template <typename T>
  Status read_elements(std::int64_t i, std::span<T> k, std::span<T> v) const {
    const bool v_fits = v.empty() || is_row(v, v_);
    if (!has(i) || !keeps<T>() || !is_row(k, k_) || !v_fits) [[unlikely]] {
      return read_slowly(i, elements_of(k), elements_of(v));
    }
    const auto token = static_cast<std::int32_t>(i);
    std::memcpy(k.data(), address(k_, token), k.size_bytes());
    if (!v.empty()) std::memcpy(v.data(), address(v_, token), v.size_bytes());
    return {};
  }

  // The long way of each call: what it checks it says.
  KVFOLIO_API Status append_slowly(const ConstElements& k, const ConstElements& v);
  KVFOLIO_API Status read_slowly(std::int64_t i, const Elements& k, const Elements& v) const;
  KVFOLIO_API Status gather_elements(std::string_view call, std::int64_t begin, const Elements& k,
                                     const Elements& v) const;
  // Why at() has no row to give. element_bytes: of the type that was asked for.
  KVFOLIO_API Status no_row(const Rows& rows, std::int64_t i, std::int32_t element_bytes) const;

  // Rows that a caller's elements make.
  struct Shape {
    std::int64_t num_rows = 0;
    DType dtype = DType::kF32;
  };
  Result<Shape> shape_of(std::string_view call, const Rows& rows,
                         const ConstElements& elements) const;
  Status check_append(std::int64_t num_tokens, std::int64_t num_rows_v) const;
  Status check_range(std::string_view call, std::int64_t begin, std::int64_t count) const;
  // Both: rows are of this store's shape, and their tokens are there or have room. Null data is not
  // read, or not written.
  void copy_in(const ConstRowsView& k, const ConstRowsView& v) noexcept;
  void copy_out(std::int32_t begin, const RowsView& k, const RowsView& v) const noexcept;

  KVStorage storage_;
  TokenStoreOptions options_;
  MemoryResource* resource_ = nullptr;  // null: the storage's own
  KVView view_;
  Rows k_;
  Rows v_;
  std::int32_t element_bytes_ = 0;
  std::int32_t shift_ = 0;  // log2 of the block size; -1: it is no power of two
  std::int32_t size_ = 0;
  std::int32_t max_tokens_ = 0;
};

// "token store: 20 of 64 tokens of f64, K 1 x 8, no V; 2 of 4 blocks of 16 tokens in use, 2048 of
// 4096 bytes".
[[nodiscard]] KVFOLIO_API std::string to_string(const TokenStore& store);

template <typename Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out,
                                             const TokenStore& store) {
  return out << to_string(store);
}

}  // namespace kvfolio
