#include "common/http/deadline_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "absl/time/clock.h"

namespace baton::http {
namespace {

// How late a stop is seen.
constexpr int64_t kPollMilliseconds = 100;

}  // namespace

bool DeadlineStream::Wait(int events) const {
  while (!stop_.load()) {
    const int64_t left = absl::ToInt64Milliseconds(deadline_ - absl::Now());
    if (left <= 0) {
      return false;
    }
    pollfd waited{.fd = socket_, .events = static_cast<int16_t>(events), .revents = 0};
    const int ready = poll(&waited, 1, static_cast<int>(std::min(left, kPollMilliseconds)));
    if (ready > 0) {
      return true;  // an error or a hang-up, too: the next read or write reports it
    }
    if (ready < 0 && errno != EINTR) {
      return false;
    }
  }
  return false;
}

bool DeadlineStream::is_readable() const { return Wait(POLLIN); }

bool DeadlineStream::is_writable() const { return Wait(POLLOUT); }

ssize_t DeadlineStream::read(char* ptr, size_t size) {
  return is_readable() ? recv(socket_, ptr, size, 0) : -1;
}

ssize_t DeadlineStream::write(const char* ptr, size_t size) {
  return is_writable() ? send(socket_, ptr, size, MSG_NOSIGNAL | MSG_DONTWAIT) : -1;
}

}  // namespace baton::http
