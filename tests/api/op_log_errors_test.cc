// SPDX-License-Identifier: Apache-2.0
// OpLog and replay_log: what goes wrong with sinks, managers and files. tests/model_check records
// and replays random calls of every kind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "engine.h"
#include "kvfolio/byte_stream.h"
#include "kvfolio/op_replay.h"
#include "kvfolio/storage.h"
#include "op_log_pieces.h"

namespace kvfolio::testing_engine {
namespace {

using testing::HasSubstr;

class Memory final : public ByteSink, public ByteSource {
 public:
  Status write(std::span<const std::byte> more) override {
    if (bytes.size() + more.size() > room) return {ErrorCode::kUnavailable, "the sink is full"};
    bytes.insert(bytes.end(), more.begin(), more.end());
    return {};
  }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(bytes.size());
  }
  Status read_at(std::int64_t offset, std::span<std::byte> out) override {
    std::memcpy(out.data(), bytes.data() + offset, out.size());
    return {};
  }
  std::vector<std::byte> bytes;
  std::size_t room = 1 << 26;
};

const std::vector<GroupSpec>& recorded_groups() {
  static const std::vector<GroupSpec> kGroups = {full_group(4, 24), window_group(2, 30, 6)};
  return kGroups;
}

// A little of everything.
void live(Engine& engine) {
  engine.cache(tokens(50, 9), {.root = {.tenant_salt = "salt"}});
  const SequenceId parent = engine.say(tokens(1, 6), {.caller_id = 5});
  const SequenceId child = must(engine.manager.fork(parent));
  must(engine.manager.pin(tokens(1, 6)));
  EXPECT_FALSE(engine.manager.append(child, tokens(1, 1)).ok());
  std::array<std::int32_t, 8> evicted{};
  must(engine.manager.evict(GroupId(0), 2, evicted));
  engine.feed(child, tokens(9, 2));
  EXPECT_TRUE(engine.manager.select_victim().has_value());
  must(engine.manager.preempt_to(0.0));
}

Memory log_of_a_life() {
  Memory bytes;
  Engine engine(recorded_groups());
  OpLog log(bytes);
  engine.manager.record(&log);
  live(engine);
  engine.manager.record(nullptr);
  must(log.status());
  return bytes;
}

TEST(OpLog, AReplayEndsInTheSameState) {
  Memory bytes;
  Engine engine(recorded_groups());
  OpLog log(bytes);
  engine.manager.record(&log);
  live(engine);
  engine.manager.record(nullptr);
  const Replay replay = must(replay_log(bytes));
  must(replay.broken);
  EXPECT_FALSE(replay.difference);
  EXPECT_EQ(replay.log.num_calls, log.num_calls());
  EXPECT_EQ(replay.log.state_hash, must(engine.manager.state_hash()));
  EXPECT_EQ(must(replay.manager.state_hash()), must(engine.manager.state_hash()));
  live(engine);  // not recorded any more
  EXPECT_EQ(replay.log.num_calls, log.num_calls());
}

TEST(OpLog, TheSameCallsWriteTheSameBytes) {
  EXPECT_EQ(log_of_a_life().bytes, log_of_a_life().bytes);
}

TEST(OpLog, ALogDoesNotChangeAnAnswer) {
  Memory bytes;
  Engine with(recorded_groups());
  Engine without(recorded_groups());
  OpLog log(bytes, {.flush_each_call = true});
  with.manager.record(&log);
  live(with);
  live(without);
  EXPECT_EQ(must(with.manager.state_hash()), must(without.manager.state_hash()));
  EXPECT_EQ(with.counters().blocks_allocated, without.counters().blocks_allocated);
}

TEST(OpLog, AFullSinkEndsTheLogAndNothingElse) {
  for (std::size_t room = 0; room < 300; room += 20) {
    Memory bytes;
    bytes.room = room;
    Engine engine(recorded_groups());
    OpLog log(bytes, {.flush_each_call = true});
    engine.manager.record(&log);
    live(engine);
    EXPECT_THAT(log.status().message(), HasSubstr("the sink is full"));
    engine.manager.record(nullptr);
    EXPECT_LE(bytes.bytes.size(), room);
  }
}

TEST(OpLog, OnlyAManagerThatIsNewAndALogThatIsNewAreTaken) {
  Memory bytes;
  Engine engine(recorded_groups());
  engine.cache(tokens(1, 5));
  OpLog late(bytes);
  engine.manager.record(&late);
  EXPECT_EQ(late.status().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(late.status().message(), HasSubstr("used before"));
  engine.cache(tokens(1, 5));
  EXPECT_TRUE(bytes.bytes.empty());

  Engine one(recorded_groups());
  Engine other(recorded_groups());
  OpLog log(bytes);
  one.manager.record(&log);
  live(one);
  one.manager.record(nullptr);
  other.manager.record(&log);
  EXPECT_THAT(log.status().message(), HasSubstr("another manager"));
}

TEST(OpLog, CopyToEndsTheLogOfTheTarget) {
  Memory bytes;
  Engine engine(recorded_groups());
  Engine target(recorded_groups());
  OpLog log(bytes);
  target.manager.record(&log);
  live(engine);
  must(engine.manager.copy_to(target.manager));
  EXPECT_THAT(log.status().message(), HasSubstr("copy_to"));
  target.manager.record(nullptr);
}

TEST(OpLog, ALongPromptGoesThroughTheBufferInPieces) {
  Memory bytes;
  Engine engine({full_group(16, 8192)});
  OpLog log(bytes);
  engine.manager.record(&log);
  engine.cache(tokens(1'000'000, 100'000));
  engine.manager.record(nullptr);
  EXPECT_GT(bytes.bytes.size(), 200'000U);
  const Replay replay = must(replay_log(bytes));
  must(replay.broken);
  EXPECT_EQ(replay.log.state_hash, must(engine.manager.state_hash()));
}

// The call in which a program died is there, and is made again.
TEST(OpLog, WithAFlushBeforeEachCallTheLastOneNeedsNoAnswer) {
  Memory bytes;
  Engine engine(recorded_groups());
  OpLog log(bytes, {.flush_each_call = true});
  engine.manager.record(&log);
  const SequenceId sequence = engine.say(tokens(1, 6));
  const std::size_t before = bytes.bytes.size();
  must(engine.manager.close(sequence));
  Memory cut;
  cut.bytes.assign(bytes.bytes.begin(),
                   bytes.bytes.begin() + static_cast<std::ptrdiff_t>(before) + 4);
  for (bool found = false; !found && cut.bytes.size() < bytes.bytes.size();) {
    const Replay replay = must(replay_log(cut));
    must(replay.broken);
    EXPECT_FALSE(replay.log.ended);
    found = replay.unanswered.has_value();
    if (found) {
      EXPECT_EQ(replay.unanswered->name, "close");
      EXPECT_EQ(replay.unanswered->arguments, "sequence 0.1");
      EXPECT_EQ(replay.unanswered->answer, "ok");
      EXPECT_EQ(replay.manager.num_sequences(), 0);
      return;
    }
    cut.bytes.push_back(bytes.bytes[cut.bytes.size()]);
  }
  ADD_FAILURE() << "no cut leaves the call without its answer";
}

// Why nothing of it was believed, or what was made of it.
std::string said_of(Memory& bytes) {
  Result<Replay> replay = replay_log(bytes, {.max_memory_bytes = 64 << 20});
  const auto why = [](const Status& status) {
    return status.ok() ? std::string() : std::string(status.message());
  };
  std::string said = why(replay ? replay->broken : replay.error());
  if (replay && replay->difference) said += " AND A DIFFERENCE";
  Result<OpLogReader> reader = OpLogReader::open(bytes);
  if (!reader) return said;
  Result<std::optional<LoggedCall>> call = reader->next();
  while (call && *call) call = reader->next();
  EXPECT_EQ(why(call ? Status() : call.error()), why(replay->broken));
  return said;
}

TEST(OpLog, EachFlippedByteIsSaidAndNothingOfItsPieceIsBelieved) {
  for (const bool each_call : {false, true}) {
    Memory good;
    Engine engine(recorded_groups());
    OpLog log(good, {.flush_each_call = each_call});
    engine.manager.record(&log);
    live(engine);
    engine.manager.record(nullptr);
    ASSERT_EQ(said_of(good), "");
    for (std::size_t i = 0; i < good.bytes.size(); ++i) {
      for (const int flip : {1, 3, 128}) {
        Memory bad = good;
        bad.bytes[i] ^= static_cast<std::byte>(flip);
        const std::string said = said_of(bad);
        EXPECT_THAT(said, testing::AnyOf(HasSubstr("is damaged"), HasSubstr("of format"),
                                         HasSubstr("not an operation log")))
            << i;
        EXPECT_THAT(said, testing::Not(HasSubstr("DIFFERENCE"))) << i;
      }
    }
  }
}

TEST(OpLog, APieceThatIsMissingOrStandsTwiceOrElsewhereIsSaid) {
  Memory good;
  Engine engine(recorded_groups());
  OpLog log(good, {.flush_each_call = true});
  engine.manager.record(&log);
  live(engine);
  engine.manager.record(nullptr);
  const std::vector<std::span<const std::byte>> pieces = op_log_pieces::of(good.bytes);
  ASSERT_GT(pieces.size(), 20U);
  const auto joined = [&](const std::vector<std::size_t>& order) {
    Memory file;
    for (const std::size_t i : order) must(file.write(pieces[i]));
    return file;
  };
  std::vector<std::size_t> all(pieces.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  for (std::size_t i = 1; i + 1 < all.size(); ++i) {
    std::vector<std::size_t> missing = all;
    missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
    std::vector<std::size_t> twice = all;
    twice.insert(twice.begin() + static_cast<std::ptrdiff_t>(i), i);
    std::vector<std::size_t> swapped = all;
    std::swap(swapped[i], swapped[i + 1]);
    for (const std::vector<std::size_t>& order : {missing, twice, swapped}) {
      Memory bad = joined(order);
      EXPECT_THAT(said_of(bad), HasSubstr("is damaged")) << i;
    }
  }
}

TEST(OpLog, HowManyBytesOfACutPieceAreLeftIsSaid) {
  const Memory good = log_of_a_life();
  const std::vector<std::span<const std::byte>> pieces = op_log_pieces::of(good.bytes);
  const std::size_t begin = good.bytes.size() - pieces.back().size();
  for (std::size_t size = begin; size < good.bytes.size(); ++size) {
    Memory cut;
    cut.bytes.assign(good.bytes.begin(), good.bytes.begin() + static_cast<std::ptrdiff_t>(size));
    const Replay replay = must(replay_log(cut));
    must(replay.broken);
    EXPECT_FALSE(replay.log.ended);
    EXPECT_EQ(replay.log.bytes_cut, static_cast<std::int64_t>(size - begin));
  }
}

// As libraries before format 2 wrote them; their state hashes are not ours.
TEST(OpLog, ALogOfFormat1IsListedAndReplayed) {
  for (const auto& [name, calls] : {std::pair("generate", 218U), std::pair("tier", 27U)}) {
    const std::string path = "tests/fuzz/corpus/op_log/" + std::string(name);
    FileSource file = must(FileSource::open(path));
    EXPECT_EQ(must(OpLogReader::open(file)).header().format, 1U);
    const Replay replay = must(replay_log(file));
    must(replay.broken);
    EXPECT_FALSE(replay.difference) << replay.difference->name;
    EXPECT_TRUE(replay.log.ended);
    EXPECT_FALSE(replay.log.hash_is_ours);
    EXPECT_EQ(replay.log.num_calls, calls);
  }
}

TEST(OpLog, TheFirstCallThatAnswersOtherwiseIsNamedWithBothAnswers) {
  Memory bytes = log_of_a_life();
  std::vector<std::string> named;
  for (std::size_t i = 0; i < bytes.bytes.size(); ++i) {
    Memory bad = bytes;
    bad.bytes[i] ^= std::byte{2};
    op_log_pieces::make_right(bad.bytes);
    const Result<Replay> replay = replay_log(bad);
    if (!replay || !replay->difference) continue;
    EXPECT_FALSE(replay->difference->recorded.empty());
    EXPECT_NE(replay->difference->recorded, replay->difference->replayed);
    named.push_back(replay->difference->name);
  }
  EXPECT_GT(named.size(), 50U);
  EXPECT_THAT(named, testing::Contains("evict"));
  EXPECT_THAT(named, testing::Contains("open"));
}

TEST(OpLog, CallsCanBeListed) {
  Memory bytes = log_of_a_life();
  OpLogReader reader = must(OpLogReader::open(bytes));
  EXPECT_EQ(reader.header().spec, CacheSpec{recorded_groups()});
  EXPECT_FALSE(reader.header().has_storage);
  const LoggedCall first = *must(reader.next());
  EXPECT_EQ(first.number, 1U);
  EXPECT_EQ(first.name, "open");
  EXPECT_THAT(first.arguments,
              HasSubstr("[50, 51, 52, 53, 54, 55, 56, 57, 58], tenant_salt \"salt\""));
  EXPECT_EQ(first.answer, "ok, sequence 0.1");
  std::uint64_t count = 1;
  while (must(reader.next()).has_value()) ++count;
  EXPECT_TRUE(reader.end().ended);
  EXPECT_EQ(reader.end().num_calls, count);
}

TEST(OpLog, HostileBytesEndAReplayAndNeverTheProgram) {
  const Memory good = log_of_a_life();
  std::mt19937 random(7);
  const ReplayOptions small{.max_memory_bytes = 64 << 20};
  for (std::size_t size = 0; size < good.bytes.size(); size += 3) {
    Memory cut;
    cut.bytes.assign(good.bytes.begin(), good.bytes.begin() + static_cast<std::ptrdiff_t>(size));
    static_cast<void>(replay_log(cut, small));
  }
  for (int i = 0; i < 1000; ++i) {
    Memory bad = good;
    for (int edit = random() % 4; edit >= 0; --edit) {
      bad.bytes[random() % bad.bytes.size()] = static_cast<std::byte>(random());
    }
    if (i % 4 != 0) op_log_pieces::make_right(bad.bytes);
    const Result<Replay> replay = replay_log(bad, small);
    if (replay) {
      EXPECT_TRUE(replay->manager.check_invariants().ok()) << i;
    }
  }
}

TEST(OpLog, AHeaderThatAsksForTooMuchMemoryIsRefused) {
  Memory bytes;
  Engine engine({full_group(16, 1 << 20)});
  OpLog log(bytes);
  engine.manager.record(&log);
  engine.manager.record(nullptr);
  const Result<Replay> refused = replay_log(bytes, {.max_memory_bytes = 64 << 20});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr("MiB, allowed: max_memory_bytes, 64 MiB"));
}

TEST(OpLog, AFileHasMode0600AndSaysWhatIsWrongWithItsPlace) {
  const std::string path = testing::TempDir() + "kvfolio_op_log_test." + std::to_string(::getpid());
  {
    FileLog file = must(FileLog::create(path));
    Engine engine(recorded_groups());
    OpLog log(file);
    engine.manager.record(&log);
    live(engine);
    engine.manager.record(nullptr);
    must(log.status());
  }
  struct stat there {};
  ASSERT_EQ(::stat(path.c_str(), &there), 0);
  EXPECT_EQ(there.st_mode & 0777, 0600U);
  EXPECT_EQ(static_cast<std::size_t>(there.st_size), log_of_a_life().bytes.size());
  {
    const FileLog first = must(FileLog::create(path));
    EXPECT_THAT(FileLog::create(path).error().message(), HasSubstr("another log is being written"));
  }
  must(FileLog::create(path));
  std::remove(path.c_str());
  EXPECT_THAT(FileLog::create("/nowhere/log").error().message(), HasSubstr("/nowhere/log"));
  EXPECT_THAT(FileLog::create("/dev/null").error().message(), HasSubstr("not a regular file"));
  EXPECT_FALSE(FileLog::create(testing::TempDir()));
}

// The log of format 2 as format 1 had it: bare, and its options end with id_tag.
void make_format_1(Memory& log) {
  const op_log_pieces::Bytes calls = op_log_pieces::calls_of(log.bytes);
  std::vector<std::byte> old(
      log.bytes.begin(),
      log.bytes.begin() + static_cast<std::ptrdiff_t>(op_log_pieces::header_bytes(log.bytes)));
  old.erase(old.end() - 5);  // before the hash
  LittleEndianWriter(std::span(old).subspan(8)).put(kOpLogFormatBare);
  LittleEndianWriter(std::span(old).subspan(12))
      .put(static_cast<std::uint32_t>(old.size() - op_log_pieces::kHeadBytes - 4));
  old.insert(old.end(), calls.begin(), calls.end());
  op_log_pieces::make_right(old);
  log.bytes = old;
}

// What commit() and append() refuse today they took then.
void make_every_mistake(KVCacheManager& manager) {
  const SequenceId parent = must(manager.open(tokens(1, 6))).sequence;
  Ticket ticket = must(manager.begin_step());
  must(manager.append(parent, tokens(1, 6)));
  must(manager.plan());
  const SequenceId late = must(manager.open(tokens(20, 4))).sequence;
  must(manager.append(late, tokens(20, 4)));
  must(manager.finish(ticket));
  const SequenceId child = must(manager.fork(parent));
  ticket = must(manager.begin_step());
  must(manager.append(child, tokens(70, 2)));
  must(manager.finish(ticket));
  must(manager.close(child));
  ticket = must(manager.begin_step());
  const Opened again = must(manager.open(tokens(20, 5)));
  EXPECT_EQ(again.cached_tokens, 4);
  must(manager.append(again.sequence, tokens(20, 5)));
  must(manager.commit(ticket));
  must(manager.complete(ticket));
  ticket = must(manager.begin_step());
  must(manager.plan());
  must(manager.open(tokens(20, 5)));
}

TEST(OpLog, ALogFromBeforeMistakesWereRefusedIsReplayedAsItWasAnswered) {
  Memory log_bytes;
  KVCacheManager manager =
      must(KVCacheManager::create(must(KVStorage::create(CacheSpec{recorded_groups()}))));
  detail::answer_as_in(manager, 1);  // as the library was then
  OpLog log(log_bytes);
  detail::write_format(log, 2);
  manager.record(&log);
  make_every_mistake(manager);
  manager.record(nullptr);
  must(log.status());
  // Recorded today these answers would be wrong.
  const Replay today = must(replay_log(log_bytes));
  ASSERT_TRUE(today.difference);
  EXPECT_EQ(today.difference->name, "finish");

  make_format_1(log_bytes);
  const Replay replay = must(replay_log(log_bytes));
  must(replay.broken);
  EXPECT_FALSE(replay.difference) << replay.difference->name << replay.difference->replayed;
  EXPECT_TRUE(replay.log.ended);
  EXPECT_TRUE(replay.manager.options().copies_by_host);
}

TEST(OpLog, ALogOfFormat2IsReplayed) {
  Memory log_bytes;
  Engine e({full_group(4, 16), window_group(4, 16, 5)});
  OpLog log(log_bytes);
  detail::write_format(log, 2);
  e.manager.record(&log);
  e.cache(tokens(1, 6));
  e.say(tokens(1, 9));
  e.manager.record(nullptr);
  EXPECT_EQ(must(OpLogReader::open(log_bytes)).header().format, 2U);
  const Replay replay = must(replay_log(log_bytes));
  must(replay.broken);
  EXPECT_FALSE(replay.difference) << replay.difference->name << replay.difference->replayed;
  EXPECT_TRUE(replay.log.ended);
  EXPECT_FALSE(replay.log.hash_is_ours);
  EXPECT_EQ(replay.manager.counters().tokens_reused, 6U);
}

// The cache has what position 9 reads; before format 3 nothing was taken back from it.
TEST(OpLog, ATruncateBelowTheWindowIsReplayedByTheRulesOfThen) {
  for (const std::uint32_t format : {2u, 3u}) {
    Memory log_bytes;
    Engine e({full_group(4, 16), window_group(4, 16, 6)});
    OpLog log(log_bytes);
    detail::write_format(log, format);
    detail::answer_as_in(e.manager, format);
    e.manager.record(&log);
    const SequenceId s = e.say(tokens(1, 24));
    const Status below = e.manager.truncate(s, 9);
    EXPECT_EQ(below.code(), format < 3 ? kMoment : ErrorCode::kOk) << below.message();
    EXPECT_EQ(e.info(s).length, format < 3 ? 24 : 9);
    must(e.manager.truncate(s, format < 3 ? 0 : 9));
    e.manager.record(nullptr);
    const Replay replay = must(replay_log(log_bytes));
    must(replay.broken);
    EXPECT_FALSE(replay.difference) << format << replay.difference->replayed;
    EXPECT_TRUE(replay.log.ended);
    must(replay.manager.check_invariants());
  }
}

TEST(OpLog, RewindsCallersAndTouchesAreReplayed) {
  Memory log_bytes;
  GroupSpec window = window_group(4, 16, 5);
  window.rewind = 7;
  Engine e({full_group(4, 16), window});
  OpLog log(log_bytes);
  e.manager.record(&log);
  const SequenceId s = e.open(tokens(1, 20), {.caller_id = 3}).sequence;
  const Ticket ticket = must(e.manager.begin_step());
  must(e.manager.append_prompt(s, tokens(1, 20), 18));
  must(e.manager.plan({.caller_ids = true}));
  must(e.manager.finish(ticket));
  must(e.manager.truncate(s, 11));
  must(e.manager.touch(s));
  must(e.manager.cancel(s));
  e.manager.record(nullptr);
  const Replay replay = must(replay_log(log_bytes));
  must(replay.broken);
  EXPECT_FALSE(replay.difference) << replay.difference->name << replay.difference->replayed;
  EXPECT_EQ(replay.manager.spec().groups[1].rewind, 7);
  EXPECT_EQ(replay.manager.counters().sequences_closed, 1U);
}

TEST(OpLog, ALogOfFormat3IsReplayed) {
  Memory log_bytes;
  Engine e({full_group(4, 16), window_group(4, 16, 5)}, {.max_announced_tokens = 24});
  OpLog log(log_bytes);
  detail::write_format(log, 3);
  e.manager.record(&log);
  e.open(tokens(40, 9), {.announce = true});
  must(e.manager.begin_step());
  must(e.manager.plan({.caller_ids = true}));
  e.manager.record(nullptr);
  EXPECT_EQ(must(OpLogReader::open(log_bytes)).header().format, 3U);
  const Replay replay = must(replay_log(log_bytes));
  must(replay.broken);
  EXPECT_FALSE(replay.difference) << replay.difference->name << replay.difference->replayed;
  EXPECT_EQ(replay.manager.options().max_announced_tokens, 24);
}

// What the library of then wrote, before drafts of several appends (0750e655^): a plan with a
// sequence that left, an append behind drafts, and promises of which drafts were rejected.
TEST(OpLog, ALogFromBeforeDraftsOverStepsIsReplayedAsItWasAnswered) {
  FileSource file = must(FileSource::open("tests/fuzz/corpus/op_log/drafts_3"));
  OpLogReader reader = must(OpLogReader::open(file));
  EXPECT_EQ(reader.header().format, 3U);
  std::map<std::string, int> refused;
  while (const auto call = must(reader.next())) {
    if (call->answer.find("ok") != 0) ++refused[call->name];
  }
  EXPECT_THAT(refused,
              testing::ElementsAre(testing::Pair("append", 1), testing::Pair("open_unnamed", 2)));
  const Replay replay = must(replay_log(file));
  must(replay.broken);
  ASSERT_FALSE(replay.difference) << replay.difference->call << replay.difference->name << ": "
                                  << replay.difference->recorded << " / "
                                  << replay.difference->replayed;
  EXPECT_TRUE(replay.log.ended);
  EXPECT_FALSE(replay.log.hash_is_ours);
  must(replay.manager.check_invariants());
}

// The same mistakes in a log of today are refused in the replay, too.
TEST(OpLog, TheRulesOfThenAreThoseOfOldFormatsAlone) {
  for (const std::uint32_t format : {2u, 3u, 4u}) {
    Memory log_bytes;
    Engine e({full_group(4, 16)});
    OpLog log(log_bytes);
    detail::write_format(log, format);
    detail::answer_as_in(e.manager, format);
    e.manager.record(&log);
    const SequenceId leaves = e.open(tokens(1, 3)).sequence;
    const SequenceId stays = e.open(tokens(20, 3)).sequence;
    Ticket ticket = must(e.manager.begin_step());
    must(e.manager.append(leaves, tokens(1, 3)));
    must(e.manager.append(stays, tokens(20, 3), {.draft = 2}));
    must(e.manager.plan());
    must(e.manager.undo(leaves));
    EXPECT_EQ(e.manager.commit(ticket).ok(), format < 4) << format;
    if (format == 4) must(e.manager.plan());
    if (format == 4) must(e.manager.commit(ticket));
    ticket = must(e.manager.begin_step());
    EXPECT_EQ(e.manager.append(stays, tokens(23, 1)).ok(), format == 4) << format;
    e.manager.record(nullptr);
    const Replay replay = must(replay_log(log_bytes));
    must(replay.broken);
    EXPECT_FALSE(replay.difference) << format << replay.difference->name;
    EXPECT_EQ(replay.log.state_hash, must(replay.manager.state_hash())) << format;
  }
}

TEST(OpLog, FixedShapesAreReplayedInMemoryAsLargeAsThatOfTheCaller) {
  Memory log_bytes;
  Engine e({full_group(4, 16)}, {.null_block = true});
  OpLog log(log_bytes);
  e.manager.record(&log);
  const SequenceId s = e.open(tokens(1, 9)).sequence;
  const Ticket ticket = must(e.manager.begin_step());
  must(e.manager.append(s, tokens(1, 9)));
  const std::int32_t stride = 5;
  PlanOptions options{.flashinfer = true,
                      .table_stride = {&stride, 1},
                      .padded_sequences = 3,
                      .padded_tokens = 12,
                      .int64_slots = true};
  std::vector<std::uint64_t> words(1024);
  const auto memory = std::as_writable_bytes(std::span(words));
  must(e.manager.plan(options));
  for (const auto& part : {memory, memory.first(64), memory.subspan(3)}) {
    options.memory = part;  // enough, too little, and misaligned
    static_cast<void>(e.manager.plan(options));
  }
  must(e.manager.finish(ticket));
  e.manager.record(nullptr);
  const Replay replay = must(replay_log(log_bytes));
  must(replay.broken);
  EXPECT_FALSE(replay.difference) << replay.difference->name << replay.difference->recorded << " / "
                                  << replay.difference->replayed;
  EXPECT_TRUE(replay.manager.options().null_block);
  EXPECT_EQ(must(replay.manager.state_hash()), *replay.log.state_hash);
  // In words.
  OpLogReader reader = must(OpLogReader::open(log_bytes));
  std::vector<LoggedCall> plans;
  while (const auto call = must(reader.next())) {
    if (call->name == "plan") plans.push_back(*call);
  }
  ASSERT_EQ(plans.size(), 4u);
  EXPECT_THAT(plans[1].arguments,
              HasSubstr("table_stride [5], padded_sequences 3, padded_tokens 12, int64_slots yes, "
                        "memory 8192 bytes"));
  EXPECT_THAT(plans[2].answer, HasSubstr("invalid"));
  EXPECT_THAT(plans[3].answer, HasSubstr("invalid"));
}

// The log of one plan that was refused: no step was open.
Memory log_of_plan(const PlanOptions& options) {
  Memory log_bytes;
  Engine e({full_group(4, 16)});
  OpLog log(log_bytes);
  e.manager.record(&log);
  EXPECT_FALSE(e.manager.plan(options));
  e.manager.record(nullptr);
  return log_bytes;
}

TEST(OpLog, APlanOfHugeShapesIsNotReplayed) {
  const std::int32_t stride = 1 << 14;
  for (const PlanOptions& options :
       {PlanOptions{.padded_tokens = 1 << 30},
        PlanOptions{.table_stride = {&stride, 1}, .padded_sequences = 1024}}) {
    Memory log_bytes = log_of_plan(options);
    const Replay replay = must(replay_log(log_bytes, {.max_memory_bytes = 64 << 20}));
    EXPECT_EQ(replay.broken.code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(replay.broken.message(), HasSubstr("allowed: max_memory_bytes, 64 MiB"));
  }
}

// The numbers of a log are not believed: what is out of range needs nothing, and so little memory
// is given in place of that of the caller.
TEST(OpLog, APlanOfImpossibleShapesIsRefusedInTheReplayAsItWas) {
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  std::uint64_t word = 0;
  const std::span<std::byte> claimed(reinterpret_cast<std::byte*>(&word), std::size_t{1} << 60);
  const std::array<std::int32_t, 2> strides = {kLeast, kMost};
  for (const std::int32_t shape : {kLeast, -(1 << 30), -1}) {
    for (const PlanOptions& options :
         {PlanOptions{.padded_tokens = shape, .memory = claimed},
          PlanOptions{.padded_sequences = shape, .memory = claimed},
          PlanOptions{.table_stride = std::span(strides).first(1),
          .padded_sequences = shape,
          .padded_tokens = shape,
          .memory = claimed},
          PlanOptions{.table_stride = strides, .padded_tokens = shape, .memory = claimed}}) {
      Memory log_bytes = log_of_plan(options);
      const Replay replay = must(replay_log(log_bytes));
      must(replay.broken);
      EXPECT_FALSE(replay.difference);
      EXPECT_TRUE(replay.log.ended);
    }
  }
}

// Each step keeps the buffer of its plan: one is allowed, eight of them are not.
TEST(OpLog, TheMemoryOfAllPlansIsBoundedTogether) {
  constexpr std::int64_t kLimit = std::int64_t{64} << 20;
  Memory log_bytes;
  Engine e({full_group(4, 16)}, {.max_sequences = 4, .max_steps_in_flight = 8});
  OpLog log(log_bytes);
  e.manager.record(&log);
  const std::int64_t before = e.manager.metadata().reserved;
  for (int i = 0; i < 8; ++i) {
    const Ticket ticket = must(e.manager.begin_step());
    must(e.manager.plan({.padded_tokens = 2 << 20}));
    must(e.manager.commit(ticket));
  }
  e.manager.record(nullptr);
  const std::int64_t grown = e.manager.metadata().reserved - before;
  EXPECT_GT(grown, kLimit);
  const Replay all = must(replay_log(log_bytes, {.max_memory_bytes = 2 * grown}));
  must(all.broken);
  EXPECT_TRUE(all.log.ended);
  const Replay replay = must(replay_log(log_bytes, {.max_memory_bytes = kLimit}));
  EXPECT_EQ(replay.broken.code(), ErrorCode::kResourceExhausted);
  EXPECT_GT(replay.log.num_calls, 6u);
  EXPECT_LT(replay.manager.metadata().reserved - before, kLimit);
}

// Memory that the caller gave grows to what is asked: twice of what it was would leave no room.
TEST(OpLog, TheMemoryGivenToPlansIsNoMoreThanTheLargestWas) {
  Memory log_bytes;
  Engine e({full_group(4, 16)});
  OpLog log(log_bytes);
  e.manager.record(&log);
  std::uint64_t word = 0;
  for (const std::size_t mib : {20U, 21U, 21U}) {
    const std::span<std::byte> claimed(reinterpret_cast<std::byte*>(&word), mib << 20);
    EXPECT_FALSE(e.manager.plan({.padded_tokens = 2 << 20, .memory = claimed}));  // no step is open
  }
  e.manager.record(nullptr);
  const Replay replay = must(replay_log(log_bytes, {.max_memory_bytes = 50 << 20}));
  must(replay.broken);
  EXPECT_FALSE(replay.difference) << replay.difference->replayed;
  EXPECT_TRUE(replay.log.ended);
}

// What the replay gives in place of the memory of the caller has room for it.
TEST(OpLog, APlanAsWideAsTheExpectedLengthIsReplayed) {
  Memory log_bytes;
  Engine e({full_group(4, 16)},
           {.max_sequences = 1, .max_sequence_tokens = 1 << 20, .max_table_entries = 4096});
  OpLog log(log_bytes);
  e.manager.record(&log);
  const std::array<std::int32_t, 1> stride = {must(e.manager.widest(GroupId(0)))};
  PlanOptions options{.table_stride = stride, .padded_sequences = 1, .padded_tokens = 1};
  std::vector<std::uint64_t> words(static_cast<std::size_t>(must(e.manager.plan_bytes(options))) /
                                   8);
  options.memory = std::as_writable_bytes(std::span(words));
  must(e.manager.begin_step());
  must(e.manager.plan(options));
  e.manager.record(nullptr);
  const Replay replay = must(replay_log(log_bytes));
  must(replay.broken);
  EXPECT_FALSE(replay.difference) << replay.difference->replayed;
  EXPECT_TRUE(replay.log.ended);
}

TEST(OpLog, AnnouncementsAreReplayed) {
  Memory log_bytes;
  Engine e({full_group(4, 16)}, {.max_announced_tokens = 24});
  OpLog log(log_bytes);
  e.manager.record(&log);
  const SequenceId first = e.open(tokens(1, 16), {.announce = true}).sequence;
  EXPECT_EQ(e.open(tokens(1, 16), {.announce = true}).soon.by, first);  // and is left out
  e.feed(first, tokens(1, 9));
  e.manager.record(nullptr);
  const Replay replay = must(replay_log(log_bytes));
  EXPECT_FALSE(replay.difference) << replay.difference->name;
  EXPECT_EQ(replay.manager.counters().announcements_skipped, 1U);
  EXPECT_EQ(must(replay.manager.soon(tokens(1, 16))), (Soon{15, first}));
  EXPECT_EQ(must(replay.manager.state_hash()), *replay.log.state_hash);
}

TEST(OpLog, WhoCopiesIsReplayedAsItWasSet) {
  for (const bool by_host : {false, true}) {
    Memory log_bytes;
    KVCacheManager manager = must(KVCacheManager::create(
        must(KVStorage::create(CacheSpec{recorded_groups()})), {.copies_by_host = by_host}));
    OpLog log(log_bytes);
    manager.record(&log);
    const SequenceId parent = must(manager.open(tokens(1, 6))).sequence;
    Ticket ticket = must(manager.begin_step());
    must(manager.append(parent, tokens(1, 6)));
    must(manager.finish(ticket));
    ticket = must(manager.begin_step());
    must(manager.append(must(manager.fork(parent)), tokens(70, 2)));
    EXPECT_EQ(manager.finish(ticket).ok(), by_host);
    manager.record(nullptr);
    const Replay replay = must(replay_log(log_bytes));
    must(replay.broken);
    EXPECT_FALSE(replay.difference);
    EXPECT_EQ(replay.manager.options().copies_by_host, by_host);
    EXPECT_EQ(must(replay.manager.state_hash()), *replay.log.state_hash);
  }
}

}  // namespace
}  // namespace kvfolio::testing_engine
