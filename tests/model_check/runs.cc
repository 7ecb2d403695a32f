// SPDX-License-Identifier: Apache-2.0
#include "model_check/runs.h"

#include "model_check/harness.h"

namespace kvfolio::model_check {

RandomRun::RandomRun(const Config& config) : harness_(std::make_unique<Harness>(config)) {}
RandomRun::~RandomRun() = default;
void RandomRun::run(std::uint64_t op_seed) { harness_->run(op_seed); }
void RandomRun::drain() { harness_->drain(); }
void RandomRun::record(OpLog* log) { harness_->record(log); }
Result<std::uint64_t> RandomRun::state_hash() const { return harness_->state_hash(); }
const std::string& RandomRun::log() const { return harness_->log(); }
std::uint64_t RandomRun::digest() const { return harness_->digest(); }
bool RandomRun::read_only() const { return harness_->read_only(); }
const Coverage& RandomRun::coverage() const { return harness_->coverage(); }
void RandomRun::skip_questions() { harness_->skip_questions(); }

}  // namespace kvfolio::model_check
