// SPDX-License-Identifier: Apache-2.0
#include "tensor_files.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "files.h"
#include "invalid.h"
#include "json.h"
#include "kvfolio/dtype.h"

namespace kvfolio::llama {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // as the format's own reader has it
constexpr std::int64_t kMaxIndexBytes = 50'000'000;
constexpr std::size_t kMaxShards = 1000;
constexpr std::size_t kMaxTensors = 100'000;
constexpr std::int64_t kPieceBytes = 1 << 20;

// Converts `count` elements; false when one of them is not finite.
template <typename Element, typename Convert>
bool convert(const std::byte* from, std::int64_t count, float* to, Convert convert_one) {
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, from + i * static_cast<std::int64_t>(sizeof element), sizeof element);
    to[i] = convert_one(element);
    finite &= std::isfinite(to[i]);
  }
  return finite;
}

bool convert_to_f32(std::string_view dtype, const std::byte* from, std::int64_t count, float* to) {
  if (dtype == "F32") return convert<float>(from, count, to, [](float value) { return value; });
  if (dtype == "F16") return convert<std::uint16_t>(from, count, to, f32_from_f16);
  return convert<std::uint16_t>(from, count, to, f32_from_bf16);
}

}  // namespace

Result<TensorFiles> TensorFiles::open(const std::string& folder) {
  TensorFiles files;
  const std::string single = folder + "/model.safetensors";
  const std::string index = folder + "/model.safetensors.index.json";
  if (file_exists(single)) {
    files.name_ = single;
    KVFOLIO_RETURN_IF_ERROR(files.add_file(single));
  } else if (file_exists(index)) {
    files.name_ = index;
    KVFOLIO_RETURN_IF_ERROR(files.add_shards(folder, index));
  } else {
    return invalid(folder + ": has neither model.safetensors nor model.safetensors.index.json");
  }
  return files;
}

Status TensorFiles::add_file(const std::string& path) {
  Result<InputFile> file = InputFile::open(path);
  if (!file) return std::move(file).error();
  std::uint64_t length = 0;
  if (file->bytes() < kLengthBytes) {
    return invalid(path + ": has " + std::to_string(file->bytes()) +
                   " bytes, a safetensors file begins with 8 bytes of header length");
  }
  KVFOLIO_RETURN_IF_ERROR(file->read(0, &length, sizeof length));
  const auto rest = static_cast<std::uint64_t>(file->bytes() - kLengthBytes);
  if (length > rest || length > kMaxHeaderBytes) {
    return invalid(path + ": header length is " + std::to_string(length) + ", at most " +
                   std::to_string(std::min<std::uint64_t>(rest, kMaxHeaderBytes)) +
                   " is possible in this file");
  }
  std::string header(static_cast<std::size_t>(length), '\0');
  KVFOLIO_RETURN_IF_ERROR(file->read(kLengthBytes, header.data(), header.size()));
  auto tensors = parse_safetensors_header(header, file->bytes());
  if (!tensors) return invalid(path + ": " + tensors.error().message());

  const auto index = static_cast<std::int32_t>(paths_.size());
  paths_.push_back(path);
  for (auto& [name, tensor] : *tensors) {
    if (tensors_.size() >= kMaxTensors) {
      return invalid(path + ": the checkpoint has more than " + std::to_string(kMaxTensors) +
                     " tensors");
    }
    tensor.file = index;
    if (const auto [other, added] = tensors_.try_emplace(name, std::move(tensor)); !added) {
      return invalid(path + ": tensor " + in_quotes(name) + " is also in " +
                     paths_[static_cast<std::size_t>(other->second.file)]);
    }
  }
  return Status();
}

