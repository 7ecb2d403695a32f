// SPDX-License-Identifier: Apache-2.0

// The model alone, without any cache of kvfolio, for the tests in Python.
//
//   llama_logits_dump FOLDER 1,2,3 [TARGET [CHUNK [THREADS]]] > logits.f32
//
// Writes the logits of every position, [positions, vocab] f32, to standard output. Exit code 2 and
// one line on standard error when the folder or the ids are refused.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "model.h"
#include "plain_attention.h"

namespace {

using namespace kvfolio;
using namespace kvfolio::llama;

int refuse(const std::string& message) {
  std::fprintf(stderr, "llama_logits_dump: %s\n", message.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return refuse("usage: FOLDER IDS [TARGET [CHUNK [THREADS]]]");
  std::vector<std::int32_t> tokens;
  for (const char* text = argv[2]; *text != '\0';) {
    char* end = nullptr;
    tokens.push_back(static_cast<std::int32_t>(std::strtol(text, &end, 10)));
    text = *end == ',' ? end + 1 : end + std::strlen(end);
  }
  const auto target = parse_matmul_target(argc > 3 ? argv[3] : "auto");
  const std::size_t chunk = argc > 4 ? std::strtoul(argv[4], nullptr, 10) : tokens.size();
  if (!target || chunk == 0) return refuse("unknown target, or chunk 0");

  Result<Model> model = Model::load(argv[1], {.target = *target});
  if (!model) return refuse(model.error().message());
  const auto pool = ThreadPool::create(argc > 5 ? std::atoi(argv[5]) : 1);
  if (!pool) return refuse(pool.error().message());
  Workspace workspace(**pool);
  PlainAttention attention(model->config());
  std::vector<std::int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  for (std::size_t first = 0; first < tokens.size(); first += chunk) {
    const std::size_t count = std::min(chunk, tokens.size() - first);
    std::vector<float> logits(count * static_cast<std::size_t>(model->config().vocab));
    const Batch batch{.tokens = std::span(tokens).subspan(first, count),
                      .positions = std::span(positions).subspan(first, count),
                      .logit_rows = std::span(positions).subspan(0, count)};
    if (Status status = model->forward(batch, attention, workspace, logits); !status.ok()) {
      return refuse(status.message());
    }
    std::fwrite(logits.data(), sizeof(float), logits.size(), stdout);
  }
  return 0;
}
