#include "data/prepare/records.h"

#include <gtest/gtest.h>

#include "tests/data/scratch_folder.h"

namespace k25::data {
namespace {

Record parse(const std::string& line) { return parse_record(line, "f.jsonl:3"); }

TEST(Records, TextIsAllLabels) {
  const Record record = parse(R"({"text": "a\u00e9\n\u0000b"})");
  ASSERT_EQ(record.segments.size(), 1u);
  EXPECT_EQ(record.text(), std::string("a\xC3\xA9\n\0b", 6));
  EXPECT_EQ(record.segments[0].label, 1);
  EXPECT_EQ(record.topic, -1);
  EXPECT_EQ(record.hops, 0);
  EXPECT_EQ(record.source, "");
}

TEST(Records, OnlyTheResponseCarriesLabels) {
  const Record record = parse(R"({"prompt": "2+2?", "response": "4", "topic": 7, "hops": 2,
                                  "source": "sums", "id": 1})");
  ASSERT_EQ(record.segments.size(), 2u);
  EXPECT_EQ(record.segments[0].text, "### user\n2+2?\n\n### assistant\n");
  EXPECT_EQ(record.segments[0].label, 0);
  EXPECT_EQ(record.segments[1].text, "4");
  EXPECT_EQ(record.segments[1].label, 1);
  EXPECT_EQ(record.topic, 7);
  EXPECT_EQ(record.hops, 2);
  EXPECT_EQ(record.source, "sums");
  EXPECT_EQ(record.ignored_keys, std::vector<std::string>{"id"});
}

TEST(Records, OnlyTheAssistantCarriesLabels) {
  const Record record = parse(
      R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"},
          {"role": "assistant", "content": "A"}, {"role": "tool", "content": "T"},
          {"role": "assistant", "content": "B"}, {"role": "user", "content": "V"}]})");
  EXPECT_EQ(record.text(),
            "### system\nS\n\n### user\nU\n\n### assistant\nA\n\n### tool\nT\n\n### assistant\nB"
            "\n\n### user\nV");
  std::string labelled;
  for (const Segment& segment : record.segments) {
    if (segment.label == 1) labelled += segment.text;
  }
  EXPECT_EQ(labelled, "AB");
  EXPECT_EQ(record.segments.back().label, 0);
}

TEST(Records, PromptAndResponseAreTwoMessages) {
  const Record pair = parse(R"({"prompt": "", "response": "R"})");
  const Record messages = parse(
      R"({"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": "R"}]})");
  EXPECT_EQ(pair.text(), messages.text());
  EXPECT_EQ(pair.segments.size(), messages.segments.size());
}

TEST(Records, EachKindOfBadLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"text": "a")", "column 13: broken JSON: syntax error"},
      {"{\"text\": \"\xC3\xA9\" x}", "column 14: broken JSON"},
      {R"({"text": "a"} {"text": "b"})", "broken JSON"},
      {R"({"text": 'a'})", "column 10: broken JSON"},
      {R"({"text": "\ud800"})", "broken JSON"},
      {R"({"text": "a", "hops": 1e999})", "broken JSON"},
      {R"(["text"])", "expected a JSON object, found array"},
      {R"("text")", "expected a JSON object, found string"},
      {R"({})", "no known form: expected one of {\"text\"}"},
      {R"({"txt": "a"})", "no known form"},
      {R"({"text": "a", "prompt": "b", "response": "c"})", "more than one form"},
      {R"({"text": "a", "text": "b"})", "key \"text\" is given twice"},
      {R"({"text": 5})", "\"text\" must be a string, found number"},
      {R"({"text": null})", "\"text\" must be a string, found null"},
      {R"({"text": ""})", "\"text\" is empty"},
      {R"({"prompt": "a"})", "\"response\" is missing"},
      {R"({"response": "a"})", "\"prompt\" is missing"},
      {R"({"prompt": "a", "response": ""})", "\"response\" is empty"},
      {R"({"prompt": ["a"], "response": "b"})", "\"prompt\" must be a string, found array"},
      {R"({"messages": []})", "\"messages\" must be a list with at least one message"},
      {R"({"messages": {"role": "user"}})", "\"messages\" must be a list"},
      {R"({"messages": ["hi"]})", "messages[0] must be an object"},
      {R"({"messages": [{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}]})",
       "messages[1].role 'bot' is unknown (system, user, assistant, tool)"},
      {R"({"messages": [{"role": "user"}]})", "messages[0].content is missing"},
      {R"({"messages": [{"content": "a"}]})", "messages[0].role is missing"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})",
       "messages[0].content must be a string, found array"},
      {R"({"messages": [{"role": "user", "content": "a"}]})", "no assistant message with content"},
      {R"({"text": "a", "topic": "law"})", "\"topic\" must be an integer"},
      {R"({"text": "a", "topic": -1})", "found -1"},
      {R"({"text": "a", "topic": 2147483648})", "found 2147483648"},
      {R"({"text": "a", "hops": 1.5})",
       "\"hops\" must be an integer from 0 to 2147483647, found 1.5"},
      {R"({"text": "a", "source": ""})", "\"source\" is empty"},
      {R"({"text": "a", "source": 3})", "\"source\" must be a string"},
      {R"({"text": "a\u2581"})", "U+2581"},
  };
  for (const auto& [line, reason] : cases) {
    SCOPED_TRACE(line);
    expect_error(ErrorKind::kData, [&, text = line] { parse(text); }, "f.jsonl:3: ", reason);
  }
}

TEST(Records, DeepNestingIsNoStackOverflow) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_EQ(parse(R"({"text": "a", "extra": )" + deep + "}").text(), "a");
  expect_error(
      ErrorKind::kData, [&] { parse(R"({"text": "a", "topic": )" + deep + "}"); },
      "\"topic\" must be an integer");
}

TEST(Records, LooksLikeRecord) {
  EXPECT_TRUE(looks_like_record(R"({"text": "a", "id": 3})"));
  EXPECT_TRUE(looks_like_record(R"({"prompt": "a", "response": "b"})"));
  EXPECT_TRUE(looks_like_record(R"({"messages": []})"));
  EXPECT_FALSE(looks_like_record(R"({"messages": {"yes": "ja"}})"));
  EXPECT_FALSE(looks_like_record(R"({"text": 1})"));
  for (const std::string line : {"{", "{}", "{\"a\": 1}", "[]", "text", "{\"prompt\": \"a\"}"}) {
    EXPECT_FALSE(looks_like_record(line)) << line;
  }
}

}  // namespace
}  // namespace k25::data