Status TensorFiles::add_shards(const std::string& folder, const std::string& index_path) {
  Result<std::string> text = read_text_file(index_path, kMaxIndexBytes);
  if (!text) return std::move(text).error();
  Result<Json> json = parse_json(*text);
  if (!json) return invalid(index_path + ": " + json.error().message());
  const Json* weight_map = json->find("weight_map");
  const Json::Object* entries = weight_map != nullptr ? weight_map->as_object() : nullptr;
  if (entries == nullptr) {
    return invalid(index_path + ": weight_map must be an object of file names");
  }

  std::set<std::string> shards;
  for (const auto& [tensor, value] : *entries) {
    const std::string* file = value.as_string();
    if (file == nullptr) {
      return invalid(index_path + ": weight_map " + in_quotes(tensor) + " is " + value.describe() +
                     ", must be a file name");
    }
    if (file->empty() || *file == "." || *file == ".." ||
        file->find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      return invalid(index_path + ": weight_map " + in_quotes(tensor) + " is " + in_quotes(*file) +
                     ", must be the name of a file in the same folder");
    }
    shards.insert(*file);
  }
  if (shards.size() > kMaxShards) {
    return invalid(index_path + ": weight_map names " + std::to_string(shards.size()) +
                   " files, at most " + std::to_string(kMaxShards) + " are allowed");
  }
  for (const std::string& shard : shards) {
    KVFOLIO_RETURN_IF_ERROR(add_file(folder + "/" + shard));
  }
  // The index and the shards must tell the same: otherwise one of them belongs to another model.
  for (const auto& [tensor, value] : *entries) {
    const auto found = tensors_.find(tensor);
    const std::string path = folder + "/" + *value.as_string();
    if (found == tensors_.end() || paths_[static_cast<std::size_t>(found->second.file)] != path) {
      return invalid(index_path + ": weight_map says that tensor " + in_quotes(tensor) + " is in " +
                     path + ", but it is not there");
    }
  }
  if (tensors_.size() != entries->size()) {
    std::unordered_set<std::string_view> listed;
    for (const Json::Member& entry : *entries) listed.insert(entry.first);
    for (const auto& [tensor, info] : tensors_) {
      if (!listed.contains(tensor)) {
        return invalid(paths_[static_cast<std::size_t>(info.file)] + ": tensor " +
                       in_quotes(tensor) + " is not in the weight_map of " + index_path);
      }
    }
  }
  return Status();
}

std::string TensorFiles::place_of(const std::string& tensor, const TensorInfo& info) const {
  return paths_[static_cast<std::size_t>(info.file)] + ": tensor " + in_quotes(tensor);
}

Status TensorFiles::check(const std::string& tensor, std::span<const std::int64_t> shape) const {
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end())
    return invalid(name_ + ": tensor " + in_quotes(tensor) + " is missing");
  const TensorInfo& info = found->second;
  if (!std::equal(shape.begin(), shape.end(), info.shape.begin(), info.shape.end())) {
    return invalid(place_of(tensor, info) + " has shape " + shape_text(info.shape) +
                   ", the config asks for " + shape_text(shape));
  }
  if (info.dtype != "F32" && info.dtype != "F16" && info.dtype != "BF16") {
    return Status(ErrorCode::kUnsupported, place_of(tensor, info) + " has dtype " + info.dtype +
                                               ", supported are F32, F16 and BF16");
  }
  return Status();
}

Status TensorFiles::read(const std::string& tensor, std::span<const std::int64_t> shape,
                         const std::function<void(std::int32_t, const float*)>& row) const {
  KVFOLIO_RETURN_IF_ERROR(check(tensor, shape));
  const TensorInfo& info = tensors_.find(tensor)->second;
  const std::string& path = paths_[static_cast<std::size_t>(info.file)];
  Result<InputFile> file = InputFile::open(path);
  if (!file) return std::move(file).error();

  const std::int64_t num_cols = shape.back();
  const std::int64_t num_rows = shape.size() == 2 ? shape[0] : 1;
  const std::int64_t row_bytes = num_cols * (info.dtype == "F32" ? 4 : 2);
  const std::int64_t piece_rows = std::clamp<std::int64_t>(kPieceBytes / row_bytes, 1, num_rows);
  std::vector<std::byte> piece(static_cast<std::size_t>(piece_rows * row_bytes));
  std::vector<float> values(static_cast<std::size_t>(num_cols));
  for (std::int64_t first = 0; first < num_rows; first += piece_rows) {
    const std::int64_t count = std::min(piece_rows, num_rows - first);
    KVFOLIO_RETURN_IF_ERROR(file->read(info.begin + first * row_bytes, piece.data(),
                                       static_cast<std::size_t>(count * row_bytes)));
    for (std::int64_t r = 0; r < count; ++r) {
      if (!convert_to_f32(info.dtype, piece.data() + r * row_bytes, num_cols, values.data())) {
        return invalid(place_of(tensor, info) + " has a value that is not finite in row " +
                       std::to_string(first + r));
      }
      row(static_cast<std::int32_t>(first + r), values.data());
    }
  }
  return Status();
}

}  // namespace kvfolio::llama
