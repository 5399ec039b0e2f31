#include "common/http/page_server.h"

#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::http {
namespace {

std::unique_ptr<PageServer> Serve(std::vector<Page> pages, PageServerOptions options = {}) {
  options.listen = "127.0.0.1:0";
  options.pages = std::move(pages);
  auto server = PageServer::Start(std::move(options));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

Page Constant(std::string path, std::string text) {
  return {.path = std::move(path), .content_type = "text/plain", .text = [text = std::move(text)] {
            return text;
          }};
}

// A connection of its own to 127.0.0.1:port, which sends what it is told.
class Peer {
 public:
  explicit Peer(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Peer() { close(socket_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  bool Send(const std::string& text) const {
    return send(socket_, text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
  }
  // All until the server closes.
  std::string Receive() const {
    std::string received;
    char buffer[4096];
    for (ssize_t n = 0; (n = recv(socket_, buffer, sizeof(buffer), 0)) > 0;) {
      received.append(buffer, static_cast<size_t>(n));
    }
    return received;
  }

 private:
  const int socket_;
};

TEST(PageServerTest, ServesEachPageUnderItsPathWithItsHeaders) {
  Page page = Constant("/", "start");
  page.headers = {{"Content-Security-Policy", "default-src 'none'"}};
  const auto server = Serve({page, Constant("/other", "elsewhere")});
  httplib::Client client("127.0.0.1", server->port());
  const auto start = client.Get("/");
  ASSERT_TRUE(start);
  EXPECT_EQ(start->status, 200);
  EXPECT_EQ(start->body, "start");
  EXPECT_EQ(start->get_header_value("Content-Security-Policy"), "default-src 'none'");
  EXPECT_EQ(start->get_header_value("X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(client.Get("/other?query")->body, "elsewhere");
}

TEST(PageServerTest, KnowsNoOtherPathAndNoOtherMethod) {
  const auto server = Serve({Constant("/", "start")});
  httplib::Client client("127.0.0.1", server->port());
  EXPECT_EQ(client.Get("/../etc/passwd")->status, 404);
  EXPECT_EQ(client.Get("/" + std::string(4000, 'a'))->status, 404);
  EXPECT_EQ(client.Post("/", "body", "text/plain")->status, 405);
  const auto head = client.Head("/");
  EXPECT_EQ(head->status, 200);
  EXPECT_TRUE(head->body.empty());
}

TEST(PageServerTest, PageThatThrowsIsAnErrorWithoutDetails) {
  const auto server =
      Serve({{.path = "/", .content_type = "text/plain", .text = []() -> std::string {
                throw std::runtime_error("secret");
              }}});
  const auto answer = httplib::Client("127.0.0.1", server->port()).Get("/");
  EXPECT_EQ(answer->status, 500);
  EXPECT_THAT(answer->body, testing::Not(testing::HasSubstr("secret")));
  EXPECT_FALSE(answer->has_header("EXCEPTION_WHAT"));
}

TEST(PageServerTest, CompressesForWhoeverAcceptsGzip) {
  const std::string text(100'000, 'a');
  const auto server = Serve({Constant("/", text)});
  Peer peer(server->port());
  ASSERT_TRUE(peer.Send("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: br, gzip\r\n\r\n"));
  const std::string answer = peer.Receive();
  EXPECT_THAT(answer, testing::HasSubstr("Content-Encoding: gzip"));
  EXPECT_LT(answer.size(), 10'000U);
  EXPECT_EQ(httplib::Client("127.0.0.1", server->port()).Get("/")->body, text);
}

// A copy of the page for each range of a header would be gigabytes.
TEST(PageServerTest, RangesAreAnsweredWithThePageOnce) {
  const std::string text(1000, 'a');
  const auto server = Serve({Constant("/", text)});
  std::string ranges = "bytes=0-";
  for (int i = 0; i < 1000; ++i) {
    ranges += ",0-";
  }
  for (const std::string& range : {ranges, std::string("bytes=10-20")}) {
    const auto answer =
        httplib::Client("127.0.0.1", server->port()).Get("/", httplib::Headers{{"Range", range}});
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, text);
  }
}

TEST(PageServerTest, PeerThatSendsAByteNowAndThenIsCutOffAtTheDeadline) {
  const auto server =
      Serve({Constant("/", "start")},
            {.listen = {}, .pages = {}, .connection_timeout = absl::Milliseconds(300)});
  Peer slow(server->port());
  ASSERT_TRUE(slow.Send("GET / HTTP/1.1\r\n"));
  // Each byte comes in time for a limit on single reads.
  bool cut_off = false;
  for (int i = 0; i < 600 && !cut_off; ++i) {
    cut_off = !slow.Send("a");
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_TRUE(cut_off);
}

TEST(PageServerTest, OthersAreServedOnceSlowPeersHaveHadTheirTime) {
  const auto server = Serve({Constant("/", "start")},
                            {.listen = {},
                             .pages = {},
                             .max_connections = 2,
                             .connection_timeout = absl::Milliseconds(300)});
  std::vector<std::unique_ptr<Peer>> silent;
  silent.reserve(5);
  for (int i = 0; i < 5; ++i) {
    silent.push_back(std::make_unique<Peer>(server->port()));
  }
  httplib::Client client("127.0.0.1", server->port());
  client.set_read_timeout(60);
  const auto answer = client.Get("/");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body, "start");
}

TEST(PageServerTest, NeverMakesMorePagesAtATimeThanItHasConnections) {
  std::atomic<int> now = 0;
  std::atomic<int> most = 0;
  const auto server = Serve({{.path = "/",
                              .content_type = "text/plain",
                              .text =
                                  [&] {
                                    most = std::max(most.load(), ++now);
                                    absl::SleepFor(absl::Milliseconds(20));
                                    --now;
                                    return std::string("page");
                                  }}},
                            {.listen = {}, .pages = {}, .max_connections = 2});
  std::vector<std::thread> clients;
  clients.reserve(8);
  std::atomic<int> served = 0;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      httplib::Client client("127.0.0.1", server->port());
      client.set_read_timeout(60);
      served += client.Get("/")->status == 200 ? 1 : 0;
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  EXPECT_EQ(served, 8);
  EXPECT_LE(most, 2);
}

TEST(PageServerTest, EndsAlthoughAPeerHoldsAConnection) {
  auto server = Serve({Constant("/", "start")},
                      {.listen = {}, .pages = {}, .connection_timeout = absl::Hours(1)});
  const Peer silent(server->port());
  ASSERT_EQ(httplib::Client("127.0.0.1", server->port()).Get("/")->status, 200);
  server.reset();
}

TEST(PageServerTest, PortInUseIsAnErrorThatNamesIt) {
  const auto server = Serve({});
  const std::string taken = "127.0.0.1:" + std::to_string(server->port());
  const auto second = PageServer::Start({.listen = taken, .pages = {}});
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
  EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr(taken));
  EXPECT_TRUE(
      absl::IsInvalidArgument(PageServer::Start({.listen = "nonsense", .pages = {}}).status()));
}

}  // namespace
}  // namespace baton::http
