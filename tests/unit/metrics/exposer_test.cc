#include "common/metrics/exposer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace baton::metrics {
namespace {

// A plain HTTP GET of /metrics on 127.0.0.1:port; the whole response.
std::string Scrape(int port) {
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string response;
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
    EXPECT_EQ(write(connection, request.data(), request.size()),
              static_cast<ssize_t>(request.size()));
    char buffer[4096];
    for (ssize_t n = 0; (n = read(connection, buffer, sizeof(buffer))) > 0;) {
      response.append(buffer, static_cast<size_t>(n));
    }
  }
  close(connection);
  return response;
}

TEST(ExposerTest, ServesTheRegistryOnAFreePort) {
  auto registry =
      std::make_shared<Registry>(RegistryOptions{.model_name = "tiny", .role = "prefill"});
  registry->Get(kPromptTokens).Increment(7);
  const auto exposer = Exposer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  ASSERT_GT((*exposer)->port(), 0);
  EXPECT_NE(Scrape((*exposer)->port())
                .find("baton_prompt_tokens_total{model_name=\"tiny\",role=\"prefill\"} 7"),
            std::string::npos);
}

TEST(ExposerTest, AddressThatCannotBeBoundIsAnErrorThatNamesIt) {
  auto registry = std::make_shared<Registry>(RegistryOptions{});
  const auto exposer = Exposer::Start("no-such-host.invalid:1", registry);
  EXPECT_EQ(exposer.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(exposer.status().message()).find("no-such-host.invalid:1"),
            std::string::npos);
}

}  // namespace
}  // namespace baton::metrics
