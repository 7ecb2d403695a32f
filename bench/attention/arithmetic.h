// SPDX-License-Identifier: Apache-2.0
#pragma once

// Loops of nothing but multiply-adds on registers: the peak of one core, by kind. Each is compiled
// with flags of its own and includes no code that others share (a header's inline function,
// compiled for a newer processor, could be the copy that the linker keeps for all).

#include <cstdint>

namespace kvfolio::bench {

// Runs `loops` turns and answers the operations done, a multiplication and an addition being two.
using ArithmeticLoop = std::int64_t (*)(std::int64_t loops);

std::int64_t fma_f32_256(std::int64_t loops);
std::int64_t fma_f32_512(std::int64_t loops);
std::int64_t dot_bf16_512(std::int64_t loops);
std::int64_t dot_int8_512(std::int64_t loops);
// Whatever the compiler makes of it without any flags.
std::int64_t fma_f32_plain(std::int64_t loops);

}  // namespace kvfolio::bench
