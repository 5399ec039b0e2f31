// What is asked.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/baton/inference/v1/inference.pb.h"

namespace baton::loadtest {

// What came of a turn, as the next one needs it.
struct Answer {
  std::string text;
  std::vector<uint32_t> token_ids;
};

// One or more requests, each after the answer to the one before. Not thread-safe; used by one
// thread at a time.
class Conversation {
 public:
  virtual ~Conversation() = default;

  // Prompt, sampling and stopping of the first turn (`previous` null) or of the one that follows
  // `previous`; nothing after the last turn.
  virtual std::optional<inference::v1::GenerateRequest> NextTurn(const Answer* previous) = 0;
  // Whether `answer` to the newest turn is right; nothing where nobody knows.
  virtual std::optional<bool> Score(const Answer& answer) const {
    (void)answer;
    return std::nullopt;
  }
  // The turns' texts are of use: Answer::text and token_ids have to be collected.
  virtual bool wants_answer() const { return false; }
  // Of the dataset; empty: none.
  virtual std::string id() const { return ""; }
};

// Conversations one after another. Not thread-safe.
class Workload {
 public:
  virtual ~Workload() = default;
  // Null after the last one.
  virtual std::unique_ptr<Conversation> Next() = 0;
  // How many more Next gives; kEndless where there is no last one.
  virtual int64_t Remaining() const = 0;

  static constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();
};

}  // namespace baton::loadtest
