// SPDX-License-Identifier: Apache-2.0

#include "op_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "manager_state.h"

namespace kvfolio::python {
namespace {

Status failed(const std::string& path, const char* what, int error) {
  return {ErrorCode::kUnavailable, path + ": " + what + ": " + strerrordesc_np(error)};
}

// Keeps nothing.
class NoSink final : public ByteSink {
 public:
  Status write(std::span<const std::byte>) override { return {}; }
};

// Whether a log can begin, found out without ending one that goes on, whose calls say it.
Status may_begin(KVCacheManager& m, OpLogFile* now) {
  if (now != nullptr && now->log().num_calls() > 0) {
    return {ErrorCode::kFailedPrecondition,
            "record: the manager was used before, and its log goes on; a log begins with a new "
            "manager"};
  }
  if (now != nullptr) return {};
  NoSink sink;
  OpLog trial(sink);
  m.record(&trial);
  Status status = trial.status();
  m.record(nullptr);
  return status;
}

void record(const Manager& manager, nb::handle path, bool flush_each_call) {
  ManagerState& state = *manager.state();
  std::unique_ptr<OpLogFile> next;
  if (!path.is_none()) {
    PyObject* bytes = nullptr;
    if (PyUnicode_FSConverter(path.ptr(), &bytes) == 0) {
      if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw nb::python_error();
      PyErr_Clear();
      raise_wanted(path, "path", "a str, bytes, an os.PathLike or None");
    }
    const auto name = nb::steal<nb::bytes>(bytes);
    check(state.call([&](KVCacheManager& m) { return may_begin(m, state.log.get()); }));
    next = take(OpLogFile::create(std::string(name.c_str(), name.size()), flush_each_call));
  }
  // What was recorded before ends; the next one begins even if that could not be written.
  Status begun;
  std::unique_ptr<OpLogFile> last = state.call([&](KVCacheManager& m) {
    m.record(next == nullptr ? nullptr : &next->log());
    if (next != nullptr) begun = next->log().status();
    if (!begun.ok()) {
      m.record(nullptr);
      next.reset();
    }
    return std::exchange(state.log, std::move(next));
  });
  check(begun);
  if (last != nullptr) check(last->log().status());
}

}  // namespace

Result<std::unique_ptr<OpLogFile>> OpLogFile::create(const std::string& path,
                                                     bool flush_each_call) {
  // A pipe without a reader does not keep us waiting.
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (file < 0) return failed(path, "cannot create", errno);
  std::unique_ptr<OpLogFile> log(new OpLogFile(file, path, flush_each_call));
  struct stat there {};
  if (::fstat(file, &there) != 0) return failed(path, "cannot create", errno);
  if (!S_ISREG(there.st_mode))
    return Status(ErrorCode::kUnavailable, path + ": not a regular file");
  // Two that write it at once would mix their calls.
  if (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    return errno == EWOULDBLOCK
               ? Status(ErrorCode::kUnavailable, path + ": another log is being written to it")
               : failed(path, "cannot lock", errno);
  }
  return log;
}

OpLogFile::~OpLogFile() {
  static_cast<void>(log_.flush());  // in a child of fork() write() refuses it
  // Else a child of fork() that lives on would keep the lock.
  if (::getpid() == process_) static_cast<void>(::flock(file_, LOCK_UN));
  ::close(file_);
}

Status OpLogFile::write(std::span<const std::byte> bytes) {
  // The buffer is a copy of the parent's, which writes it itself.
  if (::getpid() != process_) {
    return {ErrorCode::kUnavailable, path_ + ": cannot write: the log is that of process " +
                                         std::to_string(process_) + ", and this is a child of it"};
  }
  if (!replaced_) {  // only now: a log that is refused leaves what was there
    if (::ftruncate(file_, 0) != 0 || ::fchmod(file_, 0600) != 0) {
      return failed(path_, "cannot replace", errno);
    }
    replaced_ = true;
  }
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed(path_, "cannot write", n < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

void add_op_log(nb::class_<Manager>& c) {
  c.def("record", &record, nb::arg("path").none(), nb::kw_only(), "flush_each_call"_a = false,
        nb::sig("def record(self, path: str | os.PathLike[str] | None, *, flush_each_call: bool = "
                "False) -> None"),
        "From now on each call that changes the manager is written to a file (mode 0600), with "
        "what it answered: `kvfolio inspect --replay` makes the calls again and says which answers "
        "otherwise. Before the first of them: FailedPrecondition leaves the file, and a log that "
        "goes on, as they were. A child of fork() writes nothing to the log. It has "
        "the tokens, so who may read it may read the prompts; no K and V. flush_each_call: the "
        "file has a call before it is made, so also the one in which the program dies. None ends "
        "the recording; Unavailable: the file is not whole, and why.");
}

}  // namespace kvfolio::python
