// SPDX-License-Identifier: Apache-2.0
// An engine that does everything of docs/recipes.md at once, over a device that computes late:
// requests come in bursts of twins, prompts in chunks, decodes by count or as drafts over the steps
// in flight, stop strings cut, clients cancel, beams share, sessions pause and come back. After
// each step every token that the engine holds has the bytes of its text, no append within a promise
// is short, and no cut that rewind_from allows is refused.
//
// KVFOLIO_SEED: the first seed; KVFOLIO_RUNS: how many (600, fewer under the sanitizers).

#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <random>

#include "api/engine.h"
#include "fake_device/fake_device.h"

namespace kvfolio::testing_engine {
namespace {

using fake_device::Digest;
using fake_device::FakeDevice;
using fake_device::Phase;
using fake_device::Upload;

constexpr std::int32_t kUnit = 4;     // tokens of a block
constexpr std::int32_t kRewind = 6;   // how far a stop string goes back
constexpr std::int32_t kGuesses = 4;  // tokens of a step that guesses
constexpr std::int32_t kSlack = 16;   // guesses may lie behind the end of an answer
constexpr std::int32_t kAtOnce = 12;  // tokens behind the accepted ones, at most

std::uint64_t env(const char* name, std::uint64_t fallback) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? std::strtoull(value, nullptr, 0) : fallback;
}

std::uint64_t num_runs() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return env("KVFOLIO_RUNS", 20);
#else
  return env("KVFOLIO_RUNS", 600);
#endif
}

// The bytes of the last token of a text.
Digest digest_of(Digest before, std::int32_t token) {
  Digest mixed = (before ^ static_cast<std::uint32_t>(token + 1)) * 0x9e3779b97f4a7c15u;
  mixed ^= mixed >> 29;
  return mixed * 0xbf58476d1ce4e5b9u;
}

std::vector<Digest> digests_of(const Tokens& text) {
  std::vector<Digest> digests;
  Digest last = 17;
  for (const std::int32_t token : text) digests.push_back(last = digest_of(last, token));
  return digests;
}

// The model: what follows a text.
std::int32_t next_token(const Tokens& text) {
  return static_cast<std::int32_t>(digests_of(text).back() >> 40) % 50;
}

// A client's wish, and how far it is.
struct Request {
  enum class Kind { kPlain, kDrafts };
  std::int32_t number = 0;
  Kind kind = Kind::kPlain;
  Tokens text;  // the prompt, then what is known of the answer
  std::size_t prompt = 0;
  std::size_t wanted = 0;
  bool comes_back = false;       // a session: its text is the beginning of another prompt
  std::optional<SequenceId> id;  // if it runs
  bool has_promise = false;
  Tokens said;             // what the sequence has, guesses and tokens to be named among them
  std::size_t done = 0;    // of these the device has computed
  std::size_t newest = 0;  // where the last append began
  std::size_t cut_at = 0;  // a stop string ends here: not before the text is longer
};

class MixedEngine {
 public:
  explicit MixedEngine(std::uint64_t seed)
      : random_(seed), manager_(must(KVCacheManager::create(spec(), options()))) {
    device_ = std::make_unique<FakeDevice>(spec().groups, Order::kInOrder);
    is_free_.resize(2);
    for (std::size_t g = 0; g < 2; ++g) {
      is_free_[g].assign(static_cast<std::size_t>(spec().groups[g].num_blocks), 1);
    }
  }

  void run(int steps) {
    for (int i = 0; i < steps && goes_on(); ++i) {
      if (chance(20)) arrive();
      step();
    }
    while (goes_on() && (!waiting_.empty() || !running_.empty())) step();
    while (goes_on() && !flight_.empty()) retire();
    if (!goes_on()) return;
    must(manager_.check_invariants());
    EXPECT_EQ(manager_.utilization(), 0);
  }

  // What happened.
  int twins_waited = 0;
  int cuts = 0;
  int void_rows = 0;
  int guesses_right = 0;
  int forks = 0;
  int cancelled = 0;
  int came_back = 0;
  int finished = 0;
  int behind_drafts = 0;   // appends that assume that guesses stand
  int promised_again = 0;  // cuts that gave a promise something back

