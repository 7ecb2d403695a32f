// SPDX-License-Identifier: Apache-2.0
#include "model_identity.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "files.h"
#include "sha256.h"

namespace kvfolio::tools {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;

Status hash_file(Sha256& sha, const std::filesystem::path& path) {
  const Result<llama::InputFile> file = llama::InputFile::open(path.string());
  if (!file) return file.error();
  const std::string head = path.filename().string() + " " + std::to_string(file->bytes()) + "\n";
  sha.update(std::as_bytes(std::span(head)));
  std::vector<std::byte> room(kPiece);
  for (std::int64_t at = 0; at < file->bytes(); at += std::ssize(room)) {
    const std::int64_t left = file->bytes() - at;
    const auto piece = std::span(room).first(std::min(room.size(), static_cast<std::size_t>(left)));
    KVFOLIO_RETURN_IF_ERROR(file->read(at, piece.data(), piece.size()));
    sha.update(piece);
  }
  return {};
}

}  // namespace

Result<CheckpointIdentity> checkpoint_identity(const std::string& folder, const std::string& kernel,
                                               const std::string& matmul) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const auto& path = entry.path();
    if (path.extension() == ".safetensors" || path.filename() == "config.json") {
      files.push_back(path);
    }
  }
  if (error) return Status(ErrorCode::kUnavailable, folder + ": " + error.message());
  std::sort(files.begin(), files.end());
  Sha256 sha;
  for (const auto& path : files) {
    if (Status status = hash_file(sha, path); !status.ok()) return status;
  }
  return CheckpointIdentity{
      .model = "checkpoint in the Hugging Face form",
      .weights = sha.hex(),
      .engine = std::string("kvfolio example engine 1, kernel ") + kernel + ", matmul " + matmul};
}

}  // namespace kvfolio::tools
