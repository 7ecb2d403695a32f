// SPDX-License-Identifier: Apache-2.0
// The command kvfolio: one executable with verbs.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "bench.h"
#include "console.h"
#include "generate.h"
#include "inspect.h"
#include "kvfolio/kernel_target.h"
#include "kvfolio_build_info.h"
#include "nearest_word.h"
#include "printable_text.h"
#include "prove.h"
#include "tier.h"

namespace {

std::string version() {
  using namespace kvfolio_build_info;
  std::string kernels;  // that this machine runs
  for (const kvfolio::KernelTarget target : kvfolio::kernel_targets()) {
    kernels += std::string(" ") + to_string(target);
  }
  return std::string("kvfolio ") + kVersion + "\ncommit " + kCommit + "\ncompiler " + kCompiler +
         "\nkernels" + kernels;
}

// Long options with their dashes.
std::vector<std::string> long_options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// What may come behind a verb: its options, and its own verbs with theirs.
std::vector<std::string> words_of(const CLI::App& verb) {
  std::vector<std::string> words = long_options_of(verb);
  for (const CLI::App* inner : verb.get_subcommands([](const CLI::App*) { return true; })) {
    words.push_back(inner->get_name());
    for (std::string& name : long_options_of(*inner)) words.push_back(std::move(name));
  }
  return words;
}

std::string names_of_verbs(const CLI::App& app) {
  std::string names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + verb->get_name();
  }
  return names;
}

// What could not be parsed, in the words of this command.
std::string what_is_wrong(const CLI::App& app, const CLI::ParseError& error, int argc,
                          char** argv) {
  const std::vector<const CLI::App*> verbs =
      app.get_subcommands([](const CLI::App* verb) { return verb->parsed(); });
  if (verbs.empty() && argc > 1) {
    const std::string word = kvfolio::tools::without_secrets(argv[1]);
    std::vector<std::string> names;
    for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(verb->get_name());
    }
    if (word.starts_with("-")) names = long_options_of(app);
    return "'" + word + "' is no " + (word.starts_with("-") ? "option before a verb" : "verb") +
           kvfolio::tools::did_you_mean(word, names) + ", allowed: " + names_of_verbs(app);
  }
  // What is required may only be mistyped.
  const std::vector<std::string> unknown = app.remaining(true);
  const bool may_be_mistyped = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                               dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (may_be_mistyped && !verbs.empty() && !unknown.empty()) {
    std::string words;
    for (const std::string& word : unknown) {
      words += " " + kvfolio::tools::without_secrets(word);
      words += kvfolio::tools::did_you_mean(word.substr(0, word.find('=')), words_of(*verbs[0]));
    }
    return verbs[0]->get_name() + ": unknown:" + words;
  }
  const CLI::App& last = verbs.empty() ? app : *verbs[0];
  if (last.get_require_subcommand_min() > 0 && last.get_subcommands().empty()) {
    return (verbs.empty() ? "" : last.get_name() + ": ") +
           "a verb is missing, allowed: " + names_of_verbs(last);
  }
  std::string text = error.what();
  constexpr std::string_view kTwice = ": At Most 1 required but received ";
  if (const std::size_t at = text.find(kTwice); at != std::string::npos) {
    return text.substr(0, at) + ": given more than once, allowed: once";
  }
  constexpr std::string_view kNoFlag = "Could not convert: ";
  if (text.starts_with(kNoFlag)) {
    return text.substr(kNoFlag.size()) + ", allowed: the word without a value";
  }
  return text;
}

int run(int argc, char** argv) {
  CLI::App app("kvfolio: a paged KV cache for transformer inference, at work", "kvfolio");
  app.set_version_flag("--version", version(), "Version, commit, compiler, kernel targets");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  kvfolio generate --model models/kjv-bytes --prompt \"In the beginning \"\n"
      "  kvfolio generate --model models/kjv-bytes --requests requests.jsonl --verify --json\n"
      "  kvfolio prove --model models/kjv-bytes\n\n"
      "kvfolio VERB --help explains a verb.");
  kvfolio::tools::GenerateOptions options;
  CLI::App* generate = app.add_subcommand(
      "generate", "Decode requests with a Llama or Mistral checkpoint over the paged cache");
  kvfolio::tools::add_generate_options(*generate, options);
  kvfolio::tools::ProveOptions prove_options;
  CLI::App* prove = app.add_subcommand(
      "prove", "Show that results depend on nothing: one set of prompts in many ways, one SHA-256");
  kvfolio::tools::add_prove_options(*prove, prove_options);
  kvfolio::tools::BenchOptions bench_options;
  CLI::App* bench = app.add_subcommand("bench", "Measure the library against this machine");
  kvfolio::tools::add_bench_options(*bench, bench_options);
  kvfolio::tools::TierOptions tier_options;
  CLI::App* tier = app.add_subcommand("tier", "Look after what is kept beside the cache");
  kvfolio::tools::add_tier_verb(*tier, tier_options);
  kvfolio::tools::InspectOptions inspect_options;
  CLI::App* inspect = app.add_subcommand(
      "inspect",
      "Show what a snapshot or an operation log holds, and make the calls of a log again");
  kvfolio::tools::add_inspect_options(*inspect, inspect_options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      std::ostringstream text;
      const int code = app.exit(error, text);
      kvfolio::tools::print(text.str());
      return code;
    }
    kvfolio::tools::report(
        "kvfolio: " + kvfolio::tools::printable_text(what_is_wrong(app, error, argc, argv)) +
        "\nkvfolio --help and kvfolio VERB --help say what is allowed");
    return 2;
  }
  if (prove->parsed()) return kvfolio::tools::prove(prove_options);
  if (inspect->parsed()) return kvfolio::tools::inspect(inspect_options);
  if (bench->parsed()) return kvfolio::tools::bench(bench_options);
  if (tier->parsed()) return kvfolio::tools::tier(tier_options);
  return kvfolio::tools::generate(options);
}

// Kernels and readers of files keep up to 64 KiB on the stack, and threads get one of this size.
constexpr rlim_t kLeastStackBytes = rlim_t{256} << 10;

// The bytes that the stack may have, if these are too few.
std::optional<rlim_t> stack_too_small() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kLeastStackBytes) return {};
  return limit.rlim_cur;
}

}  // namespace

int main(int argc, char** argv) {
  kvfolio::tools::open_standard_descriptors();
  kvfolio::tools::handle_signals();
  if (const auto bytes = stack_too_small()) {
    kvfolio::tools::report("kvfolio: the stack may have " + std::to_string(*bytes) +
                           " bytes (ulimit -s), allowed: " + std::to_string(kLeastStackBytes) +
                           " and above");
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    kvfolio::tools::report("kvfolio: out of memory");
  } catch (const std::exception& error) {
    kvfolio::tools::report("kvfolio: " + kvfolio::tools::printable_text(error.what()));
  }
  return 2;
}
