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
    : file_(std::move(file)), num_columns_(num_columns) {
  file_.stream() << header(0, num_columns_);
}

Result<NpyWriter> NpyWriter::create(const std::string& path, std::int32_t num_columns) {
  Result<WholeFile> file = WholeFile::create(path);
  if (!file) return std::move(file).error();
  return NpyWriter(*std::move(file), num_columns);
}

void NpyWriter::row(std::span<const float> values) {
  file_.stream().write(reinterpret_cast<const char*>(values.data()),
                       static_cast<std::streamsize>(values.size_bytes()));
  ++num_rows_;
}

Status NpyWriter::finish() {
  file_.stream().seekp(0);
  file_.stream() << header(num_rows_, num_columns_);
  return file_.finish();
}

}  // namespace kvfolio::tools
