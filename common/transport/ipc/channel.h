// One local connection: messages, some with a descriptor, in order.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/transport/ipc/message.h"
#include "kernels/core/shared_blocks.h"

namespace baton::transport::ipc {

// Closes what it has. Move-only.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }  // -1: none

 private:
  int fd_ = -1;
};

// Over a connected socket of packets (SOCK_SEQPACKET), which is not waited for. The kernel ends it
// with the peer's process. Not thread-safe.
class Channel {
 public:
  struct Received {
    Message message;
    Descriptor attached;
  };
  // Messages that may wait for a peer that does not read; one more is the end of the connection.
  static constexpr size_t kMaxUnsent = 8192;

  explicit Channel(Descriptor socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  // Sends it now, or when a Flush can. With `attached` goes that block's descriptor.
  void Send(const Message& message, std::shared_ptr<const kernels::SharedBlock> attached = nullptr);
  void Flush();
  // Nothing waits, so that the next message may go out at once.
  bool idle() const { return unsent_.empty(); }
  // The next message, if one is there.
  std::optional<Received> Receive();
  // kUnavailable when the peer is gone, kInvalidArgument when it sent something else; final.
  const absl::Status& status() const { return status_; }
  // The user of the process at the other end; kUnavailable when the system can't tell.
  absl::StatusOr<unsigned> peer_user() const;

 private:
  struct Unsent {
    std::string bytes;
    std::shared_ptr<const kernels::SharedBlock> attached;
  };

  // False when the socket takes nothing now, or the connection has ended.
  bool SendNow(const Unsent& unsent);
  void End(absl::Status status) { status_.Update(std::move(status)); }

  const Descriptor socket_;
  std::deque<Unsent> unsent_;
  absl::Status status_;
};

}  // namespace baton::transport::ipc
