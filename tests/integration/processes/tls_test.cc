// --tls-cert, --tls-key and --tls-ca on three processes: every port and every channel is mutual.
#include "common/rpc/tls.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "common/rpc/channel.h"
#include "common/rpc/health_client.h"
#include "common/rpc/limits.h"
#include "tests/support/inference_client.h"
#include "tests/support/local_stack.h"

namespace baton::testing {
namespace {

constexpr char kModel[] = BATON_SOURCE_DIR "/tests/data/models/tiny-llama-needle";

std::string Pem(const std::string& name) {
  return std::string(BATON_SOURCE_DIR) + "/tests/data/tls/" + name;
}

rpc::TlsOptions Identity(const std::string& name) {
  return {.cert = Pem(name + ".pem"), .key = Pem(name + ".key"), .ca = Pem("ca.pem")};
}

class TlsProcessesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const rpc::TlsOptions own = Identity("worker");
    auto stack = LocalStack::Start(
        {.model = kModel,
         .tls_flags = {"--tls-cert=" + own.cert, "--tls-key=" + own.key, "--tls-ca=" + own.ca}});
    ASSERT_TRUE(stack.ok()) << stack.status();
    stack_ = *std::move(stack);
  }

  // Whether a caller with `tls` gets an answer from `service`.
  static bool Answers(const Service& service, const rpc::TlsOptions& tls) {
    const auto channel = rpc::MakeChannel(service.address(), tls, rpc::Exposure::kInternal);
    EXPECT_TRUE(channel.ok()) << channel.status();
    return rpc::CheckHealth(*channel, "liveness", absl::Now() + absl::Seconds(2)).ok();
  }

  std::unique_ptr<LocalStack> stack_;
};

TEST_F(TlsProcessesTest, RequestsCrossEveryChannelAndPortsRefuseStrangers) {
  const auto credentials = rpc::MakeChannelCredentials(Identity("worker"));
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  const StreamResult result =
      InferenceClient(stack_->router_address(), *credentials).Run(TokenRequest(100, 8));
  EXPECT_TRUE(result.status.ok()) << result.status.error_message() << stack_->LogTails();
  EXPECT_EQ(result.token_ids.size(), 8u);
  EXPECT_GT(result.usage.kv_wire_bytes(), 0u) << "the pages crossed between the workers";
  for (const Service* service : {&stack_->router(), &stack_->prefill(), &stack_->decode()}) {
    SCOPED_TRACE(service->argv.front());
    EXPECT_TRUE(Answers(*service, Identity("worker")));
    EXPECT_FALSE(Answers(*service, {})) << "plain text";
    EXPECT_FALSE(Answers(*service, {.ca = Pem("ca.pem")})) << "no certificate";
    EXPECT_FALSE(Answers(*service, Identity("stranger"))) << "a certificate of another root";
  }
}

}  // namespace
}  // namespace baton::testing
