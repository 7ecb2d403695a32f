// SPDX-License-Identifier: Apache-2.0
#include "disk/step.h"

#include <algorithm>
#include <cerrno>

#include "disk/format.h"
#include "kvfolio/status.h"

namespace kvfolio::disk {
namespace {

// In a row, without a byte of progress. A medium that interrupts more often does not work.
constexpr int kRetriesMax = 100;

}  // namespace

void IoStep::add_part(std::byte* memory, std::int64_t size) noexcept {
  if (size == 0) return;
  KVFOLIO_CHECK(size > 0 && num_parts < static_cast<int>(parts.size()));
  parts[static_cast<std::size_t>(num_parts++)] = {memory, static_cast<std::size_t>(size)};
}

StepRun::StepRun(const IoStep& step) noexcept : step_(step) {
  for (int i = 0; i < step.num_parts; ++i) {
    left_ += static_cast<std::int64_t>(step.parts[static_cast<std::size_t>(i)].iov_len);
  }
}

bool StepRun::take(std::int64_t answer, DiskCalls& calls) noexcept {
  if (answer == -EINTR || answer == -EAGAIN) return ++retries_ > kRetriesMax && end(answer);
  if (!step_.is_transfer()) return end(answer);
  if (answer == -EINVAL && !fell_back_) {
    fell_back_ = true;
    return calls.make_buffered(step_.file) < 0 && end(answer);
  }
  if (answer < 0) return end(answer);
  if (answer == 0 || answer > left_) return end(-EIO);
  if (answer == left_) return end(done_ + answer);
  const std::int64_t whole = answer / kPiece * kPiece;
  if (whole == 0) return ++retries_ > kRetriesMax && end(-EIO);
  retries_ = 0;
  skip(whole);
  return false;
}

bool StepRun::end(std::int64_t result) noexcept {
  result_ = result;
  return true;
}

void StepRun::skip(std::int64_t bytes) noexcept {
  KVFOLIO_DCHECK(bytes > 0 && bytes < left_);
  step_.offset += bytes;
  left_ -= bytes;
  done_ += bytes;
  int first = 0;
  for (; bytes > 0; ++first) {
    iovec& part = step_.parts[static_cast<std::size_t>(first)];
    const std::int64_t taken = std::min(bytes, static_cast<std::int64_t>(part.iov_len));
    part.iov_base = static_cast<std::byte*>(part.iov_base) + taken;
    part.iov_len -= static_cast<std::size_t>(taken);
    bytes -= taken;
    if (part.iov_len > 0) break;
  }
  std::rotate(step_.parts.begin(), step_.parts.begin() + first, step_.parts.end());
  step_.num_parts -= first;
  KVFOLIO_DCHECK(step_.num_parts > 0);
}

std::int64_t call_once(const IoStep& step, DiskCalls& calls) noexcept {
  switch (step.kind) {
    case IoStep::Kind::kDone:
      return 0;
    case IoStep::Kind::kRead:
      return calls.readv(step.file, step.parts.data(), step.num_parts, step.offset);
    case IoStep::Kind::kWrite:
      return calls.writev(step.file, step.parts.data(), step.num_parts, step.offset);
    case IoStep::Kind::kSync:
      return calls.sync(step.file);
    case IoStep::Kind::kOpen:
      KVFOLIO_DCHECK(step.name != nullptr && !step.name->empty());
      return calls.open(step.file, *step.name, step.flags);
    case IoStep::Kind::kAllocate:
      return calls.allocate(step.file, step.bytes);
    case IoStep::Kind::kPunchHole:
      return calls.punch_hole(step.file, step.offset, step.bytes);
    case IoStep::Kind::kTruncate:
      return calls.truncate(step.file, step.bytes);
    case IoStep::Kind::kClose:
      return calls.close(step.file);
    case IoStep::Kind::kUnlink:
      KVFOLIO_DCHECK(step.name != nullptr && !step.name->empty());
      return calls.unlink(step.file, *step.name);
    case IoStep::Kind::kSyncDirectory:
      return calls.sync_directory(step.file);
    case IoStep::Kind::kDropCached:
      return calls.drop_cached(step.file, step.offset, step.bytes);
  }
  return -EINVAL;
}

bool begin_step(IoJob& job, std::int64_t result) noexcept {
  const IoStep step = job.next(result);
  KVFOLIO_DCHECK(!step.is_transfer() || (step.num_parts > 0 && step.file >= 0));
  job.run = StepRun(step);
  return step.kind != IoStep::Kind::kDone;
}

bool continue_job(IoJob& job, std::int64_t answer, DiskCalls& calls) noexcept {
  if (!job.run.take(answer, calls)) {
    job.fell_back |= job.run.fell_back();
    return true;
  }
  job.fell_back |= job.run.fell_back();
  return begin_step(job, job.run.result());
}

void run_job(IoJob& job, DiskCalls& calls) noexcept {
  for (bool more = begin_step(job, 0); more;) {
    more = continue_job(job, call_once(job.run.rest(), calls), calls);
  }
}

}  // namespace kvfolio::disk
