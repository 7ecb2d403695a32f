// SPDX-License-Identifier: Apache-2.0
//
// A cache to a file and back. The other side writes and reads the same number of bytes, 1 MiB in a
// call, in the same folder. Wall time: a file system works on its own, too. Nothing is forced to
// the medium on either side.

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "families.h"
#include "kvfolio/manager.h"
#include "kvfolio/snapshot.h"
#include "kvfolio/storage.h"

namespace kvfolio::bench {
namespace {

template <typename Call>
double wall_ns(Call&& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

// A file without a name, and where it lies.
class Scratch {
 public:
  Scratch() {
    const char* folder = std::getenv("TMPDIR");
    std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/kvfolio-bench.XXXXXX";
    file_ = ::mkostemp(path.data(), O_CLOEXEC);
    require(file_ >= 0, "a file in " + path);
    ::unlink(path.c_str());
  }
  ~Scratch() { ::close(file_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void rewind() { at_ = 0; }
  void write(std::span<const std::byte> bytes) {
    const ssize_t n = ::pwrite(file_, bytes.data(), bytes.size(), at_);
    require(n == static_cast<ssize_t>(bytes.size()), "a write");
    at_ += n;
  }
  void read_at(std::int64_t offset, std::span<std::byte> out) const {
    const ssize_t n = ::pread(file_, out.data(), out.size(), offset);
    require(n == static_cast<ssize_t>(out.size()), "a read");
  }
  // In one call each, as FileSink and FileSource do.
  void write_pieces(std::span<const std::span<const std::byte>> pieces) {
    const std::int64_t bytes = take(pieces);
    require(::pwritev(file_, vector_.data(), static_cast<int>(vector_.size()), at_) == bytes,
            "a write of pieces");
    at_ += bytes;
  }
  void read_pieces_at(std::int64_t offset, std::span<const std::span<std::byte>> pieces) {
    const std::int64_t bytes = take(pieces);
    require(::preadv(file_, vector_.data(), static_cast<int>(vector_.size()), offset) == bytes,
            "a read of pieces");
  }
  [[nodiscard]] std::int64_t size() const { return at_; }

 private:
  template <typename Pieces>
  std::int64_t take(const Pieces& pieces) {
    std::int64_t bytes = 0;
    vector_.clear();
    for (const auto piece : pieces) {
      vector_.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
      bytes += static_cast<std::int64_t>(piece.size());
    }
    return bytes;
  }

  std::vector<iovec> vector_;
  int file_ = -1;
  std::int64_t at_ = 0;
};

class Stream final : public ByteSink, public ByteSource {
 public:
  explicit Stream(Scratch& file) : file_(file) {}
  Status write(std::span<const std::byte> bytes) override {
    file_.write(bytes);
    return {};
  }
  Status write_pieces(std::span<const std::span<const std::byte>> pieces) override {
    file_.write_pieces(pieces);
    return {};
  }
  [[nodiscard]] std::int64_t size() const override { return file_.size(); }
  Status read_at(std::int64_t offset, std::span<std::byte> out) override {
    file_.read_at(offset, out);
    return {};
  }
  Status read_pieces_at(std::int64_t offset,
                        std::span<const std::span<std::byte>> pieces) override {
    file_.read_pieces_at(offset, pieces);
    return {};
  }

 private:
  Scratch& file_;
};

CacheSpec spec_of(std::int32_t num_blocks) {
  return {.groups = {{.num_layers = 8,
                      .num_kv_heads = 4,
                      .head_dim_k = 128,
                      .head_dim_v = 128,
                      .dtype = DType::kBF16,
                      .num_blocks = num_blocks}}};
}

KVCacheManager make_manager(std::int32_t num_blocks) {
  KVCacheManager manager = take(
      KVCacheManager::create(take(KVStorage::create(spec_of(num_blocks)), "storage")), "manager");
  require(manager.storage()->fill(std::byte{1}), "fill");
  return manager;
}

// A pool full of prompts of 32 blocks.
void compute(KVCacheManager& manager, std::int32_t num_blocks) {
  std::vector<std::int32_t> tokens(512);
  for (std::int32_t prompt = 0; prompt < num_blocks / 32; ++prompt) {
    std::iota(tokens.begin(), tokens.end(), prompt * 1000);
    const auto opened = take(manager.open(tokens), "open");
    const Ticket ticket = take(manager.begin_step(), "begin_step");
    require(manager.append(opened.sequence, tokens), "append");
    require(manager.run_copies(), "run_copies");
    require(manager.finish(ticket), "finish");
    require(manager.close(opened.sequence), "close");
  }
}

Figure figure_of(const char* name, std::int64_t bytes, const char* note) {
  Figure figure{.name = name};
  figure.facts = {{"mib", bytes >> 20}, {"block_kib", std::int64_t{256}}};
  figure.unit = "GB/s";
  figure.lower_is_better = false;
  figure.promise = Promise{0.7, 0.9};
  figure.promise_is_ratio = true;
  figure.note = note;
  return figure;
}

}  // namespace

void measure_snapshot(Session& session) {
  const std::int32_t num_blocks = session.size(1024, 64);
  KVCacheManager manager = make_manager(num_blocks);
  compute(manager, num_blocks);
  const Identity identity = take(Identity::create({.model = "bench",
                                                   .weights = "1",
                                                   .tokenizer = "1",
                                                   .model_dtype = "bf16",
                                                   .positions = "1",
                                                   .engine = "1"},
                                                  manager.spec()),
                                 "identity");
  Scratch file;
  Scratch plain;
  Stream stream(file);
  const auto save_all = [&] {
    file.rewind();
    const SaveStats stats = take(save(manager, identity, stream), "save");
    require(stats.records == num_blocks, "all blocks are saved");
    return stats.bytes;
  };
  const std::int64_t bytes = save_all();
  // From and into memory of that size, as the other side: one buffer would stay in the caches.
  const Buffer memory(bytes + (1 << 20));
  std::memset(memory.data(), 1, memory.size());
  const auto gigabytes = [&](double ns) { return static_cast<double>(bytes) / ns; };
  const auto write_plain = [&] {
    plain.rewind();
    for (std::int64_t at = 0; at < bytes; at += 1 << 20) {
      plain.write({memory.data() + at, std::size_t{1} << 20});
    }
  };
  write_plain();
  if (session.wants("tiers.save")) {
    session.measure(
        figure_of("tiers.save", bytes, "wall time; ceiling: writes of 1 MiB"),
        [&] { return gigabytes(wall_ns(save_all)); },
        [&] { return gigabytes(wall_ns(write_plain)); });
  }
  if (!session.wants("tiers.restore")) return;
  KVCacheManager other = make_manager(num_blocks);
  const auto restore_all = [&] {
    other.reset();
    return wall_ns([&] {
      const RestoreStats stats = take(restore(other, identity, stream), "restore");
      require(stats.records_loaded == num_blocks, "all blocks are restored");
    });
  };
  const auto read_plain = [&] {
    return wall_ns([&] {
      for (std::int64_t at = 0; at + (1 << 20) <= bytes; at += 1 << 20) {
        plain.read_at(at, {memory.data() + at, std::size_t{1} << 20});
      }
      keep(memory.data());
    });
  };
  restore_all();
  read_plain();
  session.measure(
      figure_of("tiers.restore", bytes, "wall time; ceiling: reads of 1 MiB"),
      [&] { return gigabytes(restore_all()); }, [&] { return gigabytes(read_plain()); });
}

}  // namespace kvfolio::bench
