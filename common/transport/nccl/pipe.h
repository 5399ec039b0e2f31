// One end of a KvTransfer.Link stream.
#pragma once

#include <functional>
#include <optional>

#include "proto/baton/worker/v1/kv_link.pb.h"

namespace baton::transport::nccl {

// Messages in order, both ways, of which the next is read when it is asked for: a peer can't have
// more than one wait here. Used by the progress thread; calls after Close do nothing.
class Pipe {
 public:
  // The message that was asked for, or nothing: the stream has ended. From a gRPC thread.
  using OnMessage = std::function<void(std::optional<worker::v1::LinkMessage>)>;

  virtual ~Pipe() = default;
  virtual void Read() = 0;
  // Messages that the peer does not take wait here; too many are the end of the stream.
  virtual void Send(worker::v1::LinkMessage message) = 0;
  // Ends the stream; nothing that was sent is sure to arrive any more.
  virtual void Close() = 0;
};

}  // namespace baton::transport::nccl
