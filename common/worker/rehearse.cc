#include "common/worker/rehearse.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "spdlog/spdlog.h"

#include "common/base/status_macros.h"
#include "common/checkpoint/model_config.h"
#include "common/engine/engine.h"
#include "common/engine/forgetful_sink.h"
#include "common/engine/request.h"
#include "common/model/model.h"

namespace baton::worker {
namespace {

// The first comes from prefill, the next ones from decode steps.
constexpr int32_t kAnswerTokens = 4;
// A device has attention of its own for powers of two of rows from here on
// (kernels/cuda/cudnn/attention_plans.h).
constexpr int32_t kLeastPrompt = 512;
// Of one request: an idle device takes a second or two for the first.
constexpr absl::Duration kPatience = absl::Minutes(1);

class EndOfRequest final : public engine::RequestListener {
 public:
  void OnTokens(int32_t /*sequence*/, std::span<const engine::TokenOutput> /*tokens*/) override {}
  void OnFinished(int32_t /*sequence*/, const engine::SequenceFinish& /*finish*/) override {}
  void OnDone(const absl::Status& status, const engine::RequestStats& /*stats*/) override {
    status_ = status;
    ended_.Notify();
  }
  absl::Status Await() const {
    ended_.WaitForNotification();
    return status_;
  }

 private:
  absl::Notification ended_;
  absl::Status status_;  // set before the notification
};

std::vector<int32_t> PromptOf(int32_t tokens, int32_t vocabulary) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (int32_t i = 0; i < tokens; ++i) {
    prompt[static_cast<size_t>(i)] = i % vocabulary;
  }
  return prompt;
}

absl::Status Compute(engine::Engine& engine, const std::string& kv_policy, int32_t tokens) {
  engine::GenerateRequest request;
  request.request_id = absl::StrCat("rehearsal-", kv_policy, "-", tokens);
  request.prompt = PromptOf(tokens, engine.model().config().vocab_size);
  request.sampling.temperature = 0.0f;
  request.sampling.max_tokens = kAnswerTokens;
  request.kv_policy = kv_policy;
  request.deadline = absl::Now() + kPatience;
  if (engine.options().role == engine::Role::kPrefill) {
    request.sink = std::make_unique<engine::ForgetfulSink>();
  }
  const auto end = std::make_shared<EndOfRequest>();
  BATON_RETURN_IF_ERROR(engine.Submit(std::move(request), end));
  return end->Await();
}

// Lengths of prompts, the longest first: of all sizes of a step's attention.
std::vector<int32_t> Lengths(const engine::Engine& engine) {
  const int32_t longest =
      std::max(std::min(engine.options().prefill_chunk_tokens,
                        engine.model().config().max_position_embeddings - kAnswerTokens),
               1);
  std::vector<int32_t> lengths = {longest};
  while (lengths.back() > kLeastPrompt) {
    lengths.push_back(lengths.back() / 2);
  }
  return lengths;
}

void ComputeOrSay(engine::Engine& engine, const std::string& kv_policy, int32_t tokens) {
  if (const absl::Status status = Compute(engine, kv_policy, tokens); !status.ok()) {
    spdlog::info("rehearsal: no prompt of {} tokens in KV format {}: {}",
                 tokens,
                 kv_policy,
                 status.ToString());
  }
}

}  // namespace

void Rehearse(engine::Engine& engine) {
  if (engine.options().role == engine::Role::kDecode) {
    return;
  }
  const absl::Time start = absl::Now();
  const std::vector<int32_t> lengths = Lengths(engine);
  const std::vector<std::string> formats = engine.kv_formats();
  for (const int32_t tokens : lengths) {
    ComputeOrSay(engine, formats.front(), tokens);
  }
  for (size_t i = 1; i < formats.size(); ++i) {
    ComputeOrSay(engine, formats[i], lengths.front());
  }
  if (engine.options().role == engine::Role::kPrefill && engine.model().config().swiftkv()) {
    ComputeOrSay(engine, absl::StrCat("hidden+", formats.front()), lengths.front());
  }
  spdlog::info("rehearsed in {:.2f} s", absl::ToDoubleSeconds(absl::Now() - start));
}

}  // namespace baton::worker
