#pragma once
// One document as the corpus sees it, and the line of a JSONL file that holds one.
//
// A line is a JSON object with exactly one of
//   {"text": "..."}                                            every token may be a target
//   {"prompt": "...", "response": "..."}                       the response's tokens may
//   {"messages": [{"role": "...", "content": "..."}, ...]}     the assistant's tokens may
// and, if wanted, "topic" (integer >= 0), "hops" (integer >= 0) and "source" (a name instead of the
// file's). Other keys are ignored and counted. Roles: system, user, assistant, tool.
//
// The text of a conversation: each message as "### role\n", its content and "\n\n"; after the last
// one nothing follows. {prompt, response} is a user message and an assistant's. Parts that carry
// labels are tokenised apart from the others, so that no token lies across.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace k25::data {

struct Segment {
  std::string text;
  std::uint8_t label = 1;  ///< of each of its tokens
};

struct Record {
  std::vector<Segment> segments;
  std::string source;
  std::int32_t topic = -1;
  std::int32_t hops = 0;
  std::vector<std::string> ignored_keys;

  std::string text() const;
};

/// Parses a line. Throws kData "where: column N: what is wrong"; `where` is file:line.
Record parse_record(std::string_view line, const std::string& where);

/// Whether the text is a JSON object.
bool is_json_object(std::string_view text);

/// Whether the text is a JSON object with the keys of a record.
bool looks_like_record(std::string_view text);

/// Whether the text begins as a JSON array with a record among its members, whatever follows.
bool is_array_of_records(std::string_view text);

}  // namespace k25::data
