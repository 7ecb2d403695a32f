// SPDX-License-Identifier: Apache-2.0
#include "model_identity.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "sha256.h"

namespace kvfolio::tools {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;

Status add_file(Sha256& sha, const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (!file || error) return {ErrorCode::kUnavailable, path.string() + ": cannot be read"};
  const std::string head = path.filename().string() + " " + std::to_string(size) + "\n";
  sha.update(std::as_bytes(std::span(head)));
  std::vector<char> piece(kPiece);
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    sha.update(std::as_bytes(std::span(piece).first(static_cast<std::size_t>(file.gcount()))));
  }
  if (file.bad()) return {ErrorCode::kUnavailable, path.string() + ": cannot be read"};
  return {};
}

}  // namespace

Result<CheckpointIdentity> checkpoint_identity(const std::string& folder, KernelTarget kernel,
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
    if (Status status = add_file(sha, path); !status.ok()) return status;
  }
  return CheckpointIdentity{.model = "checkpoint in the Hugging Face form",
                            .weights = sha.hex(),
                            .engine = std::string("kvfolio example engine 1, kernel ") +
                                      to_string(kernel) + ", matmul " + matmul};
}

}  // namespace kvfolio::tools
