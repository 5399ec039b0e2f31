#include "services/router/validate/prepare_request.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

#include "gtest/gtest.h"

#include "common/rpc/status_details.h"
#include "services/router/model/served_model.h"
#include "services/router/session/request_plan.h"
#include "services/router/workers/worker_set.h"
#include "tests/unit/checkpoint/temp_dir.h"
#include "tests/unit/router/test_model.h"

namespace baton::router {
namespace {

using inference::v1::GenerateRequest;

absl::StatusOr<RequestPlan> Prepare(const GenerateRequest& request, WorkerLimits limits = {}) {
  return PrepareRequest(TestModel(),
                        {.default_max_tokens = 512, .worker_limits = std::move(limits)},
                        request,
                        absl::UnixEpoch());
}

GenerateRequest WithTokens(int count) {
  GenerateRequest request;
  for (int i = 0; i < count; ++i) {
    request.mutable_token_ids()->add_ids(5);
  }
  return request;
}

TEST(PrepareRequestTest, PassesTheCanonicalPolicyOn) {
  GenerateRequest request = WithTokens(3);
  request.set_kv_policy("shadowkv:chunk=8,rank=64");
  const auto plan = Prepare(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->kv_policy, "shadowkv:chunk=8,rank=64");
}

TEST(PrepareRequestTest, FillsEveryDefault) {
  const auto plan = Prepare(WithTokens(3));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->model, "needle");
  EXPECT_EQ(plan->kv_policy, "dense");
  EXPECT_EQ(plan->prompt_tokens, 3u);
  EXPECT_EQ(plan->sampling.n(), 1u);
  EXPECT_EQ(plan->sampling.max_tokens(), 512u);
  EXPECT_FLOAT_EQ(plan->sampling.temperature(), 0.0f) << "generation_config.json: do_sample false";
  EXPECT_FLOAT_EQ(plan->sampling.top_p(), 1.0f);
  EXPECT_FLOAT_EQ(plan->sampling.repetition_penalty(), 1.0f);
  EXPECT_EQ(plan->sampling.stop_token_ids_size(), 2);
  EXPECT_TRUE(plan->output.skip_special_tokens);
  EXPECT_EQ(plan->total_tokens(), 515);
  int32_t id = 0;
  ASSERT_EQ(plan->prompt_token_ids->size(), 12u);
  std::memcpy(&id, plan->prompt_token_ids->data(), sizeof(id));
  EXPECT_EQ(id, 5);
}

TEST(PrepareRequestTest, DrawsASeedOnlyWhenNoneIsGiven) {
  GenerateRequest request = WithTokens(1);
  EXPECT_NE(Prepare(request)->sampling.seed(), Prepare(request)->sampling.seed());
  request.mutable_sampling()->set_seed(0);
  EXPECT_EQ(Prepare(request)->sampling.seed(), 0u);
}

TEST(PrepareRequestTest, IgnoreEosLeavesOnlyTheRequestsOwnStopIds) {
  GenerateRequest request = WithTokens(1);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_stopping()->add_stop_token_ids(17);
  const auto plan = Prepare(request);
  ASSERT_EQ(plan->sampling.stop_token_ids_size(), 1);
  EXPECT_EQ(plan->sampling.stop_token_ids(0), 17u);
}

TEST(PrepareRequestTest, APromptThatFillsTheContextIsTooLong) {
  const auto plan = Prepare(WithTokens(64), {.max_sequence_tokens = 64});
  ASSERT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rpc::ReasonOf(plan.status()), "PROMPT_TOO_LONG");
  EXPECT_EQ(rpc::ReasonMetadata(plan.status()).at("limit"), "63");
  EXPECT_EQ(rpc::FieldViolations(plan.status()).at(0).field, "token_ids.ids");
  EXPECT_TRUE(Prepare(WithTokens(63), {.max_sequence_tokens = 64}).ok());
}

TEST(PrepareRequestTest, TheDefaultOfMaxTokensIsCappedByTheContext) {
  const auto plan = Prepare(WithTokens(60), {.max_sequence_tokens = 64});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->sampling.max_tokens(), 4u);
}