 private:
  struct Row {
    std::shared_ptr<Request> request;
    SequenceId id;
    std::int32_t rewinds = 0;
    std::size_t begin = 0;
    std::size_t known = 0;  // of its tokens those that are no guesses
    Tokens input;
    bool unnamed = false;
  };
  struct Flying {
    Ticket ticket;
    std::vector<Row> rows;
  };
  using RequestPtr = std::shared_ptr<Request>;

  static CacheSpec spec() {
    GroupSpec window = window_group(kUnit, 40, 9);
    window.rewind = kRewind;
    return CacheSpec{{full_group(kUnit, 48), window}};
  }
  static ManagerOptions options() {
    return {.max_sequences = 16, .max_steps_in_flight = 2, .copies_by_host = true};
  }
  static bool goes_on() { return !testing::Test::HasFailure(); }
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  bool chance(int percent) { return below(100) < percent; }

  // ---- requests ----

  // A burst: the same beginning, which one of them computes for all.
  void arrive() {
    Tokens head(static_cast<std::size_t>(8 + below(20)));
    for (std::int32_t& token : head) token = below(50);
    for (int i = 1 + below(4); i > 0; --i) {
      Tokens prompt = head;
      for (int more = below(4); more > 0; --more) prompt.push_back(below(50));
      add(prompt);
    }
  }
  void add(Tokens prompt) {
    auto request = std::make_shared<Request>();
    request->number = ++num_requests_;
    request->kind = chance(50) ? Request::Kind::kDrafts : Request::Kind::kPlain;
    request->prompt = prompt.size();
    request->wanted = prompt.size() + static_cast<std::size_t>(4 + below(20));
    request->comes_back = prompt.size() < 60 && chance(20);
    request->text = std::move(prompt);
    waiting_.push_back(std::move(request));
  }

  bool is_older(SequenceId id, const Request& request) const {
    return std::any_of(running_.begin(), running_.end(), [&](const RequestPtr& each) {
      return each->id == id && each->number < request.number;
    });
  }

