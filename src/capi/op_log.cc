// SPDX-License-Identifier: Apache-2.0
//
// The operation log.

#include "capi/capi.h"

namespace kvfolio::capi {
namespace {

class CallerSink final : public ByteSink {
 public:
  explicit CallerSink(const kvfolio_byte_sink& sink) noexcept : sink_(sink) {}
  Status write(std::span<const std::byte> bytes) override {
    const std::int32_t code =
        sink_.write(sink_.context, bytes.data(), static_cast<std::int64_t>(bytes.size()));
    if (code == 0) return {};
    return {ErrorCode::kUnavailable, concat("the caller's write() of ", bytes.size(),
                                            " bytes of the operation log returned ", code)};
  }

 private:
  kvfolio_byte_sink sink_;
};

std::int32_t give(std::string_view call, std::unique_ptr<ByteSink> sink,
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

int32_t kvfolio_op_log_create(const kvfolio_byte_sink* sink, int32_t flush_each_call,
                              kvfolio_op_log** out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(sink);
  KVFOLIO_C_NEEDS(out);
  kvfolio_byte_sink ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_struct(__func__, "sink", sink, ours));
  if (ours.write == nullptr) return answer(error, null_argument(__func__, "sink->write"));
  return give(__func__, std::make_unique<CallerSink>(ours), flush_each_call, out, error);
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
