#include "common/transport/ipc/channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/transport/ipc/message.h"
#include "kernels/core/shared_blocks.h"

namespace baton::transport::ipc {
namespace {

// For one descriptor. Of this length there is no room for a second one, which the kernel closes.
constexpr size_t kControlBytes = CMSG_LEN(sizeof(int));
struct alignas(cmsghdr) Control {
  std::array<std::byte, CMSG_SPACE(sizeof(int))> bytes{};
};

absl::Status Gone() {
  return absl::UnavailableError("the peer's process has ended the connection");
}

// The descriptor that came with a packet, if one did.
Descriptor AttachedTo(msghdr& header) {
  const cmsghdr* const control = CMSG_FIRSTHDR(&header);
  if (control == nullptr || control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS ||
      control->cmsg_len != kControlBytes) {
    return {};
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(control), sizeof(fd));
  return Descriptor(fd);
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

void Channel::Send(const Message& message, std::shared_ptr<const kernels::SharedBlock> attached) {
  Unsent unsent = {.bytes = EncodeMessage(message), .attached = std::move(attached)};
  if (!status_.ok() || (unsent_.empty() && SendNow(unsent))) {
    return;
  }
  if (unsent_.size() >= kMaxUnsent) {
    End(absl::UnavailableError("the peer does not read its messages"));
    return;
  }
  unsent_.push_back(std::move(unsent));
}

void Channel::Flush() {
  while (status_.ok() && !unsent_.empty() && SendNow(unsent_.front())) {
    unsent_.pop_front();
  }
}

bool Channel::SendNow(const Unsent& unsent) {
  iovec data = {.iov_base = const_cast<char*>(unsent.bytes.data()), .iov_len = unsent.bytes.size()};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  Control control;
  if (unsent.attached != nullptr) {
    header.msg_control = control.bytes.data();
    header.msg_controllen = control.bytes.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = unsent.attached->fd();
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  }
  for (;;) {
    if (sendmsg(fd(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
      return true;
    }
    if (errno == EINTR) {
      continue;
    }
    if (errno != EAGAIN) {
      End(Gone());
    }
    return false;
  }
}

std::optional<Channel::Received> Channel::Receive() {
  if (!status_.ok()) {
    return std::nullopt;
  }
  // One byte more than a message may have shows one that is too long.
  std::array<std::byte, kMaxMessageBytes + 1> buffer;
  iovec data = {.iov_base = buffer.data(), .iov_len = buffer.size()};
  Control control;
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes.data();
  header.msg_controllen = kControlBytes;
  const ssize_t size = recvmsg(fd(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size <= 0) {
    if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
      End(Gone());
    }
    return std::nullopt;
  }
  Descriptor attached = AttachedTo(header);
  absl::StatusOr<Message> message =
      DecodeMessage(std::span(buffer).first(static_cast<size_t>(size)));
  if (!message.ok()) {
    End(message.status());
    return std::nullopt;
  }
  return Received{.message = *std::move(message), .attached = std::move(attached)};
}

absl::StatusOr<unsigned> Channel::peer_user() const {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (getsockopt(fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return absl::UnavailableError(absl::StrCat("who is at the other end: ", std::strerror(errno)));
  }
  return credentials.uid;
}

}  // namespace baton::transport::ipc
