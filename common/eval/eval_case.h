// One question with a known answer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace baton::eval {

// A later turn of a conversation.
struct FollowUp {
  std::string question;
  std::string answer;  // as EvalCase::answer
};

// A line of an evaluation set (tests/data/models/eval/README.md describes the shipped ones).
struct EvalCase {
  std::string id;  // unique within a run
  std::string task;
  int32_t length_bucket = 0;  // prompt tokens, rounded to the bucket
  // Array of {"role", "content"}, ending with a user turn.
  nlohmann::ordered_json messages;
  std::string answer;  // exact text expected before the stop token
  int32_t max_new_tokens = 0;
  int32_t prompt_tokens = 0;  // as the set's author counted them
  // What is asked after the answer, each after the answer before it; mostly nothing.
  std::vector<FollowUp> follow_ups;
};

// Whole-answer exact match: `output` is the text before the stop token, special tokens left out.
inline bool IsCorrect(const EvalCase& eval_case, std::string_view output) {
  return output == eval_case.answer;
}

}  // namespace baton::eval
