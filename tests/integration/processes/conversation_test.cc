// Conversations through router, prefill and decode processes: each turn goes to the decode worker
// that kept the KV of the one before.
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "tests/support/inference_client.h"
#include "tests/support/local_stack.h"

namespace baton::testing {
namespace {

constexpr int kTurns = 4;
constexpr int kFirstPrompt = 90;
constexpr int kAdded = 21;
constexpr int kMaxTokens = 7;

class ConversationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto stack = LocalStack::Start(
        {.model = BATON_SOURCE_DIR "/tests/data/models/tiny-llama-needle", .decode_workers = 3});
    ASSERT_TRUE(stack.ok()) << stack.status();
    stack_ = *std::move(stack);
    client_ = std::make_unique<InferenceClient>(stack_->router_address());
  }

  // A turn: what was said before and `added` new tokens, `variant` of them.
  inference::v1::GenerateRequest Turn(const std::vector<uint32_t>& before,
                                      int added,
                                      int variant,
                                      const std::string& session) {
    inference::v1::GenerateRequest request = TokenRequest(added, kMaxTokens, variant);
    const std::vector<uint32_t> fresh(request.token_ids().ids().begin(),
                                      request.token_ids().ids().end());
    request.mutable_token_ids()->mutable_ids()->Assign(before.begin(), before.end());
    request.mutable_token_ids()->mutable_ids()->Add(fresh.begin(), fresh.end());
    request.set_session_id(session);
    return request;
  }

  std::unique_ptr<LocalStack> stack_;
  std::unique_ptr<InferenceClient> client_;
};

TEST_F(ConversationTest, EveryLaterTurnGoesOnWhereItsKvWasKept) {
  std::vector<std::vector<uint32_t>> said(5);
  for (int turn = 0; turn < kTurns; ++turn) {
    for (size_t talk = 0; talk < said.size(); ++talk) {
      const auto variant = static_cast<int>(talk) * 10 + turn;
      inference::v1::GenerateRequest request =
          Turn(said[talk], turn == 0 ? kFirstPrompt : kAdded, variant, absl::StrCat("talk-", talk));
      const StreamResult kept = client_->Run(request);
      ASSERT_TRUE(kept.status.ok()) << kept.status.error_message() << stack_->LogTails();
      EXPECT_EQ(kept.usage.cached_tokens(), turn == 0 ? 0 : said[talk].size() - 1)
          << "talk " << talk << " turn " << turn;
      EXPECT_EQ(kept.usage.kv_wire_bytes() == 0, turn > 0) << "nothing is shipped for it";
      request.clear_session_id();
      const StreamResult fresh = client_->Run(request);
      EXPECT_EQ(kept.token_ids, fresh.token_ids) << "talk " << talk << " turn " << turn;
      said[talk].assign(request.token_ids().ids().begin(), request.token_ids().ids().end());
      said[talk].insert(said[talk].end(), kept.token_ids.begin(), kept.token_ids.end());
    }
  }
}

TEST_F(ConversationTest, ALostWorkerCostsAWholePrefillAndNothingElse) {
  const StreamResult first = client_->Run(Turn({}, kFirstPrompt, 1, "talk"));
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  for (size_t worker = 0; worker < 3; ++worker) {
    stack_->decode(worker).process->Signal(SIGKILL);
    ASSERT_TRUE(stack_->decode(worker).process->Wait(absl::Seconds(10)).ok());
    ASSERT_TRUE(stack_->Restart(stack_->decode(worker)).ok());
  }
  ASSERT_TRUE(stack_->WaitReady(absl::Seconds(30)).ok());
  const auto prompt = TokenRequest(kFirstPrompt, kMaxTokens, 1);
  std::vector<uint32_t> said(prompt.token_ids().ids().begin(), prompt.token_ids().ids().end());
  said.insert(said.end(), first.token_ids.begin(), first.token_ids.end());
  const StreamResult second = client_->Run(Turn(said, kAdded, 2, "talk"));
  ASSERT_TRUE(second.status.ok()) << second.status.error_message() << stack_->LogTails();
  EXPECT_EQ(second.usage.cached_tokens(), 0u);
  EXPECT_GT(second.usage.kv_wire_bytes(), 0u);
}

}  // namespace
}  // namespace baton::testing
