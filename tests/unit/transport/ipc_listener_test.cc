// Connections that come while this process has no descriptor for them.
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "common/transport/ipc/channel.h"
#include "common/transport/ipc/connection_data.h"
#include "common/transport/ipc/ipc_transport.h"
#include "common/transport/ipc/listener.h"

namespace baton::transport {
namespace {

// No descriptor may be opened while it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const int lowest_free = dup(STDERR_FILENO);
    EXPECT_GE(lowest_free, 0);
    close(lowest_free);
    const rlimit none = {.rlim_cur = static_cast<rlim_t>(lowest_free),
                         .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptors() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

// Time that this process's threads have run.
double CpuSeconds() {
  rusage usage{};
  EXPECT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The listener stays readable all the while.
TEST(IpcListenerTest, AReceiverWithoutADescriptorSleepsAndThenTakesWhoWaits) {
  const auto receiver =
      *IpcTransport::Make({.listens = true, .connect_timeout = absl::Milliseconds(300)});
  const auto data = *ipc::ConnectionData::Parse(receiver->connection_data());
  const ipc::Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  data.socket.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  const auto size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + data.socket.size());
  const absl::Time begin = absl::Now();
  double used = CpuSeconds();
  {
    const NoDescriptors none;
    ASSERT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    absl::SleepFor(absl::Milliseconds(500));
    used = CpuSeconds() - used;
  }
  EXPECT_LT(used, absl::ToDoubleSeconds(absl::Now() - begin) / 4) << "it looked without end";
  // A peer that is taken and does not introduce itself is closed: the socket tells of it.
  pollfd polled = {.fd = socket.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&polled, 1, 20000), 1);
}

TEST(IpcListenerTest, AConnectionWaitsWhileThereIsNoDescriptorForIt) {
  const ipc::ConnectionData data = *ipc::ConnectionData::Make();
  const ipc::Descriptor listener = *ipc::Listen(data.socket);
  EXPECT_EQ(ipc::Accept(listener).status().code(), absl::StatusCode::kNotFound);
  const ipc::Descriptor caller = *ipc::Dial(data.socket);
  {
    const NoDescriptors none;
    EXPECT_EQ(ipc::Accept(listener).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ipc::Accept(listener).status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_TRUE(ipc::Accept(listener).ok());
}

}  // namespace
}  // namespace baton::transport
