// SPDX-License-Identifier: Apache-2.0

// The machine: which core it is, what it computes at most, and what it costs to hand a loop to
// threads.

#include <unistd.h>

#include "context.h"

namespace kvfolio::bench {
namespace {

void core(const Context& context) {
  const Session& session = context.session;
  const std::string name = core_class(context.core);
  const PromisedCore promised = promised_core(name, context.f32_peak);
  session.report({.name = "machine.core",
                  .facts = {{"model", context.core.name},
                            {"cpus", static_cast<std::int64_t>(::sysconf(_SC_NPROCESSORS_ONLN))},
                            {"class", name},
                            {"promises", promised == PromisedCore::kZen5   ? "those of Zen 5"
                                         : promised == PromisedCore::kZen4 ? "those of Zen 4"
                                                                           : "none by class"},
                            {"target", context.target_name()}},
                  .unit = "MiB of third-level cache",
                  .lower_is_better = false,
                  .note = "the class is that of the processor's family and model; f32 arithmetic "
                          "of one core: " +
                          std::to_string(static_cast<int>(context.f32_peak)) + " Gflop/s"},
                 {.ours = {static_cast<double>(context.l3_bytes) / (1 << 20)}, .other = {}});
}

void peaks(const Context& context) {
  if (!context.session.wants("machine.peak")) return;
  Panel panel;
  struct Entry {
    std::size_t piece = 0;
    double operations = 0;
    const Arithmetic* kind = nullptr;
    std::int32_t threads = 1;
  };
  std::vector<Entry> entries;
  const std::int64_t loops = context.session.quick() ? 10'000 : 1'000'000;
  for (const Arithmetic& kind : context.arithmetic()) {
    for (const std::int32_t threads : context.thread_counts) {
      Entry entry;
      entry.kind = &kind;
      entry.threads = threads;
      entry.operations = static_cast<double>(kind.loop(loops)) * threads;
      entry.piece = panel.add([&context, &kind, threads, loops] {
        parallel_for(context.executor(threads), threads, [&](std::int32_t) { kind.loop(loops); });
      });
      entries.push_back(entry);
    }
  }
  panel.run(context.session.rounds());
  for (const Entry& entry : entries) {
    context.session.report(
        {.name = "machine.peak",
         .facts = {{"kind", entry.kind->kind}, {"threads", std::int64_t{entry.threads}}},
         .unit = "Gop/s",
         .lower_is_better = false,
         .note = "multiply-adds on registers, two operations each"},
        {panel.giga_rate(entry.piece, entry.operations), {}});
  }
}

void fork_join(const Context& context) {
  if (!context.session.wants("fork_join")) return;
  const int loops = context.session.quick() ? 100 : 10'000;
  const int idle_loops = context.session.quick() ? 3 : 100;
  for (const std::int32_t threads : context.thread_counts) {
    const Executor& executor = context.executor(threads);
    const auto nothing = [](std::int32_t) {};
    const auto figure = [&](const char* before, const char* note) {
      return Figure{.name = "fork_join",
                    .facts = {{"threads", std::int64_t{threads}}, {"before", before}},
                    .unit = "us",
                    .note = note};
    };
    context.session.measure(figure("nothing", "an empty task for each thread of ThreadPool"), [&] {
      return seconds_of([&] {
               for (int i = 0; i < loops; ++i) parallel_for(executor, threads, nothing);
             }) /
             loops * 1e6;
    });
    context.session.measure(figure("1 ms asleep", "the threads went to sleep before"), [&] {
      double taken = 0;
      for (int i = 0; i < idle_loops; ++i) {
        ::usleep(1000);
        taken += seconds_of([&] { parallel_for(executor, threads, nothing); });
      }
      return taken / idle_loops * 1e6;
    });
  }
}

void measure_cores(const Context& context) {
  core(context);
  peaks(context);
  fork_join(context);
}

}  // namespace

AttentionFamily cores_family() {
  return {{"machine.core", "machine.peak", "fork_join"}, measure_cores};
}

}  // namespace kvfolio::bench
