// Services on machines whose environment names an HTTP proxy, as many data centres do.
#include <cstdlib>

#include "gtest/gtest.h"

#include "tests/support/inference_client.h"
#include "tests/support/local_stack.h"

namespace baton::testing {
namespace {

constexpr char kModel[] = BATON_SOURCE_DIR "/tests/data/models/tiny-llama-needle";

// Nobody listens at the proxy.
TEST(ProxyTest, WorkersAreReachedPastTheProxyOfTheEnvironment) {
  setenv("http_proxy", "http://127.0.0.1:9", 1);
  unsetenv("no_proxy");
  auto stack = LocalStack::Start({.model = kModel, .worker_flags = {"--transports=grpc"}});
  unsetenv("http_proxy");
  ASSERT_TRUE(stack.ok()) << stack.status();
  const StreamResult result = InferenceClient((*stack)->router_address()).Run(TokenRequest(64, 8));
  EXPECT_TRUE(result.status.ok()) << result.status.error_message() << (*stack)->LogTails();
  EXPECT_EQ(result.token_ids.size(), 8U);
}

}  // namespace
}  // namespace baton::testing
