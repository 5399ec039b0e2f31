#include "common/rpc/tls.h"

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"

#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "tests/unit/rpc/control_fixture.h"

namespace baton::rpc {
namespace {

std::string Pem(const std::string& name) {
  return std::string(BATON_SOURCE_DIR) + "/tests/data/tls/" + name;
}

TlsOptions WorkerCert() { return {.cert = Pem("worker.pem"), .key = Pem("worker.key")}; }

TlsOptions WithCa(TlsOptions options, const std::string& ca) {
  options.ca = Pem(ca);
  return options;
}

// Calls a server with `server` options through a channel with `client` options.
absl::Status Call(const TlsOptions& server, const TlsOptions& client) {
  FixedControl service;
  auto started = Server::Start(
      {.listen = "127.0.0.1:0", .tls = server, .services = {&service}, .health_names = {}});
  if (!started.ok()) {
    return started.status();
  }
  auto channel = MakeChannel((*started)->address(), client, Exposure::kInternal);
  if (!channel.ok()) {
    return channel.status();
  }
  grpc::ClientContext context;
  SetDeadline(absl::Now() + absl::Seconds(20), &context);
  worker::v1::Loads loads;
  return FromGrpcStatus(worker::v1::Control::NewStub(*channel)->GetLoads(&context, {}, &loads));
}

TEST(TlsTest, ClientThatTrustsTheRootGetsThrough) {
  EXPECT_EQ(Call(WorkerCert(), {.ca = Pem("ca.pem")}), absl::OkStatus());
}

TEST(TlsTest, ClientThatTrustsAnotherRootRefusesTheServer) {
  EXPECT_EQ(Call(WorkerCert(), {.ca = Pem("other_ca.pem")}).code(), absl::StatusCode::kUnavailable);
}

TEST(TlsTest, PlainClientIsRefused) {
  EXPECT_EQ(Call(WorkerCert(), {}).code(), absl::StatusCode::kUnavailable);
}

TEST(TlsTest, MutualTlsAcceptsAPeerOfTheDeployment) {
  const TlsOptions both = WithCa(WorkerCert(), "ca.pem");
  EXPECT_EQ(Call(both, both), absl::OkStatus());
}

TEST(TlsTest, MutualTlsRefusesAClientWithoutCertificate) {
  EXPECT_EQ(Call(WithCa(WorkerCert(), "ca.pem"), {.ca = Pem("ca.pem")}).code(),
            absl::StatusCode::kUnavailable);
}

TEST(TlsTest, MutualTlsRefusesACertificateOfAnotherRoot) {
  TlsOptions stranger{.cert = Pem("stranger.pem"), .key = Pem("stranger.key"), .ca = Pem("ca.pem")};
  EXPECT_EQ(Call(WithCa(WorkerCert(), "ca.pem"), stranger).code(), absl::StatusCode::kUnavailable);
}

TEST(TlsTest, ServerNameReplacesTheHostInTheCheck) {
  EXPECT_EQ(Call(WorkerCert(), {.ca = Pem("ca.pem"), .server_name = "localhost"}),
            absl::OkStatus());
  EXPECT_EQ(Call(WorkerCert(), {.ca = Pem("ca.pem"), .server_name = "elsewhere.example"}).code(),
            absl::StatusCode::kUnavailable);
}

TEST(TlsTest, IncompleteOrUnreadableOptionsAreNamed) {
  EXPECT_EQ(MakeServerCredentials({.cert = Pem("worker.pem")}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeServerCredentials({.ca = Pem("ca.pem")}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeChannelCredentials(WorkerCert()).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto missing = MakeChannelCredentials({.ca = "/nonexistent.pem"});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(std::string(missing.status().message()).find("--tls_ca"), std::string::npos);
  const auto no_pem = MakeChannelCredentials({.ca = Pem("README.md")});
  EXPECT_EQ(no_pem.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::rpc
