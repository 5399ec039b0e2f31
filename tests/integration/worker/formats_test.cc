// Requests in every KV format over prefill and decode workers.
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

#include "common/engine/engine.h"
#include "tests/integration/worker/worker_pair.h"

namespace baton {
namespace {

// The last one keeps prompts as short as these dense.
const std::vector<std::string> kPolicies = {"dense",
                                            "diffkv",
                                            "diffkv:ah=2,al=0.5,w=8",
                                            "shadowkv:rank=8,budget=8,outliers=1,local=1",
                                            "shadowkv"};

class FormatsTest : public testing::Test {
 protected:
  void SetUp() override {
    both_ = StartDecode(TinyOptions(engine::Role::kBoth));
    decode_ = StartDecode(TinyOptions(engine::Role::kDecode));
    prefill_ = StartPrefill(TinyOptions(engine::Role::kPrefill));
    ASSERT_TRUE(both_ != nullptr && decode_ != nullptr && prefill_ != nullptr);
  }

  Outcome Split(const Request& request) {
    return RunSplit(ChannelTo(prefill_->worker()), ChannelTo(decode_->worker()), request);
  }
  Outcome Both(const Request& request) { return RunBoth(ChannelTo(both_->worker()), request); }

  std::unique_ptr<decode::DecodeServer> both_;
  std::unique_ptr<decode::DecodeServer> decode_;
  std::unique_ptr<prefill::PrefillServer> prefill_;
};

TEST_F(FormatsTest, SplitGivesTheTokensOfRoleBothAndNamesTheFormat) {
  for (const std::string& policy : kPolicies) {
    SCOPED_TRACE(policy);
    Request request = GreedyRequest("formats", 150, 20);
    request.kv_policy = policy;
    request.sampling.set_temperature(0.9f);
    request.sampling.set_seed(3);
    request.sampling.set_n(2);
    const Outcome split = Split(request);
    const Outcome both = Both(request);
    ASSERT_TRUE(split.status.ok()) << split.status;
    ASSERT_TRUE(both.status.ok()) << both.status;
    EXPECT_EQ(split.tokens, both.tokens);
    EXPECT_EQ(split.usage.kv_resident_bytes(), both.usage.kv_resident_bytes());
    if (policy != "dense" && policy != "shadowkv") {
      EXPECT_LT(split.committed.kv_wire_bytes(), split.committed.kv_logical_bytes());
    }
  }
}

TEST_F(FormatsTest, APolicyThatIsNotServedIsFailedPrecondition) {
  Request request = GreedyRequest("refused", 50, 4);
  request.kv_policy = "fp8";
  EXPECT_EQ(Split(request).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Both(request).status.code(), absl::StatusCode::kFailedPrecondition);
  for (const char* policy : {"int4", "hidden+diffkv"}) {  // the model is no SwiftKV model
    request.kv_policy = policy;
    EXPECT_EQ(Split(request).status.code(), absl::StatusCode::kInvalidArgument) << policy;
  }
}

}  // namespace
}  // namespace baton
