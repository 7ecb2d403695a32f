// SPDX-License-Identifier: Apache-2.0
#include "prove_options.h"

#include <CLI/CLI.hpp>

#include "choice_option.h"

namespace kvfolio::tools {

void add_prove_options(CLI::App& app, ProveOptions& options) {
  app.footer(
      "Examples:\n"
      "  kvfolio prove --model models/kjv-bytes\n"
      "  kvfolio prove --model DIR --cache-dtype bf16 --json\n\n"
      "Runs 2 samples of each of 8 prompts once for each row, and in some rows one of a ninth of\n"
      "1040 tokens, which has a hash of its own: over contiguous arrays (the reference, which has\n"
      "the long prompt too), cold, hit, partly hit, forked, alone and among 15\n"
      "others, with blocks of 1, 8, 16 and 32 tokens, chunks of 1, 7, 64 and all tokens of a\n"
      "prompt, pools that preempt, with 1 to 4 threads, with 2 steps in flight, with steps that\n"
      "complete in any order, and some of that together. No two rows are the same run.\n"
      "What a row hashes: the f32 logits behind each generated token (so from the last token of\n"
      "the prompt on), prompt by prompt, sample by sample. Earlier positions of a prompt are left\n"
      "out, since a row that finds them in the cache never computes them.\n"
      "Prompts are text where the model reads bytes, else ids from a fixed seed; some share\n"
      "beginnings that end inside a block, some at its border. End-of-sequence ids do not stop.\n"
      "Columns: sequences and tokens of one sequence in a step, at the peak; blocks held at the\n"
      "peak; prompt tokens reused; blocks copied; sequences preempted.\n"
      "A row that was not what it says (nothing hit, one thread for two) is a failure too.\n"
      "Exit codes: 0 all rows have one SHA-256; 1 they differ, and which; 2 bad usage or input;\n"
      "3 no such device.");
  add_model_option(app, options.model);
  add_dtype_option(app, options.dtype);
  add_compute_options(app, options.compute);
  add_tier_option(app, options.tiers,
                  "disk:DIR,SIZE and redis:HOST:PORT[,HOST:PORT] add rows whose prompts another "
                  "engine reads from there; both are two --tier, the disk first");
  app.add_flag("--json", options.json, "One JSON object: every row with its hash and counters");
}

}  // namespace kvfolio::tools
