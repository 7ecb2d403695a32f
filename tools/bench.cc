// SPDX-License-Identifier: Apache-2.0
#include "bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench_attention.h"
#include "bench_core.h"
#include "bench_tiers.h"
#include "choice_option.h"
#include "compute_choice.h"
#include "console.h"
#include "printable_text.h"

namespace kvfolio::tools {
namespace {

using Json = nlohmann::ordered_json;

// Five digits say all that a timing knows.
double five_digits(double value) {
  if (value == 0 || !std::isfinite(value)) return 0;
  const double scale = std::pow(10.0, 4 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

Json number_or_null(const std::optional<double>& value) {
  return value ? Json(five_digits(*value)) : Json();
}

std::string bench_row_json(const bench::Row& row) {
  Json facts = Json::object();
  for (const auto& [name, fact] : row.facts) {
    std::visit([&, &key = name](const auto& value) { facts[key] = value; }, fact);
  }
  Json json = {{"name", row.name},
               {"case", std::move(facts)},
               {"value", five_digits(row.value)},
               {"unit", row.unit},
               {"ceiling", number_or_null(row.ceiling)},
               {"ratio", number_or_null(row.ratio)},
               {"floor", row.promise ? Json(row.promise->floor) : Json()},
               {"goal", row.promise ? Json(row.promise->goal) : Json()},
               {"rounds", row.rounds},
               {"spread", {five_digits(row.low), five_digits(row.high)}},
               {"judged", row.promise_is_ratio ? "ratio" : "value"},
               {"lower_is_better", row.lower_is_better},
               {"reached", Json()},
               {"note", row.note}};
  if (row.promise) json["reached"] = row.reaches(row.promise->floor);
  return json_text(json);
}

std::string four_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string name_of(const bench::Row& row) {
  std::string text = row.name;
  for (const auto& [name, fact] : row.facts) {
    text += " " + name + "=";
    if (const auto* whole = std::get_if<std::int64_t>(&fact)) text += std::to_string(*whole);
    if (const auto* word = std::get_if<std::string>(&fact)) text += *word;
  }
  return text;
}

std::string row_text(const bench::Row& row, bool judged) {
  std::string text = name_of(row) + "\n  " + four_digits(row.value) + " " + row.unit;
  if (row.ceiling) {
    text += ", ceiling " + four_digits(*row.ceiling) + " (" + four_digits(*row.ratio) + " of it)";
  }
  text += ", spread " + four_digits(row.low) + " to " + four_digits(row.high);
  if (row.promise) {
    text += row.promise_is_ratio ? "\n  ratio: floor " : "\n  floor ";
    text += four_digits(row.promise->floor) + ", goal " + four_digits(row.promise->goal) + ": ";
    text += !judged                           ? "not judged (--quick)"
            : row.reaches(row.promise->goal)  ? "goal reached"
            : row.reaches(row.promise->floor) ? "floor reached"
                                              : "BELOW THE FLOOR";
  }
  if (!row.note.empty()) text += "\n  " + row.note;
  return text + "\n";
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

void check_filter(const BenchOptions& options) {
  const std::vector<std::string> names = options.family == "core"    ? bench::core_row_names()
                                         : options.family == "tiers" ? bench::tiers_row_names()
                                                                     : bench::attention_row_names();
  const bool any = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.find(options.filter) != std::string::npos;
  });
  if (!any) refuse("--filter", options.filter, "a part of one of " + joined(names));
}

// "auto" becomes the name of what it chooses, as in the other verbs; attention_targets() without
// the reference take every cache that is measured.
void choose_kernel(BenchOptions& options) {
  if (options.kernel == "auto") {
    const Result<KernelTarget> chosen = choose_target(DType::kF32, 128, KernelTarget::kAuto);
    if (!chosen) throw CLI::ValidationError("--kernel", chosen.error().message());
    options.kernel = to_string(*chosen);
  }
  const std::vector<std::string> targets = bench::attention_targets();
  if (!contains(targets, options.kernel)) {
    refuse("--kernel", options.kernel, "auto, " + joined(targets));
  }
}

}  // namespace

void add_bench_options(CLI::App& app, BenchOptions& options) {
  app.footer(
      "Examples:\n"
      "  kvfolio bench core\n"
      "  kvfolio bench core --filter tree. --rounds 21 --json\n"
      "  kvfolio bench attention --filter decode. --cache-dtype int8 --threads 4\n\n"
      "core: the manager, the prefix tree, the block pool and storage, one thread, no model.\n"
      "attention: append, gather and attention over the blocks, as parts of what this machine\n"
      "reads and computes, with one thread and with several.\n"
      "tiers: hits in host memory, names of blocks, decode beside stores, save and restore, the\n"
      "disk tier, and Redis where redis-server is there; it writes files of 256 MiB, and for the\n"
      "disk up to 2 GiB, to $TMPDIR or /tmp.\n"
      "Each result is checked before it is timed. docs/measuring.md says how it measures and how\n"
      "to read a row. Each takes some minutes and 4 GiB; --quick takes seconds, and its numbers\n"
      "mean nothing.\n"
      "Exit codes: 0 done, floors reached or not; 1 a result was wrong; 2 bad usage.");
  app.add_option_function<std::string>(
         "family",
         [&options](const std::string& text) {
           if (text != "core" && text != "attention" && text != "tiers") {
             refuse("family", text, "core, attention, tiers");
           }
           options.family = text;
           options.is_family_given = true;
         },
         "What to measure: core, attention, tiers [core]")
      ->type_name("NAME");
  app.add_option("--filter", options.filter, "Only rows whose name contains this")
      ->type_name("NAME");
  app.add_option_function<std::string>(
         "--rounds",
         [&options](const std::string& text) {
           int rounds = 0;
           const char* const end = text.data() + text.size();
           const auto [stop, error] = std::from_chars(text.data(), end, rounds);
           if (error != std::errc() || stop != end || rounds < 1 || rounds > 1000) {
             refuse("--rounds", text, "a whole number from 1 to 1000");
           }
           options.rounds = rounds;
         },
         "Rounds of each figure; a row gives their median [9]")
      ->type_name("N");
  app.add_flag("--quick", options.quick, "One round of small cases: everything runs and is right");
  app.add_flag("--json", options.json, "A JSON object for each row");
  CLI::Option* const kernel =
      app.add_option("--kernel,--target", options.kernel,
                     "attention: the kernels to measure, one that this CPU runs; reference takes "
                     "hours [auto: the fastest, or what the variable KVFOLIO_KERNEL names]")
          ->type_name("NAME");
  CLI::Option* const threads = app.add_option("--threads", options.threads,
                                              "attention: rows for one thread and for so many [2]")
                                   ->check(CLI::Range(1, 256))
                                   ->type_name("N");
  CLI::Option* const dtype = add_choice<std::optional<DType>>(
      app, "--cache-dtype", options.dtype,
      {{"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBF16}, {"int8", DType::kInt8}},
      "attention: only caches of this type");
  CLI::Option* const format = add_choice<std::optional<Format>>(
      app, "--format", options.format,
      {{"granule", Format::kGranule}, {"hnd", Format::kHnd}, {"nhd", Format::kNhd}},
      "attention: only caches in this format");
  // What one option allows depends on the family, which may come after it.
  app.final_callback([&options, kernel, threads, dtype, format] {
    if (options.family != "attention") {
      for (const CLI::Option* option : {kernel, threads, dtype, format}) {
        if (!option->empty()) {
          throw CLI::ValidationError(option->get_name(),
                                     "is of kvfolio bench attention, not " + options.family);
        }
      }
    }
    check_filter(options);
    if (options.family == "attention") choose_kernel(options);
  });
}

int bench(const BenchOptions& options) {
  const bench::Options what{.rounds = options.quick ? 1 : options.rounds,
                            .quick = options.quick,
                            .filter = options.filter};
  const auto emit = [&](const bench::Row& row) {
    print(options.json ? bench_row_json(row) + "\n" : row_text(row, !options.quick));
    show_progress("kvfolio bench: after " + row.name);
  };
  const auto left_out = [](std::string_view name, std::string_view why) {
    report("kvfolio bench: " + std::string(name) + " is left out: " + std::string(why));
  };
  if (!options.is_family_given && !options.quick && options.filter.empty()) {
    report(
        "kvfolio bench: measuring core, which takes some minutes and 4 GiB; --help names what else "
        "can be measured");
  }
  try {
    show_progress("kvfolio bench: measuring");
    if (options.family == "core") {
      bench::run_core(what, emit, left_out);
    } else if (options.family == "tiers") {
      bench::run_tiers(what, emit, left_out);
    } else {
      bench::run_attention({.common = what,
                            .target = options.kernel,
                            .threads = options.threads,
                            .dtype = options.dtype,
                            .format = options.format},
                           emit, left_out);
    }
    show_progress("");
    return 0;
  } catch (const bench::WrongResult& error) {
    report("kvfolio bench: wrong: " + printable_text(error.what()));
    return 1;
  }
}

}  // namespace kvfolio::tools
