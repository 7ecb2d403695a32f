// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs of the random check, for programs that make them: what a run is drawn from, what it came to,
// and a Harness behind a pointer, so that no program compiles the manager and the model again.

#include <cstdint>
#include <memory>
#include <string>

#include "kvfolio/manager_types.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "model_check/model.h"

namespace kvfolio {
class OpLog;  // op_log.h
}

namespace kvfolio::model_check {

enum class Family {
  kFullAndWindow,  // full with block 4 and window 6 with block 2, in order
  kUnordered,      // the same groups, steps complete in any order
  kOneGroup,
  kEqualBlocks,  // full and window with sinks, one block size
  kTinyPools,
  kTinyIndex,  // also few root keys, media extents, table entries
  kNoCache,
  kAnything,
  kTransfers,  // loads and holds, in small pools
};
inline constexpr int kNumFamilies = 9;
const char* to_string(Family family);

struct Config {
  CacheSpec spec;
  ManagerOptions options;
  int alphabet = 2;
  int max_length = 40;
  bool media = true;
  bool trims = true;
  bool drafts = true;
  bool unnamed = true;
  bool fails = true;
  // Percent: how often a call is about the newest sequence, and how often a step that could
  // complete fails. Faults hide in many calls in a row on one sequence and its forks.
  int focus = 0;
  int failures = 0;
  bool ahead = false;  // most appends are by count, and steps stay in flight
  bool copies = true;  // copy_to() takes place; without it the run goes on as if it had
  // The manager runs the copies of finish(), in the device's memory.
  bool host_copies = false;
  bool tight_tables = false;  // kResourceExhausted may come from anything that grows
  bool evicts = false;        // evict() is called often
  bool transfers = false;     // loads and holds; without the checks of the order of eviction
  bool tier = false;          // with transfers: what is stored is kept, and may be loaded
  bool batches = false;       // the calls that name many sequences
  bool mistakes = false;      // of a host, that the manager can know and refuses
  bool chunks = false;        // each open() is asked for by chunks, too
  bool announces = false;     // sequences say what they are going to append
  bool shapes = false;        // plans of fixed shapes are compared with plain ones
  bool drafts_ahead = false;  // they append behind drafts that are not decided
};
Config make_config(Family family, std::uint64_t seed);
// Beyond what make_config() draws, whose digests stay: batches, and with every second seed loads,
// stores and a tier between them.
void draw_more(Config& config, std::uint64_t seed);
std::string to_string(const Config& config);

// What a run has met, so that a green run shows it was not an idle one.
struct Coverage {
  std::uint64_t operations = 0;
  std::uint64_t errors = 0;
  std::uint64_t shortages = 0;
  std::uint64_t hits = 0;
  std::uint64_t hits_inside_block = 0;
  std::uint64_t hits_below_best = 0;  // content was there, the tree did not lead to it
  std::uint64_t tails_found = 0;      // of closed sequences, with nothing evicted
  std::uint64_t tails_lost = 0;       // a neighbour that shares as much was in the way
  std::uint64_t tokens_reused = 0;
  std::uint64_t slots_kept = 0;  // slot -1
  std::uint64_t copies = 0;
  std::uint64_t evictions = 0;
  std::uint64_t reads_checked = 0;
  std::uint64_t phases_early = 0;  // of steps on the device, before complete() asked for them
  std::uint64_t phases_late = 0;
  std::uint64_t blocks_poisoned = 0;
  std::uint64_t retiring_seen = 0;
  std::uint64_t steps = 0;
  std::uint64_t publications_skipped = 0;
  std::uint64_t adoptions = 0;
  std::uint64_t adoptions_refused = 0;
  std::uint64_t duplicates_refused = 0;
  std::uint64_t full_refused = 0;
  std::uint64_t rows_refused = 0;       // all of them were in use
  std::uint64_t victims = 0;            // that select_victim() named
  std::uint64_t victims_preempted = 0;  // by preempt_to()
  std::uint64_t manager_copies = 0;
  std::uint64_t pins_outlive_fail = 0;
  std::uint64_t twins_asked = 0;         // after open(), without the cache and with it
  std::uint64_t twins_without_room = 0;  // of these, without the cache
  std::uint64_t twins_that_reuse = 0;    // of these, with it, in place of what was found
  std::uint64_t orders_checked = 0;      // evict() of something, and the model knew which blocks go
  std::uint64_t orders_chosen = 0;       // of these, those that left other cached blocks behind
  std::uint64_t forgotten = 0;           // blocks, by reset() and forget()
  std::uint64_t promises = 0;            // that reserve() made
  std::uint64_t promises_kept = 0;       // appends within a promise
  std::uint64_t shapes_compared = 0;     // plans of fixed shapes, with plain ones
  std::uint64_t chunks_admitted = 0;     // admissions by chunks, asked of copies too
  std::uint64_t behind_drafts = 0;       // appends behind drafts that were not decided
  std::uint64_t void_rows = 0;           // accept() below the draft with appends behind it
  std::uint64_t promised_again = 0;      // accept() below the draft within a promise
  std::uint64_t taken_back = 0;          // blocks that a window had let go of and truncate() took
  std::uint64_t prompts_admitted = 0;
  std::uint64_t loads = 0;
  std::uint64_t loads_that_stand = 0;  // some tokens of them
  std::uint64_t holds = 0;
  std::uint64_t stores = 0;             // of whole blocks, to the tier
  std::uint64_t stores_alone = 0;       // those that ended when nothing else had the block any more
  std::uint64_t tier_loads = 0;         // loads from the tier
  std::uint64_t bad_blocks[3] = {};     // of these: the first, some middle, the last one is bad
  std::uint64_t arrivals_orphaned = 0;  // whose sequence was gone, or shorter
  std::uint64_t arrivals_after_fail = 0;
  std::uint64_t arrivals_twice = 0;
  std::uint64_t blocks_silent = 0;    // that never came
  std::uint64_t loads_forgotten = 0;  // by forget(), while they were open
  std::uint64_t batches = 0;          // of two and more
  std::uint64_t batches_cut = 0;      // that failed behind the first
  std::uint64_t without_copies = 0;   // commits that were refused, since copies had not run
  std::uint64_t behind_plan = 0;      // the same, since the last plan lacked a sequence
  std::uint64_t prompts_again = 0;    // appends of the whole prompt behind what was found of it
  std::uint64_t announcements = 0;
  std::uint64_t announcements_left_out = 0;  // for want of room
  std::uint64_t soon_told = 0;               // that tokens will be there
  std::uint64_t orders_skipped = 0;          // the model knew several answers, or none
  void add(const Coverage& other);
};
std::string to_string(const Coverage& coverage);

class Harness;  // harness.h

// The calls of a Harness, by their names.
class RandomRun {
 public:
  explicit RandomRun(const Config& config);
  ~RandomRun();
  RandomRun(const RandomRun&) = delete;
  RandomRun& operator=(const RandomRun&) = delete;

  void run(std::uint64_t op_seed);
  void drain();
  void record(OpLog* log);
  [[nodiscard]] Result<std::uint64_t> state_hash() const;
  [[nodiscard]] const std::string& log() const;
  [[nodiscard]] std::uint64_t digest() const;
  [[nodiscard]] bool read_only() const;
  [[nodiscard]] const Coverage& coverage() const;
  void skip_questions();

 private:
  std::unique_ptr<Harness> harness_;
};

}  // namespace kvfolio::model_check
