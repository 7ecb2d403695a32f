// SPDX-License-Identifier: Apache-2.0
#include "json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace kvfolio::llama {
namespace {

using ::testing::HasSubstr;

std::string json_error(std::string_view text, const JsonLimits& limits = {}) {
  Result<Json> json = parse_json(text, limits);
  return json ? "no error" : json.error().message();
}

std::string string_of(std::string_view text) {
  Result<Json> json = parse_json(text);
  return json && json->as_string() != nullptr ? *json->as_string() : "no string";
}

TEST(Json, ReadsEveryKindOfValue) {
  Result<Json> json =
      parse_json(" {\"a\": [null, true, false, 1, -2.5e1, \"x\"], \"b\": {}, \"c\": []}\n");
  ASSERT_TRUE(json);
  const Json::Array& a = *json->find("a")->as_array();
  ASSERT_EQ(a.size(), 6u);
  EXPECT_TRUE(a[0].is_null());
  EXPECT_TRUE(*a[1].as_bool());
  EXPECT_FALSE(*a[2].as_bool());
  EXPECT_EQ(*a[3].as_integer(), 1);
  EXPECT_EQ(a[4].as_integer(), nullptr);
  EXPECT_EQ(a[4].as_number()->value, -25.0);
  EXPECT_EQ(*a[5].as_string(), "x");
  EXPECT_TRUE(json->find("b")->as_object()->empty());
  EXPECT_TRUE(json->find("c")->as_array()->empty());
  EXPECT_EQ(json->find("d"), nullptr);
}

TEST(Json, WholeNumbersAreExactInInt64AndNoIntegersBeyond) {
  EXPECT_EQ(*parse_json("9223372036854775807")->as_integer(),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(*parse_json("-9223372036854775808")->as_integer(),
            std::numeric_limits<std::int64_t>::min());
  Result<Json> json = parse_json("9223372036854775808");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->as_integer(), nullptr);
  EXPECT_EQ(json->as_number()->value, 0x1p63);
  EXPECT_EQ(parse_json("1.0")->as_integer(), nullptr);
}

TEST(Json, ANumberIsDescribedAsItWasWritten) {
  for (const char* text : {"1", "1.0", "-0.0", "0.1", "2.5", "1e+300", "9223372036854775807"}) {
    EXPECT_EQ(parse_json(text)->describe(), text);
  }
  EXPECT_EQ(parse_json("18446744073709551616")->describe(), "18446744073709551616");
}

TEST(Json, DecodesEscapesToUtf8) {
  EXPECT_EQ(string_of(R"("\"\\\/\b\f\n\r\t")"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(string_of(R"("\u0041\u00e9\u20ac\ud83d\ude00")"),
            "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
}

TEST(Json, RefusesWhatRfc8259Refuses) {
  for (const std::string_view text :
       {"",       " ",       "{",           "[1,]",        "[1 2]",       "{\"a\":1,}",
        "{a:1}",  "'a'",     "01",          "1.",          ".5",          "+1",
        "1e",     "-",       "nul",         "True",        "NaN",         "[1]]",
        "\"a",    "\"\\x\"", "\"\\u12g4\"", "\"\\u123",    "\"\\",        "[",
        "{\"a\"", "{\"a\":", "\"\n\"",      "\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\u0041\"",
        "1 1",    "/**/1",   "1e400",       "\"\\u-123\""}) {
    EXPECT_FALSE(parse_json(text)) << text;
  }
}

TEST(Json, RefusesZeroBytesByteOrderMarksAndWrongUtf8) {
  EXPECT_EQ(json_error({"[1\n]\0[", 6}), "line 2, column 2: a zero byte");
  EXPECT_THAT(json_error("\xef\xbb\xbf[1]"), HasSubstr("line 1, column 1: "));
  EXPECT_THAT(json_error("[\"\xff\"]"), HasSubstr("line 1, column 3: "));
  EXPECT_THAT(json_error("[\"\xed\xa0\x80\"]"), HasSubstr("line 1, column 4: "));
}

TEST(Json, ErrorSaysLineAndColumn) {
  EXPECT_EQ(json_error("{\n  \"a\": ?\n}"),
            "line 2, column 8: syntax error while parsing value - invalid literal, found \"?\"");
  EXPECT_EQ(
      json_error("[1"),
      "line 1, column 3: syntax error while parsing array - unexpected end of input; expected ']'");
}

TEST(Json, DeepNestingIsRefusedAtTheLimit) {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']');
  };
  EXPECT_TRUE(parse_json(nested(32)));
  EXPECT_THAT(json_error(nested(33)), HasSubstr("nested more than 32 deep"));
  std::string bottomless;
  bottomless.assign(50'000'000, '[');
  EXPECT_THAT(json_error(bottomless), HasSubstr("nested more than 32 deep"));
}

TEST(Json, NumberOfValuesIsBounded) {
  EXPECT_THAT(json_error("[1,2,3]", {.max_values = 3}), HasSubstr("more than 3 values"));
  EXPECT_TRUE(parse_json("[1,2,3]", {.max_values = 4}));
}

TEST(Json, DuplicateKeyIsAnError) {
  EXPECT_THAT(json_error(R"({"a":1,"b":2,"a":3})"), HasSubstr("has key \"a\" twice"));
  EXPECT_THAT(json_error(R"({"a":1,"\u0061":3})"), HasSubstr("has key \"a\" twice"));
}

TEST(Json, QuotedTextIsPrintableAndShort) {
  EXPECT_EQ(in_quotes("a\"\n\xff"), "\"a\\x22\\x0a\\xff\"");
  EXPECT_EQ(llama::in_quotes(std::string(100, 'x')), "\"" + std::string(60, 'x') + "...\"");
}

}  // namespace
}  // namespace kvfolio::llama
