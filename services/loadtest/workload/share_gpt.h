// Recorded conversations as prompts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "services/loadtest/workload/length_distribution.h"
#include "services/loadtest/workload/workload.h"

namespace baton::loadtest {

// The human turns of one conversation, in order, with a system message before them if there is one.
struct RecordedConversation {
  std::string id;
  std::string system;
  std::vector<std::string> questions;  // not empty
};

// A line in ShareGPT's form:
// {"id": "x", "conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": ""}]}.
// "user" and "assistant" are taken for "human" and "gpt". Answers are not kept: the model gives its
// own. kInvalidArgument names what is wrong; kNotFound: well formed, but without a human turn, so
// that there is nothing to send.
absl::StatusOr<RecordedConversation> ParseShareGpt(std::string_view line);

struct RecordedFile {
  std::vector<RecordedConversation> conversations;  // not empty
  int64_t left_out = 0;                             // those without a human turn
};

// A whole file (JSONL, gzip allowed). Conversations without a human turn, which real files have,
// are left out. Errors name file and line; kInvalidArgument also for a file of which nothing is
// left, and for more than 1,000,000 conversations to send.
absl::StatusOr<RecordedFile> ReadShareGpt(const std::string& path);

struct RecordedOptions {
  LengthDistribution output;  // max_tokens
  int64_t turns = 1;          // at most so many of a conversation
  bool ignore_eos = false;
  bool repeat = false;  // begin again after the last one
  uint64_t seed = 1;
};

// Chats of the recorded questions and the model's own answers, in the order of `recorded`.
std::unique_ptr<Workload> MakeRecordedWorkload(std::vector<RecordedConversation> recorded,
                                               const RecordedOptions& options);

}  // namespace baton::loadtest
