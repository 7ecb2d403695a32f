// SPDX-License-Identifier: Apache-2.0
//
// A manager that was moved from: each call of manager.h answers so, or stops with its name.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using ::testing::HasSubstr;

Status status_of(const Status& status) { return status; }
template <typename T>
Status status_of(const Result<T>& result) {
  return result ? Status() : result.error();
}

KVCacheManager a_manager() { return must(KVCacheManager::create(CacheSpec{{full_group(4, 8)}})); }

// A manager that was moved from.
KVCacheManager gone() {
  KVCacheManager from = a_manager();
  const KVCacheManager to = std::move(from);
  return from;  // NOLINT(bugprone-use-after-move): that is what it is for
}

// ---- each call of manager.h, with arguments that are nothing ----

template <typename T>
struct Nothing {
  std::remove_cvref_t<T> value{};
};
template <>
struct Nothing<KVCacheManager&> {
  KVCacheManager value = a_manager();
};

struct Call {
  std::string name;
  std::function<Status(KVCacheManager&)> make;
  bool can_say;  // its answer has a place for an error
};

// `Types`: those of the arguments, as the parameters of a function.
template <typename Types>
struct CallOf;
template <typename... T>
struct CallOf<void(T...)> {
  template <typename Make>
  static Call of(const char* name, const Make& make) {
    using Answer = std::invoke_result_t<Make, KVCacheManager&, std::remove_cvref_t<T>&...>;
    constexpr bool kCanSay = requires { status_of(std::declval<Answer>()); };
    const auto made = [make](KVCacheManager& manager) {
      std::tuple<Nothing<T>...> given;
      return std::apply(
          [&](auto&... each) {
            if constexpr (kCanSay) {
              return status_of(make(manager, each.value...));
            } else {
              static_cast<void>(make(manager, each.value...));
              return Status();
            }
          },
          given);
    };
    return {name, made, kCanSay};
  }
};

std::vector<Call> all_calls() {
  std::vector<Call> calls;
#define QUESTION(...)
#define CALL(name, types, is_const)  \
  calls.push_back(CallOf<types>::of( \
      #name, [](auto& m, auto&... of) -> decltype(auto) { return m.name(of...); }));
#include "manager_calls.inc"
#undef CALL
#undef QUESTION
  return calls;
}

// M4.
TEST(Moved, ACallThatCanSaysThatTheManagerWasMovedFrom) {
  KVCacheManager m = gone();
  KVCacheManager there = a_manager();
  int said = 0;
  for (const Call& call : all_calls()) {
    if (!call.can_say) continue;
    const Status status = call.make(m);
    EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition) << call.name;
    EXPECT_EQ(status.message(), call.name + ": the manager was moved from");
    ++said;
  }
  EXPECT_GE(said, 60);
  EXPECT_THAT(there.copy_to(m).message(), HasSubstr("the target: the manager was moved from"));
  // It may become a manager again, and the one that it was goes on elsewhere.
  m = std::move(there);
  EXPECT_TRUE(m.open(Tokens{1}).has_value());
  must(m.check_invariants());
}

// M4. What cannot say it in its answer.
TEST(MovedDeathTest, TheOthersStopWithTheNameOfTheCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  KVCacheManager m = gone();
  int stopped = 0;
  for (const Call& call : all_calls()) {
    if (call.can_say) continue;
    EXPECT_DEATH(static_cast<void>(call.make(m)), call.name + ": the manager was moved from");
    ++stopped;
  }
  EXPECT_GE(stopped, 20);
}

// Whatever it was in the midst of goes on where it is now.
TEST(Moved, AManagerGoesOnWhereItIsMoved) {
  KVCacheManager first = a_manager();
  const SequenceId s = must(first.open({})).sequence;
  const Ticket ticket = must(first.begin_step());
  must(first.append(s, tokens(1, 5)));
  KVCacheManager second = std::move(first);
  must(second.plan());
  must(second.finish(ticket));
  must(second.close(s));
  first = std::move(second);
  EXPECT_EQ(must(first.probe(tokens(1, 6))), 5);
  must(first.check_invariants());
}

}  // namespace
}  // namespace kvfolio::testing_engine
