// SPDX-License-Identifier: Apache-2.0
//
// In the mutants build only: which rule the environment switches off.

#include "base/mutants.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kvfolio {
namespace {

constexpr const char* kNames[] = {
    "none",
    "findable-at-begin",
    "reuse-before-complete",
    "no-copy-on-shared-write",
    "copy-after-write",
    "admission-ignores-retiring",
    "hit-referenced-late",
    "append-after-truncate-overwrites-findable",
    "window-released-before-commit",
    "release-twice",
    "partial-tail-shared-in-place",
    "split-moves-entry-to-wrong-side",
    "child-compared-by-first-unit-only",
    "extras-not-compared",
    "tokens-after-trim-published",
    "row-given-away-in-flight",
    "heads-before-tails",
    "tails-like-full-blocks",
    "passed-like-others",
    "hit-takes-room",
    "cached-twin-keeps-entry",
    "hung-behind-a-gap",
    "undo-brings-back-the-replay",
    "reserved-is-room",
    "close-keeps-reservation",
    "publishes-after-forget",
    "load-findable-at-begin",
    "close-drops-load",
    "hold-does-not-keep",
    "loads-windows-short",
    "take-back-keeps-window",
    "rewinds-not-counted",
    "rewind-not-reserved",
    "accepted-over-drafts",
    "void-row-published",
    "void-rows-not-counted",
    "rejected-stay-spent",
    "soon-kept-after-close",
    "announced-beyond-full-blocks",
    "announced-when-published",
    "announces-what-is-not-appended",
    "copy-failure-ignored",
    "copies-ran-though-they-failed",
    "later-copy-ignores-stream",
    "later-staging-reused-early",
    "context-stays-current",
    "device-plan-leaves-an-entry-out",
    "device-plan-reuses-pinned-early",
    "device-plan-trusts-any-list",
    "plan-capacity-not-checked",
    "plan-empty-item-is-not",
    "plan-leaf-twice",
    "key-without-dtype",
    "key-without-adapter",
    "key-without-epoch",
    "checksum-unread",
    "failed-read-sealed",
    "failed-write-findable",
    "ticket-not-waited-for",
    "staging-reused-early",
    "verdict-kept",
    "arena-slot-reused-before-done",
    "stored-after-forget",
    "acknowledged-before-written",
    "erased-without-tombstone",
    "child-speaks-to-tiers",
};
constexpr std::size_t kNumNames = sizeof kNames / sizeof kNames[0];
static_assert(kNumNames == static_cast<std::size_t>(Mutant::kChildSpeaksToTiers) + 1);

void print_names(std::FILE* to) {
  for (std::size_t i = 1; i < kNumNames; ++i) std::fprintf(to, "%s\n", kNames[i]);
}

Mutant read_mutant() {
  const char* wanted = std::getenv("KVFOLIO_MUTANT");
  if (wanted == nullptr || *wanted == '\0') return Mutant::kNone;
  for (std::size_t i = 0; i < kNumNames; ++i) {
    if (std::strcmp(wanted, kNames[i]) == 0) return static_cast<Mutant>(i);
  }
  if (std::strcmp(wanted, "list") == 0) {
    print_names(stdout);
    std::exit(0);
  }
  std::fprintf(stderr, "KVFOLIO_MUTANT is '%s', allowed: none, list, or one of\n", wanted);
  print_names(stderr);
  std::exit(2);
}

bool read_constant_hash() {
  const char* wanted = std::getenv("KVFOLIO_CONSTANT_HASH");
  if (wanted == nullptr || *wanted == '\0' || std::strcmp(wanted, "0") == 0) return false;
  if (std::strcmp(wanted, "1") == 0) return true;
  std::fprintf(stderr, "KVFOLIO_CONSTANT_HASH is '%s', allowed: 0 and 1\n", wanted);
  std::exit(2);
}

// Read before main, so that a wrong name stops every program of this build.
const Mutant kMutant = read_mutant();
const bool kConstantHash = read_constant_hash();

}  // namespace

bool mutant(Mutant rule) noexcept { return rule == kMutant; }
bool constant_hash() noexcept { return kConstantHash; }

}  // namespace kvfolio
