// SPDX-License-Identifier: Apache-2.0

// The C functions of beside.cu without a GPU: two shapes whose sides take times that are written
// here, so that beside.py can be run where there is no card.

#include <cstdint>
#include <cstdio>

struct Beside {
  int shape = 0;
  int calls = 0;
};

namespace {

struct FakeSide {
  const char* name;
  double us, difference;
};
// A decode has these; its best read is the second. "wrong" must not be timed, nor "not a number".
const FakeSide kDecode[] = {{"kvfolio", 20.0, -1}, {"read 4", 19.0, -1},
                            {"read 8", 16.0, -1},  {"right", 25.0, 2e-3},
                            {"wrong", 1.0, 0.5},   {"not a number", 1.0, __builtin_nan("")}};
const FakeSide kPrefill[] = {{"kvfolio", 100.0, -1}, {"right", 150.0, 1e-3}};

const FakeSide& side_of(const Beside* b, int side) {
  return b->shape == 0 ? kDecode[side] : kPrefill[side];
}

}  // namespace

extern "C" {

int beside_shapes(int quick) { return quick != 0 ? 1 : 2; }
Beside* beside_open(int, int shape) { return new Beside{shape}; }
void beside_name(const Beside* b, char* to, int size) {
  std::snprintf(to, static_cast<std::size_t>(size), "%s",
                b->shape == 0 ? "bf16 G8 H8 D128 block 16 HND, 1 x 8192"
                              : "bf16 G8 D128, 1 x 2048 new of 8192");
}
double beside_kv_bytes(const Beside*) { return 33554432.0; }
double beside_flop(const Beside* b) { return b->shape == 0 ? 0.0 : 4e10; }
int beside_launches(const Beside*) { return 4; }
int beside_sides(const Beside* b) { return b->shape == 0 ? 6 : 2; }
const char* beside_side(const Beside* b, int side) { return side_of(b, side).name; }
double beside_difference(const Beside* b, int side) { return side_of(b, side).difference; }
// Rounds drift together, as clocks do: ratios within a round do not.
double beside_time(Beside* b, int side) {
  const int timed = b->shape == 0 ? 4 : 2;  // sides that a round has
  const int round = b->calls++ / timed;
  return side_of(b, side).us * (1.0 + 0.01 * round);
}
int beside_problems(const Beside*) { return 1; }
void beside_problem(const Beside*, int, void*) {}
void beside_close(Beside* b) { delete b; }

}  // extern "C"
