// SPDX-License-Identifier: Apache-2.0
#include "request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace kvfolio::llama {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Vocabulary kBytes{.size = 256};
const Vocabulary kWords{.size = 32000};

std::string request_error(const std::string& line, const Vocabulary& vocabulary = kBytes) {
  const auto request = parse_request(line, {}, vocabulary);
  return request ? "no error" : request.error().message();
}

Result<std::vector<Request>> read(const std::string& text) {
  std::istringstream input(text);
  return read_requests(input, "f.jsonl", {}, kBytes);
}

std::string read_error(const std::string& text) {
  const auto requests = read(text);
  return requests ? "no error" : requests.error().message();
}

TEST(Request, TakesEveryField) {
  const auto request = parse_request(
      R"({"id":"a","prompt":"Hi","max_new_tokens":3,"samples":2,"beams":1,"temperature":0.5,)"
      R"("top_p":0.9,"seed":7,"stop_ids":[1,2]})",
      {}, kBytes);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->id, "a");
  EXPECT_EQ(request->prompt, (std::vector<std::int32_t>{'H', 'i'}));
  EXPECT_EQ(request->max_new_tokens, 3);
  EXPECT_EQ(request->samples, 2);
  EXPECT_EQ(request->temperature, 0.5);
  EXPECT_EQ(request->top_p, 0.9);
  EXPECT_EQ(request->seed, 7);
  EXPECT_EQ(request->stop_ids, (std::vector<std::int32_t>{1, 2}));
}

TEST(Request, MissingFieldsAreTheDefaults) {
  Request defaults;
  defaults.max_new_tokens = 5;
  defaults.seed = 9;
  const auto request = parse_request(R"({"prompt_ids":[0,255],"seed":1})", defaults, kBytes);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->max_new_tokens, 5);
  EXPECT_EQ(request->seed, 1);
  EXPECT_EQ(request->prompt, (std::vector<std::int32_t>{0, 255}));
}

TEST(Request, TextIsBytesWhateverTheyAre) {
  const auto request = parse_request(R"({"prompt":"\u00e9\n"})", {}, kBytes);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->prompt, (std::vector<std::int32_t>{0xc3, 0xa9, '\n'}));
}

TEST(Request, TextNeedsAVocabularyOfBytes) {
  EXPECT_THAT(request_error(R"({"prompt":"Hi"})", kWords),
              AllOf(HasSubstr("prompt"), HasSubstr("32000")));
  EXPECT_EQ(request_error(R"({"prompt_ids":[31999]})", kWords), "no error");
}

// Each says the field, what it is and what is allowed.
TEST(Request, RefusesValuesOutOfRange) {
  EXPECT_THAT(request_error(R"({"prompt_ids":[3,256]})"),
              AllOf(HasSubstr("prompt_ids[1]"), HasSubstr("256"), HasSubstr("0 to 255")));
  EXPECT_THAT(request_error(R"({"prompt_ids":[-1]})"), HasSubstr("prompt_ids[0]"));
  EXPECT_THAT(request_error(R"({"prompt":"x","max_new_tokens":0})"), HasSubstr("max_new_tokens"));
  EXPECT_THAT(request_error(R"({"prompt":"x","max_new_tokens":99999999999})"),
              HasSubstr("allowed"));
  EXPECT_THAT(request_error(R"({"prompt":"x","samples":1.5})"), HasSubstr("samples"));
  EXPECT_THAT(request_error(R"({"prompt":"x","beams":1e99})"), HasSubstr("beams"));
  EXPECT_THAT(request_error(R"({"prompt":"x","beams":257})"), HasSubstr("beams"));
  EXPECT_THAT(request_error(R"({"prompt":"x","temperature":-0.1})"), HasSubstr("temperature"));
  EXPECT_THAT(request_error(R"({"prompt":"x","top_p":0})"), HasSubstr("top_p"));
  EXPECT_THAT(request_error(R"({"prompt":"x","top_p":1.01})"), HasSubstr("top_p"));
  EXPECT_THAT(request_error(R"({"prompt":"x","seed":-1})"), HasSubstr("seed"));
  EXPECT_THAT(request_error(R"({"prompt":"x","seed":9223372036854775808})"), HasSubstr("seed"));
  EXPECT_THAT(request_error(R"({"prompt":"x","stop_ids":[256]})"), HasSubstr("stop_ids[0]"));
  EXPECT_THAT(request_error(R"({"prompt":"x","id":""})"), HasSubstr("id"));
}

