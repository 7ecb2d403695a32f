// SPDX-License-Identifier: Apache-2.0
#include "generate_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "choice_option.h"

namespace kvfolio::tools {
namespace {

template <typename T>
void add_integer(CLI::App& app, const std::string& name, T& target, T low, T high,
                 const std::string& help) {
  app.add_option_function<std::string>(
         name,
         [&target, name, low, high](const std::string& text) {
           T number = 0;
           if (!parse_whole(text, number) || number < low || number > high) {
             refuse(name, text,
                    "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
           }
           target = number;
         },
         help + " [" + std::to_string(target) + "]")
      ->type_name("N");
}

void add_number(CLI::App& app, const std::string& name, double& target, double above, double high,
                const std::string& help, const std::string& allowed) {
  app.add_option_function<std::string>(
         name,
         [&target, name, above, high, allowed](const std::string& text) {
           double number = 0.0;
           // The comparison is false for NaN.
           if (!parse_whole(text, number) || !(number > above && number <= high)) {
             refuse(name, text, allowed);
           }
           target = number;
         },
         help)
      ->type_name("X");
}

void add_request_options(CLI::App& app, GenerateOptions& options) {
  add_model_option(app, options.model);
  CLI::Option* requests =
      add_file(app, "--requests", options.requests, "Requests, a JSON object a line; - is stdin");
  CLI::Option* prompt =
      app.add_option("--prompt", options.prompt, "One request: its text")->type_name("TEXT");
  CLI::Option* ids =
      app.add_option("--prompt-ids", options.prompt_ids, "One request: its token ids, 1,2,3")
          ->type_name("IDS");
  requests->excludes(prompt)->excludes(ids);
  prompt->excludes(ids);

  llama::Request& defaults = options.defaults;
  add_integer(app, "--max-new-tokens", defaults.max_new_tokens, 1, llama::kMaxNewTokens,
              "Tokens to generate");
  add_integer(app, "--samples", defaults.samples, 1, llama::kMaxSamples,
              "Independent samples of a prompt, which they share");
  add_integer(app, "--beams", defaults.beams, 1, llama::kMaxBeams,
              "Beam search of this width; the beams come out as samples, best first");
  add_number(app, "--temperature", defaults.temperature, -0x1p-1074, 1e6,
             "0 is greedy, 1 draws as the model says [0]", "a number from 0 to 1e6");
  add_number(app, "--top-p", defaults.top_p, 0.0, 1.0,
             "Draw among the likeliest tokens that hold this much of the probability [1]",
             "a number above 0, at most 1");
  add_integer<std::int64_t>(app, "--seed", defaults.seed, 0,
                            std::numeric_limits<std::int64_t>::max(),
                            "Of the draws; sample i has seed + i");
}

void add_cache_options(CLI::App& app, GenerateOptions& options) {
  CLI::Option* blocks =
      app.add_option_function<std::string>(
             "--num-blocks",
             [&options](const std::string& text) {
               std::int32_t number = 0;
               if (!parse_whole(text, number) || number < 1) {
                 refuse("--num-blocks", text, "a whole number from 1 to 2147483647");
               }
               options.num_blocks = number;
             },
             "Blocks of the pool [what the longest request needs x --max-seqs, at most 256MiB]")
          ->type_name("N");
  app.add_option_function<std::string>(
         "--memory",
         [&options](const std::string& text) {
           options.memory_bytes = parse_size("--memory", text);
         },
         "Size of the pool instead, such as 512MiB")
      ->type_name("SIZE")
      ->excludes(blocks);
  add_integer(app, "--block-size", options.block_size, 1, kMaxBlockSize, "Tokens of a block");
  add_dtype_option(app, options.dtype);
  add_choice<std::optional<Format>>(
      app, "--format", options.format,
      {{"auto", std::nullopt},
       {"granule", Format::kGranule},
       {"hnd", Format::kHnd},
       {"nhd", Format::kNhd}},
      "How a block lies in memory: auto, granule (of blocks of 16 tokens and multiples), hnd, nhd "
      "[auto: granule where a fast kernel computes and block size and type allow it, else hnd]");
  add_compute_options(app, options.compute);
  app.add_flag_callback(
      "--no-prefix-cache", [&options] { options.prefix_cache = false; },
      "Requests share nothing; the samples of one still share its prompt");
}

void add_tier_options(CLI::App& app, GenerateOptions& options) {
  add_tier_option(app, options.tiers,
                  "Keep blocks beside the cache too and bring them back, also in another process: "
                  "host:SIZE, disk:DIR,SIZE or redis:HOST:PORT[,HOST:PORT]. Several are several "
                  "--tier in this order, cheapest first, one of each kind: --tier host:1GiB --tier "
                  "disk:cache,4GiB. A disk and Redis hold the prompts");
  app.add_flag("--tier-strict", options.tier_strict,
               "Exit code 1 if a tier did not keep what it was to store")
      ->needs(app.get_option("--tier"));
  add_file(app, "--metrics", options.metrics_path,
           "Write what Prometheus would read at the end, in its text format");
  add_file(app, "--save", options.save_path,
           "Write the prefix cache to a file at the end. It holds the text of the prompts");
  add_file(app, "--load", options.load_path,
           "Read a prefix cache that --save wrote before the first request; the pool may have "
           "another size. --save may replace the same file at the end");
  add_file(app, "--oplog", options.oplog_path,
           "Write down every call of the cache and its answer, for kvfolio inspect. It holds "
           "the text of the prompts");
  app.get_option("--oplog")->excludes(app.get_option("--contiguous"));
  for (const char* name : {"--tier", "--save", "--load", "--metrics"}) {
    for (const char* other : {"--contiguous", "--no-prefix-cache"}) {
      app.get_option(name)->excludes(app.get_option(other));
    }
  }
}

void add_run_options(CLI::App& app, GenerateOptions& options) {
  add_integer(app, "--max-batch-tokens", options.max_batch_tokens, 1, 1 << 20,
              "Tokens that one step computes; longer prompts come in chunks");
  add_integer(app, "--max-seqs", options.max_seqs, 1, 4096, "Sequences at once");
  options.num_threads =
      std::clamp(static_cast<std::int32_t>(std::thread::hardware_concurrency()), 1, 256);
  add_integer(app, "--threads", options.num_threads, 1, 256, "Threads that compute");
  CLI::Option* contiguous =
      app.add_flag("--contiguous", options.contiguous,
                   "The twin: one contiguous cache for each sequence, no blocks, no sharing");
  app.add_flag("--verify", options.verify,
               "Run both and compare every token and every bit of the logits")
      ->excludes(contiguous);
  app.add_flag("--json", options.json, "A JSON line for each sample, the last one a summary");
  app.add_flag("--report", options.report,
               "Explain at the end what the cache did, with a picture of its blocks");
  add_file(app, "--logits", options.logits_path,
           "Write logits as float32 [rows, vocab]. One request with one sample: a row for each "
           "position, prompt + generated - 1, so its prompt is looked for nowhere. More: the rows "
           "that chose the generated tokens, requests in file order, then samples. Not for beams")
      ->type_name("OUT.npy");
  add_file(app, "--perplexity", options.perplexity_path,
           "Score a file (text; ids where the model does not read bytes) in windows of "
           "max_position_embeddings tokens");
}

}  // namespace

void add_generate_options(CLI::App& app, GenerateOptions& options) {
  app.footer(
      "Examples:\n"
      "  kvfolio generate --model models/kjv-bytes --prompt \"In the beginning \" "
      "--max-new-tokens 120\n"
      "  kvfolio generate --model models/kjv-bytes --requests requests.jsonl --num-blocks 160 "
      "--verify --json\n\n"
      "A request is a line such as\n"
      "  {\"id\":\"r0\",\"prompt\":\"And God said, \",\"max_new_tokens\":48,\"samples\":1,"
      "\"beams\":1,\n"
      "   \"temperature\":0,\"top_p\":1,\"seed\":0,\"stop_ids\":[]}\n"
      "with \"prompt_ids\":[...] instead of \"prompt\" where the model does not read bytes. "
      "Options "
      "give the\nfields that a line lacks. A stop id or an end-of-sequence id is the last token "
      "of its sample.\n"
      "With tiers the summary says of each what it stored and loaded, what failed and what was\n"
      "corrupt; standard error says it when it happens. It changes no result, and no exit code\n"
      "but with --tier-strict. Each file is a file of its own: what one option reads or writes no\n"
      "other may write.\n"
      "Results do not depend on the pool, the block size, the batch limits, the threads or hits.\n"
      "Exit codes: 0 done; 1 a request did not fit or a comparison failed; 2 bad usage or input;\n"
      "3 no such device; 130 after Ctrl-C.");
  add_request_options(app, options);
  add_cache_options(app, options);
  add_run_options(app, options);
  add_tier_options(app, options);
}

}  // namespace kvfolio::tools
