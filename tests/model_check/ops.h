// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the files of operations (ops_*.cc) share: short names of error codes, and texts of the log.

#include <optional>
#include <span>
#include <string>

#include "model_check/harness.h"

namespace kvfolio::model_check {

inline constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
inline constexpr ErrorCode kNotFound = ErrorCode::kNotFound;
inline constexpr ErrorCode kMoment = ErrorCode::kFailedPrecondition;
inline constexpr ErrorCode kNoBlocks = ErrorCode::kNoBlocks;
inline constexpr ErrorCode kExhausted = ErrorCode::kResourceExhausted;
inline constexpr ErrorCode kUnsupported = ErrorCode::kUnsupported;
inline constexpr ErrorCode kAborted = ErrorCode::kAborted;

template <typename T>
Status status_of(const Result<T>& result) {
  return result.has_value() ? Status() : result.error();
}

std::string text_of(std::span<const std::int32_t> values);
std::string text_of(const Prompt& prompt);
std::string text_of(const OpenOptions& options);  // but for the prompt
std::string name_of(const Seq& seq);

std::optional<std::uint64_t> any_caller_id(Rng& rng);
std::int32_t any_priority(Rng& rng);

}  // namespace kvfolio::model_check
