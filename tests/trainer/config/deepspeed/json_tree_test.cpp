// Strict JSON with places: what it accepts, and one clear error for each thing it does not.

#include "trainer/config/deepspeed/json_tree.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace k25::trainer {
namespace {

YamlNode good(const std::string& text) {
  Problems problems;
  YamlNode root = parse_json(text, "f", problems);
  EXPECT_TRUE(problems.empty()) << text << "\n" << ::testing::PrintToString(problems);
  return root;
}

Problems problems_of(const std::string& text) {
  Problems problems;
  parse_json(text, "f", problems);
  return problems;
}

TEST(JsonTree, ReadsEveryKindWithItsPlace) {
  const YamlNode root =
      good("{\n\t\"a\": 1.5e-3,\n  \"b\" :[true , null],\r\n\"c\":{\"d\":\"x\"}}\n");
  ASSERT_EQ(root.entries.size(), 3u);
  EXPECT_EQ(root.entries[0].key, "a");
  EXPECT_EQ(root.entries[0].where, "f:2:2");
  EXPECT_EQ(root.entries[0].value.scalar, "1.5e-3");
  EXPECT_EQ(root.entries[0].value.where, "f:2:7");
  EXPECT_FALSE(root.entries[0].value.quoted);
  const YamlNode& list = root.entries[1].value;
  EXPECT_EQ(list.kind, YamlNode::Kind::kList);
  ASSERT_EQ(list.items.size(), 2u);
  EXPECT_EQ(list.items[0].scalar, "true");
  EXPECT_EQ(list.items[0].where, "f:3:9");
  EXPECT_EQ(list.items[1].kind, YamlNode::Kind::kNull);
  const YamlNode* text = root.entries[2].value.find("d");
  ASSERT_NE(text, nullptr);
  EXPECT_EQ(text->scalar, "x");
  EXPECT_TRUE(text->quoted);
  EXPECT_EQ(text->where, "f:4:10");
}

TEST(JsonTree, ColumnsCountCharactersAndEscapesBecomeUtf8) {
  const YamlNode root = good("{\"\xC3\xA9\": \"\\u00e9\\n\\\"\\/\\\\\\t\\ud83d\\ude00\\u20ac\"}");
  EXPECT_EQ(root.entries[0].value.where, "f:1:7");
  EXPECT_EQ(root.entries[0].value.scalar, "\xC3\xA9\n\"/\\\t\xF0\x9F\x98\x80\xE2\x82\xAC");
}

TEST(JsonTree, SkipsAByteOrderMarkAndTakesEveryNumberOfTheGrammar) {
  EXPECT_EQ(good("\xEF\xBB\xBF{}").kind, YamlNode::Kind::kMap);
  for (const std::string number :
       {"0", "-0", "10", "-1.25", "1E5", "1e+05", "0.0e-0", "123456789012345678901234567890"}) {
    EXPECT_EQ(good("{\"a\": " + number + "}").entries[0].value.scalar, number);
  }
}

TEST(JsonTree, TellsEachErrorAtItsPlace) {
  const struct {
    const char *text, *problem;
  } rows[] = {
      {"", "f: the file is empty; expected one JSON object"},
      {" \n\t", "f: the file is empty; expected one JSON object"},
      {"[1]", "f:1:1: expected one JSON object"},
      {"3", "f:1:1: expected one JSON object"},
      {"{} {}", "f:1:4: more text behind the end of the JSON value"},
      {"{\"a\": 1,}", "f:1:8: a comma before '}'; JSON has none there, remove it"},
      {"{\"a\": [1,\n ]}", "f:1:9: a comma before ']'"},
      {"{\"a\": 1 \"b\": 2}", "f:1:9: expected ',' or '}', got '\"'"},
      {"{\"a\": [1 2]}", "f:1:10: expected ',' or ']', got '2'"},
      {"{\"a\" 1}", "f:1:6: expected ':' behind the key, got '1'"},
      {"{a: 1}", "f:1:2: expected a key in double quotes, got 'a'"},
      {"{'a': 1}", "f:1:2: expected a key in double quotes, got '''"},
      {"{\"a\": 'b'}", "f:1:7: a text stands in double quotes, not in single ones"},
      {"{\"a\": }", "f:1:7: expected a value, got '}'"},
      {"{\"a\":", "f:1:6: expected a value, got the end of the file"},
      {"{\"a\": 1",
       "f:1:8: the file ends inside the object that begins at f:1:1; close it with '}'"},
      {"{\"a\": [1",
       "f:1:9: the file ends inside the list that begins at f:1:7; close it with ']'"},
      {"{\"a\": 1 // batch\n}", "f:1:9: JSON has no comments; remove it"},
      {"# hi\n{}", "f:1:1: JSON has no comments; remove it"},
      {"{/* x */}", "f:1:2: JSON has no comments; remove it"},
      {"{\"a\": NaN}", "f:1:7: 'NaN' is no JSON number; write a finite number"},
      {"{\"a\": -Infinity}", "f:1:7: '-Infinity' is no JSON number; write a finite number"},
      {"{\"a\": True}", "f:1:7: 'True' is no JSON; write true"},
      {"{\"a\": None}", "f:1:7: 'None' is no JSON; write null"},
      {"{\"a\": cpu}", "f:1:7: 'cpu' is no JSON value; write texts inside double quotes"},
      {"{\"a\": 010}", "f:1:7: '010' is no JSON number: remove the leading zeros"},
      {"{\"a\": +1}", "f:1:7: '+1' is no JSON number, such as 8, 0.1 or 2e-5"},
      {"{\"a\": 1.}", "f:1:7: '1.' is no JSON number"},
      {"{\"a\": .5}", "f:1:7: '.5' is no JSON number"},
      {"{\"a\": 1e}", "f:1:7: '1e' is no JSON number"},
      {"{\"a\": 0x10}", "f:1:7: '0x10' is no JSON number"},
      {"{\"a\": \"b}", "f:1:7: the text is not closed"},
      {"{\"a\": \"b\nc\"}", "f:1:7: the text is not closed"},
      {"{\"a\": \"b\tc\"}", "f:1:9: a control character (byte 9) inside a text"},
      {"{\"a\": \"\\x41\"}", "f:1:8: unknown escape"},
      {"{\"a\": \"\\u12g4\"}", "f:1:8: \\u wants four hex digits"},
      {"{\"a\": \"\\ud800\"}", "f:1:8: the escape stands for no character"},
      {"{\"a\": \"\\ud800\\u0041\"}", "f:1:8: the escape stands for no character"},
      {"{\"a\": \"\\u0000\"}", "f:1:8: the escape stands for no character"},
      {"{\n\"a\": \"\xFF\"}", "f:2:7: the text is not UTF-8"},
  };
  for (const auto& row : rows) {
    const Problems problems = problems_of(row.text);
    ASSERT_EQ(problems.size(), 1u) << row.text << ::testing::PrintToString(problems);
    EXPECT_EQ(problems[0].rfind(row.problem, 0), 0u) << row.text << "\n" << problems[0];
  }
}

TEST(JsonTree, TellsAllDuplicatesWithBothPlaces) {
  const Problems problems = problems_of("{\"a\": 1, \"b\": {\"c\": 1, \"c\": 2},\n \"a\": 3}");
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_EQ(problems[0], "f:1:24: duplicate key 'c', first given at f:1:16");
  EXPECT_EQ(problems[1], "f:2:2: duplicate key 'a', first given at f:1:2");
}

TEST(JsonTree, NestingHasALimit) {
  const auto nested = [](std::size_t lists) {
    return "{\"a\": " + std::string(lists, '[') + std::string(lists, ']') + "}";
  };
  good(nested(63));
  const Problems problems = problems_of(nested(100000));
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0], "f:1:70: nested deeper than 64 levels");
}

}  // namespace
}  // namespace k25::trainer
