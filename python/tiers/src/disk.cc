// SPDX-License-Identifier: Apache-2.0

// DiskTier, and the check of its directory.

#include "kvfolio/disk_tier.h"
#include "tier_state.h"

namespace kvfolio::python {
namespace {

constexpr Word<DiskEngine> kEngines[] = {{"auto", DiskEngine::kAuto},
                                         {"io_uring", DiskEngine::kIoUring},
                                         {"threads", DiskEngine::kThreads}};

class DiskObject : public TierObject {
 public:
  explicit DiskObject(std::unique_ptr<DiskTier> tier)
      : TierObject(std::make_shared<TierState>(std::move(tier), "the disk tier")),
        tier_(static_cast<DiskTier*>(state()->tier())) {}

  // f(DiskTier) without the GIL.
  template <typename F>
  auto ask(F&& f) const {
    return state()->call([&](Tier&) { return f(*tier_); });
  }

 private:
  DiskTier* tier_;  // of the state, valid inside of its call()
};

void open_disk(DiskObject* self, nb::handle directory, Int bytes, Int segment_bytes,
               const char* engine, Int num_threads, Int queue_depth, bool direct,
               Int queued_bytes_max, Int scrub_bytes_per_s, Int items_max, Int open_files_max,
               nb::handle key, nb::handle accepted_key) {
  const std::string path = text_of_path(directory);
  const HeldKeys keys(key, accepted_key);
  const DiskTierOptions options{
      .directory = path,
      .bytes = bytes.value,
      .segment_bytes = segment_bytes.value,
      .engine = parse_word("engine", engine, kEngines),
      .num_threads = i32(num_threads, "num_threads"),
      .queue_depth = i32(queue_depth, "queue_depth"),
      .direct = direct,
      .queued_bytes_max = queued_bytes_max.value,
      .scrub_bytes_per_s = scrub_bytes_per_s.value,
      .items_max = i32(items_max, "items_max"),
      .open_files_max = i32(open_files_max, "open_files_max"),
      .keys = keys.options,
  };
  Result<std::unique_ptr<DiskTier>> tier = [&] {
    const ReleasedGil release;
    return DiskTier::open(options);
  }();
  new (self) DiskObject(take(std::move(tier)));
}

nb::object stats(const DiskObject& disk) {
  const DiskTierStats s = disk.ask([](DiskTier& tier) { return tier.stats(); });
  return make_tier_record(
      "DiskStats",
      nb::make_tuple(s.bytes, s.records, s.segments, s.recovered, s.recovered_by_footer, s.stored,
                     s.stored_bytes, s.loaded, s.loaded_bytes, s.corrupt, s.io_errors, s.no_space,
                     s.dropped, s.evicted, s.reinserted, s.scrubbed_bytes, s.of_another_key));
}

nb::object check_disk(nb::handle directory, nb::handle key, nb::handle accepted_key, bool erase) {
  const std::string path = text_of_path(directory);
  const HeldKeys keys(key, accepted_key);
  const DiskCheckOptions options{.directory = path, .keys = keys.options, .erase = erase};
  Result<DiskCheck> result = [&] {
    const ReleasedGil release;
    return check_disk_directory(options);
  }();
  const DiskCheck check = take(std::move(result));
  nb::list faults;
  for (const DiskFault& fault : check.faults) {
    faults.append(
        make_tier_record("DiskFault", nb::make_tuple(fault.file, fault.offset, fault.what)));
  }
  return make_tier_record(
      "DiskCheck", nb::make_tuple(check.segments, check.unsealed, check.records, check.record_bytes,
                                  check.damaged, check.of_another_key, check.erased, check.unused,
                                  nb::tuple(faults)));
}

}  // namespace

void add_disk(nb::module_& m) {
  nb::class_<DiskObject, TierObject>(
      m, "DiskTier",
      "Records in a directory of the local disk, up to `bytes`; the oldest go first. What it has "
      "kept is there in the next process. One process for each directory, which is made if it is "
      "not there. docs/tiers.md says what is lost when.")
      .def("__init__", &open_disk, "directory"_a, nb::kw_only(), "bytes"_a,
           "segment_bytes"_a = Int{0}, "engine"_a = "auto", "num_threads"_a = Int{8},
           "queue_depth"_a = Int{32}, "direct"_a = true,
           "queued_bytes_max"_a = Int{std::int64_t{512} << 20}, "scrub_bytes_per_s"_a = Int{0},
           "items_max"_a = Int{4096}, "open_files_max"_a = Int{0}, "key"_a = nb::none(),
           "accepted_key"_a = nb::none(),
           nb::sig("def __init__(self, directory: str | bytes | os.PathLike[str], *, bytes: int, "
                   "segment_bytes: int = 0, engine: kvfolio_tiers._types.Engine = 'auto', "
                   "num_threads: int = 8, queue_depth: int = 32, direct: bool = True, "
                   "queued_bytes_max: int = 536870912, scrub_bytes_per_s: int = 0, "
                   "items_max: int = 4096, open_files_max: int = 0, "
                   "key: builtins.bytes | None = None, "
                   "accepted_key: builtins.bytes | None = None) -> None"),
           "Opens or makes the directory; waits for the disk. `key`: 32 secret bytes that seal "
           "records, `accepted_key` another one that is believed, too. FailedPrecondition: another "
           "process writes here, or the directory has something else. The options are those of "
           "disk_tier.h.")
      .def("stats", &stats, nb::sig("def stats(self) -> kvfolio_tiers._types.DiskStats"),
           "Records and bytes now, and what was counted since it was opened.")
      .def(
          "describe",
          [](const DiskObject& disk) {
            return disk.ask([](DiskTier& tier) { return tier.describe(); });
          },
          "In words: where, how large, how it reads and writes, and what is wrong.");
  m.def("check_disk", &check_disk, "directory"_a, nb::kw_only(), "key"_a = nb::none(),
        "accepted_key"_a = nb::none(), "erase"_a = false,
        nb::sig("def check_disk(directory: str | bytes | os.PathLike[str], *, "
                "key: bytes | None = None, accepted_key: bytes | None = None, "
                "erase: bool = False) -> kvfolio_tiers._types.DiskCheck"),
        "Reads every record of a directory that no tier has open, and compares it with its seal. "
        "erase: damaged records are not found any more; else nothing is written. NotFound: there "
        "is no disk tier.");
}

}  // namespace kvfolio::python
