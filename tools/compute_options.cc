// SPDX-License-Identifier: Apache-2.0
#include "compute_options.h"

#include <CLI/CLI.hpp>
#include <string_view>

#include "choice_option.h"

namespace kvfolio::tools {
namespace {

// cpu, cuda or cuda:N.
std::optional<std::int32_t> parse_device(const std::string& text) {
  if (text == "cpu") return std::nullopt;
  if (text == "cuda") return 0;
  std::int32_t number = 0;
  constexpr std::string_view kCuda = "cuda:";
  if (!text.starts_with(kCuda) ||
      !parse_whole(std::string_view(text).substr(kCuda.size()), number) || number < 0) {
    refuse("--device", text, "cpu, cuda, cuda:N");
  }
  return number;
}

}  // namespace

void add_compute_options(CLI::App& app, ComputeOptions& options) {
  add_kernel_option(app, options.kernel);
  app.add_option_function<std::string>(
         "--device", [&options](const std::string& text) { options.device = parse_device(text); },
         "Where the cache lies and is attended over: cpu, cuda, cuda:N; the rest of the model is "
         "computed on the CPU. Exit code 3 if there is no such device [cpu]")
      ->type_name("NAME");
}

}  // namespace kvfolio::tools
