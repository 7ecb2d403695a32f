// SPDX-License-Identifier: Apache-2.0
#include "npy.h"

#include <bit>
#include <utility>

namespace kvfolio::tools {
namespace {

static_assert(std::endian::native == std::endian::little, "the header says '<f4'");

// Magic, version and length take 10 bytes; the whole header is a multiple of 64.
constexpr std::size_t kHeaderBytes = 128;

std::string header(std::int64_t rows, std::int32_t columns) {
  std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(rows) +
                     ", " + std::to_string(columns) + "), }";
  text.resize(kHeaderBytes - 11, ' ');
  text += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(text.size() & 0xff);
  out += static_cast<char>(text.size() >> 8);
  return out + text;
}

}  // namespace

NpyWriter::NpyWriter(std::string path, std::int32_t num_columns)
    : path_(std::move(path)),
      file_(path_, std::ios::binary | std::ios::trunc),
      num_columns_(num_columns) {
  file_ << header(0, num_columns_);
}

Result<NpyWriter> NpyWriter::create(const std::string& path, std::int32_t num_columns) {
  NpyWriter writer(path, num_columns);
  if (!writer.file_) {
    return Status(ErrorCode::kInvalidArgument, path + ": cannot be written");
  }
  return writer;
}

void NpyWriter::row(std::span<const float> values) {
  file_.write(reinterpret_cast<const char*>(values.data()),
              static_cast<std::streamsize>(values.size_bytes()));
  ++num_rows_;
}

Status NpyWriter::finish() {
  file_.seekp(0);
  file_ << header(num_rows_, num_columns_);
  file_.close();
  if (!file_) return Status(ErrorCode::kInvalidArgument, path_ + ": writing failed");
  return {};
}

}  // namespace kvfolio::tools
