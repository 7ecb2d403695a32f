// SPDX-License-Identifier: Apache-2.0
#pragma once

// Options of the command line that several verbs take.

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "json.h"
#include "kvfolio/dtype.h"
#include "kvfolio/kernel_target.h"

namespace kvfolio::tools {

[[noreturn]] inline void refuse(const std::string& option, const std::string& text,
                                const std::string& allowed) {
  throw CLI::ValidationError(option, llama::in_quotes(text) + ", allowed: " + allowed);
}

// True: all of `text` is a number that fits.
template <typename T>
bool parse_whole(std::string_view text, T& number) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end;
}

template <typename T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, T& target,
                        std::vector<std::pair<std::string, T>> choices, const std::string& help) {
  return app
      .add_option_function<std::string>(
          name,
          [&target, name, choices = std::move(choices)](const std::string& text) {
            std::string allowed;
            for (const auto& [word, value] : choices) {
              if (word == text) {
                target = value;
                return;
              }
              allowed += (allowed.empty() ? "" : ", ") + word;
            }
            refuse(name, text, allowed);
          },
          help)
      ->type_name("NAME");
}

// A name of a file: an empty one is refused before it is taken for a folder, or for none.
template <typename Target>
CLI::Option* add_file(CLI::App& app, const std::string& name, Target& target,
                      const std::string& help) {
  return app
      .add_option_function<std::string>(
          name,
          [&target, name](const std::string& path) {
            if (path.empty()) refuse(name, path, "a name that is not empty");
            target = path;
          },
          help)
      ->type_name("FILE");
}

inline void add_model_option(CLI::App& app, std::string& target) {
  add_file(app, "--model", target,
           "Folder of a Llama or Mistral checkpoint in the Hugging Face form")
      ->required()
      ->type_name("DIR");
}

inline void add_dtype_option(CLI::App& app, DType& target) {
  add_choice<DType>(
      app, "--cache-dtype", target,
      {{"f32", DType::kF32},
       {"f16", DType::kF16},
       {"bf16", DType::kBF16},
       {"int8", DType::kInt8},
       {"e4m3", DType::kE4M3},
       {"f64", DType::kF64}},
      "Element type of keys and values: f32, f16, bf16, int8 and e4m3 (a scale for each "
      "token and head), f64 [f32]");
}

inline void add_kernel_option(CLI::App& app, KernelTarget& target) {
  std::vector<std::pair<std::string, KernelTarget>> choices;
  for (const KernelTarget known :
       {KernelTarget::kAuto, KernelTarget::kReference, KernelTarget::kPortable, KernelTarget::kAvx2,
        KernelTarget::kAvx512, KernelTarget::kAvx512Bf16, KernelTarget::kNeon}) {
    choices.emplace_back(to_string(known), known);
  }
  add_choice<KernelTarget>(
      app, "--kernel", target, std::move(choices),
      "Attention kernel: reference, portable, avx2, avx512, avx512-bf16, neon [auto: the fastest "
      "of this CPU, or what the variable KVFOLIO_KERNEL names]");
}

}  // namespace kvfolio::tools