TEST(Request, RefusesWrongTypesAndUnknownFields) {
  EXPECT_THAT(request_error(R"({"prompt":7})"), HasSubstr("a string"));
  EXPECT_THAT(request_error(R"({"prompt_ids":"1,2"})"), HasSubstr("an array"));
  EXPECT_THAT(request_error(R"({"prompt":"x","seed":"1"})"), HasSubstr("seed"));
  EXPECT_THAT(request_error(R"({"prompt":"x","id":5})"), HasSubstr("id"));
  EXPECT_THAT(request_error(R"({"prompt":"x","max_tokens":5})"),
              AllOf(HasSubstr("max_tokens"), HasSubstr("max_new_tokens")));
  EXPECT_THAT(request_error(R"({"prompt":"x","temperature":null})"), HasSubstr("temperature"));
  EXPECT_THAT(request_error(R"([1,2])"), HasSubstr("an object"));
}

TEST(Request, RefusesWhatIsNotJson) {
  EXPECT_THAT(request_error(R"({"prompt":"x","temperature":NaN})"), Not(HasSubstr("no error")));
  EXPECT_THAT(request_error(R"({"prompt":"x","temperature":Infinity})"),
              Not(HasSubstr("no error")));
  EXPECT_THAT(request_error(R"({"prompt":"x","temperature":1e999})"), Not(HasSubstr("no error")));
  EXPECT_THAT(request_error(R"({"prompt":"x",})"), Not(HasSubstr("no error")));
  EXPECT_THAT(request_error(R"({"prompt":"x"} {})"), Not(HasSubstr("no error")));
  EXPECT_THAT(request_error(R"({"prompt":"x","prompt":"y"})"), Not(HasSubstr("no error")));
  EXPECT_THAT(request_error(std::string(1'000'000, '[')), Not(HasSubstr("no error")));
}

TEST(Request, RefusesWhatContradictsItself) {
  EXPECT_THAT(request_error(R"({"prompt":"x","prompt_ids":[1]})"), HasSubstr("both"));
  EXPECT_THAT(request_error(R"({"max_new_tokens":1})"), HasSubstr("no prompt"));
  EXPECT_THAT(request_error(R"({"prompt":""})"), HasSubstr("empty"));
  EXPECT_THAT(request_error(R"({"prompt":"x","beams":2,"samples":2})"), HasSubstr("samples"));
  EXPECT_THAT(request_error(R"({"prompt":"x","beams":2,"temperature":1})"),
              HasSubstr("temperature"));
}

TEST(ReadRequests, NamesFileAndLine) {
  EXPECT_THAT(read_error("{\"prompt\":\"x\"}\n\n{\"prompt\":\"x\",\"seed\":true}\n"),
              AllOf(HasSubstr("f.jsonl"), HasSubstr("line 3"), HasSubstr("seed")));
}

TEST(ReadRequests, NumbersRequestsWithoutAnId) {
  const auto requests =
      read("{\"prompt\":\"x\"}\n{\"id\":\"mine\",\"prompt\":\"x\"}\r\n{\"prompt\":\"x\"}");
  ASSERT_TRUE(requests);
  ASSERT_EQ(requests->size(), 3u);
  EXPECT_EQ((*requests)[0].id, "r0");
  EXPECT_EQ((*requests)[1].id, "mine");
  EXPECT_EQ((*requests)[2].id, "r2");
}

TEST(ReadRequests, RefusesAnIdTwice) {
  EXPECT_THAT(read_error("{\"id\":\"r0\",\"prompt\":\"x\"}\n{\"id\":\"r0\",\"prompt\":\"x\"}\n"),
              AllOf(HasSubstr("line 2"), HasSubstr("r0"), HasSubstr("earlier")));
}

TEST(ReadRequests, AnIdOfItsOwnComesBeforeOneThatIsGivenByPlace) {
  const auto requests = read(
      "{\"prompt\":\"x\"}\n{\"id\":\"r0\",\"prompt\":\"x\"}\n{\"prompt\":\"x\"}\n"
      "{\"id\":\"r0_\",\"prompt\":\"x\"}");
  ASSERT_TRUE(requests);
  ASSERT_EQ(requests->size(), 4u);
  EXPECT_EQ((*requests)[0].id, "r0__");
  EXPECT_EQ((*requests)[1].id, "r0");
  EXPECT_EQ((*requests)[2].id, "r2");
  EXPECT_EQ((*requests)[3].id, "r0_");
}

TEST(ReadRequests, RefusesAnEmptyFile) {
  EXPECT_THAT(read_error("\n \n"), HasSubstr("no request"));
}

TEST(ReadRequests, BoundsTheLengthOfALine) {
  EXPECT_THAT(read_error(std::string(kMaxLineBytes + 1, 'x')), HasSubstr("longer than"));
}

}  // namespace
}  // namespace kvfolio::llama