  // Opens what has room, in order; a twin of one that runs waits, and others overtake it.
  void start_waiting() {
    for (std::size_t i = 0; i < waiting_.size();) {
      Request& r = *waiting_[i];
      const OpenOptions how{.caller_id = static_cast<std::uint64_t>(r.number), .announce = true};
      const auto more = static_cast<std::int64_t>(r.wanted - r.prompt) + kSlack;
      const Result<Admission> admission =
          manager_.admit(r.text, how, more, {.most_per_step = kAtOnce});
      if (!admission) {
        ASSERT_NE(admission.error().shortage(), nullptr) << admission.error().message();
        ASSERT_FALSE(admission.error().shortage()->never()) << admission.error().message();
        return;
      }
      if (admission->soon.tokens - admission->cached_tokens >= kUnit &&
          is_older(admission->soon.by, r)) {
        ++twins_waited;
        ++i;
        continue;
      }
      const Opened opened = must(manager_.open(r.text, how));
      ASSERT_EQ(opened.cached_tokens, admission->cached_tokens);
      r.id = opened.sequence;
      r.said.assign(r.text.begin(), r.text.begin() + opened.cached_tokens);
      r.done = 0;  // what was found is findable before the device has computed it
      const auto rest = static_cast<std::int64_t>(r.prompt) - opened.cached_tokens;
      must(manager_.reserve(opened.sequence, rest + more, {.most_per_step = kAtOnce}));
      r.has_promise = true;
      running_.push_back(waiting_[i]);
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  // It is out of the manager; its rows in flight find it gone.
  void end(const RequestPtr& request) {
    request->id.reset();
    std::erase(running_, request);
  }

  void finish(const RequestPtr& request) {
    Request& r = *request;
    must(manager_.close(*r.id));
    end(request);
    ++finished;
    if (!r.comes_back) return;
    Tokens next = r.text;  // the user has read it, and goes on
    for (int i = 0; i < 6; ++i) next.push_back(below(50));
    add(std::move(next));
    ++came_back;
  }

  void cancel(const RequestPtr& request) {
    must(manager_.cancel(*request->id));
    end(request);
    ++cancelled;
  }

  // ---- a step ----

  // What the sequence appends now; false: nothing.
  bool append(Row& row) {
    Request& r = *row.request;
    row.begin = r.said.size();
    row.known = 0;
    row.input.clear();
    row.unnamed = false;
    Status status;
    if (row.begin < r.prompt) {
      const Result<std::int32_t> count = manager_.append_prompt(*r.id, r.text, kAtOnce);
      status = count ? Status() : count.error();
      const auto end = r.text.begin() + static_cast<std::ptrdiff_t>(row.begin);
      if (count) row.input.assign(end, end + *count);
      row.known = row.input.size();
    } else if (r.kind == Request::Kind::kPlain) {
      // One token, whose name comes with the results of the step before.
      if (row.begin >= r.wanted) return false;
      row.unnamed = row.begin >= r.text.size();
      row.input = {row.unnamed ? next_token(r.said) : r.text[row.begin]};
      row.known = 1;
      status = row.unnamed ? manager_.append_unnamed(*r.id, 1) : manager_.append(*r.id, row.input);
    } else {
      const SequenceInfo info = must(manager_.info(*r.id));
      if (r.text.size() >= r.wanted || row.begin >= r.wanted + kGuesses) return false;
      if (info.length - info.accepted_length + kGuesses > kAtOnce) return false;
      Tokens ahead = row.begin < r.text.size() ? r.text : r.said;
      row.known = ahead.size() - row.begin;
      while (ahead.size() < row.begin + kGuesses) {
        ahead.push_back(chance(20) ? below(50) : next_token(ahead));
      }
      row.input.assign(ahead.begin() + static_cast<std::ptrdiff_t>(row.begin), ahead.end());
      const auto draft = static_cast<std::int32_t>(row.input.size() - row.known);
      status = manager_.append(*r.id, row.input, {.draft = draft});
      behind_drafts += status.ok() && info.accepted_length < info.length ? 1 : 0;
    }
    if (status.shortage() != nullptr && !r.has_promise) return false;
    if (!status.ok()) {
      ADD_FAILURE() << "request " << r.number << ": " << status.message();
      return false;
    }
    // The block that it begins inside may be a copy, which comes with the step.
    r.newest = row.begin;
    r.done = std::min(r.done, row.begin / kUnit * kUnit);
    r.said.insert(r.said.end(), row.input.begin(), row.input.end());
    return !row.input.empty();
  }

  void step() {
    start_waiting();
    const Ticket ticket = must(manager_.begin_step());
    std::vector<Row> rows;
    for (const RequestPtr& request : running_) {
      Row row{.request = request, .id = *request->id, .input = {}};
      if (append(row)) rows.push_back(std::move(row));
    }
    if (chance(10)) static_cast<void>(must(manager_.plan()));
    if (!running_.empty() && chance(4)) {
      const RequestPtr gone = running_[static_cast<std::size_t>(below(int(running_.size())))];
      cancel(gone);
      std::erase_if(rows, [&](const Row& row) { return row.request == gone; });
    }
    const StepPlan& plan = *must(manager_.plan());
    ASSERT_EQ(plan.sequences.size(), rows.size());
    std::vector<fake_device::Row> texts;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(plan.sequences[i], rows[i].id);
      rows[i].rewinds = plan.rewinds[i];
      texts.push_back({rows[i].request->number, digests_of(rows[i].request->said)});
    }
    device_->submit(plan, std::move(texts), static_cast<Upload>(below(3)));
    must(manager_.commit(ticket));
    flight_.push_back({ticket, std::move(rows)});
    const bool is_full = flight_.size() == 2;
    if (is_full || chance(30)) retire();
    fork_some();
    note_free_blocks();
    check_bytes();
  }

  // Beams: a copy of what is decided and has names, which goes on by guesses of its own.
  void fork_some() {
    if (running_.empty() || running_.size() > 8 || !chance(10)) return;
    const Request& r = *running_[static_cast<std::size_t>(below(int(running_.size())))];
    const SequenceInfo info = must(manager_.info(*r.id));
    if (info.accepted_length != info.length || info.num_unnamed > 0) return;
    if (r.said.size() < r.prompt) return;
    auto beam = std::make_shared<Request>(r);
    beam->number = ++num_requests_;
    const Result<SequenceId> child =
        manager_.fork(*r.id, {.caller_id = static_cast<std::uint64_t>(beam->number)});
    if (!child) {
      ASSERT_NE(child.error().shortage(), nullptr) << child.error().message();
      return;
    }
    beam->id = *child;
    beam->has_promise = false;
    beam->comes_back = false;
    beam->kind = Request::Kind::kDrafts;
    // It goes another way from here on: its next token is another candidate.
    beam->text = beam->said;
    beam->text.push_back(below(50));
    beam->wanted = beam->text.size() + 6;
    running_.push_back(beam);
    ++forks;
  }

  // ---- results ----

  void retire() {
    const Flying flying = std::move(flight_.front());
    flight_.pop_front();
    device_->advance(flying.ticket, Phase::kDone);
    device_->wait();
    ASSERT_EQ(device_->violation(), "");
    // Results are read before or after the manager is told that the step is complete; names before.
    const bool late = chance(50);
    for (const Row& row : flying.rows) name(row);
    if (late) must(manager_.complete(flying.ticket));
    for (const Row& row : flying.rows) read(row);
    if (!late) must(manager_.complete(flying.ticket));
    device_->forget(flying.ticket);
  }

  bool is_void(const Row& row) const {
    const Result<SequenceInfo> info = manager_.info(row.id);
    return !info || info->rewinds != row.rewinds;
  }

  void name(const Row& row) {
    if (row.unnamed && !is_void(row)) must(manager_.set_tokens(row.id, row.input));
  }

  void read(const Row& row) {
    Request& r = *row.request;
    if (is_void(row)) {
      ++void_rows;
      return;
    }
    const std::size_t end = row.begin + row.input.size();
    const bool is_newest = row.begin == r.newest;
    r.done = std::max(r.done, is_newest ? end : std::min(end, r.newest / kUnit * kUnit));
    if (r.kind == Request::Kind::kPlain || end <= r.prompt) {
      if (end >= r.prompt && r.text.size() == end) {
        r.text.push_back(next_token(Tokens(r.said.begin(), at(r.said, end))));
      }
    } else {
      read_guesses(row);
    }
    if (r.id && r.text.size() > r.prompt) look_for_stop(row.request);
    if (r.id && r.text.size() >= r.wanted) finish(row.request);
  }

  void read_guesses(const Row& row) {
    Request& r = *row.request;
    std::size_t right = 0;
    while (right < row.input.size() && row.input[right] == r.text[row.begin + right]) {
      ++right;
      if (r.text.size() != row.begin + right) continue;
      r.text.push_back(next_token(r.text));
    }
    ASSERT_GE(right, row.known);
    if (row.known == row.input.size()) return;  // no guesses: accept() has nothing to say
    guesses_right += static_cast<int>(right - row.known);
    const std::int64_t promised = must(manager_.info(row.id)).reserved_tokens;
    must(manager_.accept(row.id, static_cast<std::int32_t>(right - row.known)));
    promised_again += must(manager_.info(row.id)).reserved_tokens > promised ? 1 : 0;
    if (right < row.input.size()) cut_said(r, row.begin + right);
    ASSERT_EQ(must(manager_.info(row.id)).length, static_cast<std::int32_t>(r.said.size()));
  }

  static Tokens::iterator at(Tokens& text, std::size_t n) {
    return text.begin() + static_cast<std::ptrdiff_t>(n);
  }
  static void cut_said(Request& r, std::size_t length) {
    r.said.resize(length);
    r.done = std::min(r.done, length);
  }

  // A stop string: the last tokens of the answer go, and the client goes on in its own words.
  void look_for_stop(const RequestPtr& request) {
    Request& r = *request;
    if (r.text.size() < r.cut_at || !chance(10)) return;
    const SequenceInfo info = must(manager_.info(*r.id));
    const auto least = static_cast<std::size_t>(info.rewind_from);
    const std::size_t from = std::max(least, r.prompt);
    if (from >= r.said.size() || from >= r.text.size()) return;
    const std::size_t most = std::min(r.said.size(), r.text.size() - 1);
    if (from > most) return;
    const std::size_t n = from + static_cast<std::size_t>(below(static_cast<int>(most - from) + 1));
    if (chance(30) && least > r.prompt) {
      // Below that it may be refused; if it is not, all that is read is there.
      const Status status = manager_.truncate(*r.id, info.rewind_from - 1);
      if (status.ok()) return stop_at(request, least - 1);
      ASSERT_EQ(status.code(), ErrorCode::kFailedPrecondition) << status.message();
    }
    const Status status = manager_.truncate(*r.id, static_cast<std::int32_t>(n));
    ASSERT_TRUE(status.ok()) << status.message();  // never refused from rewind_from on
    stop_at(request, n);
  }

  void stop_at(const RequestPtr& request, std::size_t n) {
    Request& r = *request;
    ++cuts;
    cut_said(r, n);
    r.text.resize(n);
    for (int i = 1 + below(2); i > 0; --i) r.text.push_back(below(50));
    r.cut_at = r.text.size() + 6;
    // truncate() does not promise again what was spent: a new total, or the end of the request.
    const auto rest = static_cast<std::int64_t>(std::max(r.wanted, r.text.size()) - n) + kSlack;
    if (!r.has_promise) return;
    const Status status = manager_.reserve(*r.id, rest, {.most_per_step = kAtOnce});
    if (status.ok()) return;
    ASSERT_NE(status.shortage(), nullptr) << status.message();
    cancel(request);
  }

  // ---- the oracle ----

  // What became free is lost.
  void note_free_blocks() {
    for (std::int32_t g = 0; g < 2; ++g) {
      auto& was_free = is_free_[static_cast<std::size_t>(g)];
      for (std::int32_t b = 0; b < static_cast<std::int32_t>(was_free.size()); ++b) {
        const bool now = must(manager_.block_state(GroupId(g), BlockId(b))) == BlockState::kFree;
        char& before = was_free[static_cast<std::size_t>(b)];
        if (now && before == 0) device_->poison(g, b);
        before = now ? 1 : 0;
      }
    }
  }

  // Every token that is computed and held has the bytes of its text.
  void check_bytes() {
    device_->wait();
    ASSERT_EQ(device_->violation(), "");
    for (const RequestPtr& request : running_) {
      const std::vector<Digest> digests = digests_of(request->said);
      for (std::int32_t g = 0; g < 2; ++g) {
        const auto table = must(manager_.block_table(*request->id, GroupId(g)));
        for (std::size_t p = 0; p < request->done; ++p) {
          const std::int32_t block = table[p / kUnit];
          if (block < 0) continue;
          const auto slot = static_cast<std::int32_t>(p % kUnit) + block * kUnit;
          ASSERT_EQ(device_->at(g, slot), digests[p])
              << "request " << request->number << " group " << g << " position " << p;
        }
      }
    }
  }

  std::mt19937_64 random_;
  KVCacheManager manager_;
  std::unique_ptr<FakeDevice> device_;
  std::deque<RequestPtr> waiting_;
  std::vector<RequestPtr> running_;
  std::deque<Flying> flight_;
  std::vector<std::vector<char>> is_free_;
  std::int32_t num_requests_ = 0;
};

TEST(MixedEngine, EveryTokenHasTheBytesOfItsTextAfterEachStep) {
  int sums[10] = {};
  const std::uint64_t first = env("KVFOLIO_SEED", 1);
  for (std::uint64_t seed = first; seed < first + num_runs(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    MixedEngine engine(seed);
    engine.run(60);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
    const int counts[] = {engine.twins_waited,  engine.cuts,     engine.void_rows,
                          engine.guesses_right, engine.forks,    engine.cancelled,
                          engine.came_back,     engine.finished, engine.behind_drafts,
                          engine.promised_again};
    for (std::size_t i = 0; i < 10; ++i) sums[i] += counts[i];
  }
  // All of it was met.
  for (const int sum : sums) EXPECT_GT(sum, 0);
  std::printf(
      "[engine] %d rounds of twins waited, %d cuts, %d void rows, %d guesses right, %d "
      "forks, %d cancelled, %d came back, %d finished, %d behind drafts, %d promised again\n",
      sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7], sums[8], sums[9]);
}

}  // namespace
}  // namespace kvfolio::testing_engine