TEST(PrepareRequestTest, MaxTokensPastTheContextIsNamedWithItsLimit) {
  GenerateRequest request = WithTokens(60);
  request.mutable_stopping()->set_max_tokens(5);
  const auto plan = Prepare(request, {.max_sequence_tokens = 64});
  ASSERT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rpc::FieldViolations(plan.status()).at(0).field, "stopping.max_tokens");
  EXPECT_NE(plan.status().message().find("at most 4"), absl::string_view::npos) << plan.status();
}

TEST(PrepareRequestTest, MoreThanAnyPoolHoldsExceedsCapacity) {
  GenerateRequest request = WithTokens(10);
  request.mutable_stopping()->set_max_tokens(50);
  request.mutable_sampling()->set_n(2);
  EXPECT_TRUE(Prepare(request, {.max_pool_tokens = 110}).ok());
  const auto plan = Prepare(request, {.max_pool_tokens = 109});
  ASSERT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rpc::ReasonOf(plan.status()), "EXCEEDS_CAPACITY");
}

// Formats with memory of their own are not held against the dense pool.
TEST(PrepareRequestTest, OnlyDenseKvIsHeldAgainstThePool) {
  GenerateRequest request = WithTokens(10);
  request.mutable_stopping()->set_max_tokens(100);
  for (const char* policy : {"dense", "hidden+dense", "tier=exact"}) {
    request.set_kv_policy(policy);
    EXPECT_EQ(rpc::ReasonOf(Prepare(request, {.max_pool_tokens = 109}).status()),
              "EXCEEDS_CAPACITY")
        << policy;
  }
  for (const char* policy :
       {"fp8", "diffkv", "shadowkv:rank=32", "hidden8+diffkv", "auto", "tier=high"}) {
    request.set_kv_policy(policy);
    const auto plan = Prepare(request, {.max_pool_tokens = 109});
    ASSERT_TRUE(plan.ok()) << policy << plan.status();
    EXPECT_FALSE(plan->dense_kv) << policy;
  }
}

TEST(PrepareRequestTest, AChatIsRenderedAndItsSpecialTokensComeOnce) {
  GenerateRequest request;
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("hello");
  const auto plan = Prepare(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  int bos = 0;
  for (size_t i = 0; i + 4 <= plan->prompt_token_ids->size(); i += 4) {
    int32_t id = 0;
    std::memcpy(&id, plan->prompt_token_ids->data() + i, sizeof(id));
    bos += id == 4080 ? 1 : 0;
  }
  EXPECT_EQ(bos, 1);
}

TEST(PrepareRequestTest, ATemplateThatFailsIsAnErrorOfTheChatWithItsMessage) {
  const TempDir folder;
  std::filesystem::copy(std::string(BATON_SOURCE_DIR) + "/tests/data/models/tiny-llama-needle",
                        folder.path(),
                        std::filesystem::copy_options::recursive);
  folder.Write("chat_template.jinja", "{{ raise_exception('roles must alternate') }}");
  const auto model = LoadServedModel(folder.path(), "needle");
  ASSERT_TRUE(model.ok()) << model.status();
  GenerateRequest request;
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("hello");
  const auto plan = PrepareRequest(
      **model, {.default_max_tokens = 512, .worker_limits = {}}, request, absl::UnixEpoch());
  ASSERT_EQ(rpc::FieldViolations(plan.status()).size(), 1u) << plan.status();
  EXPECT_EQ(rpc::FieldViolations(plan.status())[0].field, "chat");
  EXPECT_NE(plan.status().message().find("roles must alternate"), absl::string_view::npos);
}

TEST(PrepareRequestTest, MalformedToolsNameTheirField) {
  GenerateRequest request;
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("hello");
  request.mutable_chat()->set_tools_json("{");
  EXPECT_EQ(rpc::FieldViolations(Prepare(request).status()).at(0).field, "chat.tools_json");
  request.mutable_chat()->set_tools_json("");
  request.mutable_chat()->set_template_kwargs_json("[]");
  EXPECT_EQ(rpc::FieldViolations(Prepare(request).status()).at(0).field,
            "chat.template_kwargs_json");
}

}  // namespace
}  // namespace baton::router
