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

NpyWriter::NpyWriter(WholeFile file, std::int32_t num_columns)
    : file_(std::move(file)), num_columns_(num_columns) {}

Result<NpyWriter> NpyWriter::create(const std::string& path, std::int32_t num_columns) {
  Result<WholeFile> file = WholeFile::create(path);
  if (!file) return std::move(file).error();
  return NpyWriter(*std::move(file), num_columns);
}

void NpyWriter::begin(std::int64_t num_rows) {
  rows_left_ = num_rows;
  file_.write(header(num_rows, num_columns_));
}

void NpyWriter::row(std::span<const float> values) {
  KVFOLIO_CHECK(std::ssize(values) == num_columns_ && rows_left_ > 0);
  file_.write({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  --rows_left_;
}

Status NpyWriter::finish() {
  KVFOLIO_CHECK(rows_left_ == 0);
  return file_.finish();
}

}  // namespace kvfolio::tools
