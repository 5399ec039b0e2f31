#include "services/loadtest/workload/eval_workload.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/eval/conversation.h"
#include "common/eval/eval_case.h"
#include "services/loadtest/workload/workload.h"

namespace baton::loadtest {
namespace {

using inference::v1::GenerateRequest;

GenerateRequest RequestOf(const eval::EvalCase& turn) {
  GenerateRequest request;
  for (const auto& message : turn.messages) {
    inference::v1::Message* added = request.mutable_chat()->add_messages();
    added->set_role(message.value("role", std::string()));
    added->set_content(message.value("content", std::string()));
  }
  request.mutable_sampling()->set_temperature(0.0f);
  request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(turn.max_new_tokens));
  return request;
}

class EvalConversation final : public Conversation {
 public:
  explicit EvalConversation(const eval::EvalCase& first) : turn_(first) {}

  std::optional<GenerateRequest> NextTurn(const Answer* previous) override {
    if (previous != nullptr) {
      std::optional<eval::EvalCase> next = eval::NextTurn(turn_, previous->text);
      if (!next.has_value()) {
        return std::nullopt;
      }
      turn_ = *std::move(next);
    }
    return RequestOf(turn_);
  }
  std::optional<bool> Score(const Answer& answer) const override {
    return eval::IsCorrect(turn_, answer.text);
  }
  bool wants_answer() const override { return true; }
  std::string id() const override { return turn_.id; }

 private:
  eval::EvalCase turn_;
};

class EvalWorkload final : public Workload {
 public:
  EvalWorkload(std::vector<eval::EvalCase> cases, bool repeat)
      : cases_(std::move(cases)), repeat_(repeat) {}

  std::unique_ptr<Conversation> Next() override {
    if (next_ == cases_.size() && repeat_) {
      next_ = 0;
    }
    return next_ < cases_.size() ? std::make_unique<EvalConversation>(cases_[next_++]) : nullptr;
  }
  int64_t Remaining() const override {
    return repeat_ && !cases_.empty() ? kEndless : static_cast<int64_t>(cases_.size() - next_);
  }

 private:
  const std::vector<eval::EvalCase> cases_;
  const bool repeat_;
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<Workload> MakeEvalWorkload(std::vector<eval::EvalCase> cases, bool repeat) {
  return std::make_unique<EvalWorkload>(std::move(cases), repeat);
}

}  // namespace baton::loadtest
