#include "services/prefill/operations/identity.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

#include "proto/baton/worker/v1/prefill.pb.h"

namespace baton::prefill::operations {
namespace {

constexpr uint32_t kBiases = 50;

worker::v1::PrefillRequest MakeRequest() {
  worker::v1::PrefillRequest request;
  request.set_request_id("a");
  request.set_attempt(1);
  request.set_prompt_token_ids("12345678");
  request.set_kv_policy("diffkv");
  request.mutable_sampling()->set_seed(7);
  return request;
}

void SetBias(uint32_t token, worker::v1::PrefillRequest& request) {
  (*request.mutable_sampling()->mutable_logit_bias())[token] = static_cast<float>(token);
}

TEST(IdentityTest, DoesNotDependOnTheOrderInWhichBiasesCame) {
  worker::v1::PrefillRequest upwards = MakeRequest();
  worker::v1::PrefillRequest downwards = MakeRequest();
  for (uint32_t i = 0; i < kBiases; ++i) {
    SetBias(i, upwards);
    SetBias(kBiases - 1 - i, downwards);
  }
  EXPECT_EQ(IdentityOf(upwards), IdentityOf(downwards));
}

TEST(IdentityTest, DependsOnPromptSamplingAndPolicyAlone) {
  const std::string identity = IdentityOf(MakeRequest());
  worker::v1::PrefillRequest request = MakeRequest();
  request.set_request_id("b");
  request.set_attempt(2);
  EXPECT_EQ(IdentityOf(request), identity);
  request = MakeRequest();
  request.set_prompt_token_ids("12345679");
  EXPECT_NE(IdentityOf(request), identity);
  request = MakeRequest();
  request.set_kv_policy("fp8");
  EXPECT_NE(IdentityOf(request), identity);
  request = MakeRequest();
  SetBias(1, request);
  EXPECT_NE(IdentityOf(request), identity);
}

}  // namespace
}  // namespace baton::prefill::operations
