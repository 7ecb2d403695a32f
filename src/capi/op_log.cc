// SPDX-License-Identifier: Apache-2.0
//
// The operation log.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "capi/capi.h"

namespace kvfolio::capi {
namespace {

class CallerSink final : public ByteSink {
 public:
  explicit CallerSink(const kvfolio_byte_sink& sink) noexcept : sink_(sink) {}
  Status write(std::span<const std::byte> bytes) override {
    const auto n = static_cast<std::int64_t>(bytes.size());
    return status_of(sink_.write(sink_.context, bytes.data(), n), "write()");
  }

 private:
  kvfolio_byte_sink sink_;
};

// Owns the descriptor.
class DescriptorSink final : public ByteSink {
 public:
  explicit DescriptorSink(int fd) noexcept : fd_(fd) {}
  ~DescriptorSink() override { ::close(fd_); }
  DescriptorSink(const DescriptorSink&) = delete;
  DescriptorSink& operator=(const DescriptorSink&) = delete;
  Status write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        return {ErrorCode::kUnavailable, concat("the operation log cannot be written: ",
                                                n < 0 ? strerrordesc_np(errno) : "")};
      }
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return {};
  }

 private:
  int fd_;
};

std::int32_t give_log(std::string_view call, std::unique_ptr<ByteSink> sink,
                      std::int32_t flush_each_call, kvfolio_op_log** out, kvfolio_error* error) {
  auto* const log = new (std::nothrow) kvfolio_op_log{};
  if (log == nullptr) return answer(error, no_memory(call));
  log->calls = std::make_shared<RecordedCalls>(
      std::move(sink), OpLogOptions{.flush_each_call = flush_each_call != 0});
  *out = log;
  return KVFOLIO_OK;
}

}  // namespace
}  // namespace kvfolio::capi

using namespace kvfolio;        // NOLINT(google-build-using-namespace)
using namespace kvfolio::capi;  // NOLINT(google-build-using-namespace)

extern "C" {

int32_t kvfolio_op_log_create_fd(int32_t fd, int32_t flush_each_call, kvfolio_op_log** out,
                                 kvfolio_error* error) {
  KVFOLIO_C_NEEDS(out);
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) {
    return answer(error, {ErrorCode::kInvalidArgument,
                          concat(__func__, ": fd is ", fd, ", which is not open for writing")});
  }
  return give_log(__func__, std::make_unique<DescriptorSink>(fd), flush_each_call, out, error);
}

int32_t kvfolio_op_log_create(const kvfolio_byte_sink* sink, int32_t flush_each_call,
                              kvfolio_op_log** out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(sink);
  KVFOLIO_C_NEEDS(out);
  kvfolio_byte_sink ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_struct(__func__, "sink", sink, ours));
  if (ours.write == nullptr) return answer(error, null_argument(__func__, "sink->write"));
  return give_log(__func__, std::make_unique<CallerSink>(ours), flush_each_call, out, error);
}

int32_t kvfolio_record(kvfolio_manager* manager, kvfolio_op_log* log, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  manager->manager.record(log == nullptr ? nullptr : &log->calls->log);
  manager->log = log == nullptr ? nullptr : log->calls;
  return KVFOLIO_OK;
}

int32_t kvfolio_op_log_flush(kvfolio_op_log* log, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(log);
  return answer(error, log->calls->log.flush());
}

int32_t kvfolio_op_log_status(const kvfolio_op_log* log, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(log);
  return answer(error, log->calls->log.status());
}

int64_t kvfolio_op_log_num_calls(const kvfolio_op_log* log) {
  return log == nullptr ? 0 : static_cast<int64_t>(log->calls->log.num_calls());
}

void kvfolio_op_log_destroy(kvfolio_op_log* log) { delete log; }

}  // extern "C"
