#include "common/transport/ipc/listener.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/transport/ipc/channel.h"

namespace baton::transport::ipc {
namespace {

constexpr int kBacklog = 128;

struct Address {
  explicit Address(std::string_view socket) {
    name.sun_family = AF_UNIX;
    // A leading zero byte is the abstract namespace.
    socket.copy(name.sun_path + 1, sizeof(name.sun_path) - 1);
    size = static_cast<unsigned>(offsetof(sockaddr_un, sun_path) + 1 + socket.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }

  sockaddr_un name{};
  unsigned size = 0;
};

absl::Status Failed(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<Descriptor> NewSocket(const std::string& socket) {
  if (socket.empty() || socket.size() >= sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError("the name of a local socket must have 1 to 106 bytes");
  }
  Descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (made.get() < 0) {
    return Failed("no local socket");
  }
  return made;
}

}  // namespace

absl::StatusOr<Descriptor> Listen(const std::string& socket) {
  absl::StatusOr<Descriptor> listener = NewSocket(socket);
  if (!listener.ok()) {
    return listener;
  }
  const Address address(socket);
  if (bind(listener->get(), address.get(), address.size) != 0 ||
      listen(listener->get(), kBacklog) != 0) {
    return Failed("listening at a local socket");
  }
  return listener;
}

absl::StatusOr<Descriptor> Accept(const Descriptor& listener) {
  Descriptor accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (accepted.get() >= 0) {
    return accepted;
  }
  const int error = errno;
  const bool exhausted = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
  return exhausted ? absl::ResourceExhaustedError(std::strerror(error))
                   : absl::NotFoundError(std::strerror(error));
}

absl::StatusOr<Descriptor> Dial(const std::string& socket) {
  absl::StatusOr<Descriptor> connected = NewSocket(socket);
  if (!connected.ok()) {
    return connected;
  }
  const Address address(socket);
  if (connect(connected->get(), address.get(), address.size) != 0) {
    return Failed("nobody listens in this network namespace");
  }
  return connected;
}

}  // namespace baton::transport::ipc
