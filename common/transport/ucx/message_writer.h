// Bytes within messages, for carriers that would emulate puts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/transport/ucx/endpoint.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/slot_writer.h"

namespace baton::transport::ucx {

// Copies the bytes into the message that names their places. Borrows `endpoint`; `connection` is
// the peer's number.
class MessageWriter final : public SlotWriter {
 public:
  MessageWriter(Endpoint& endpoint, uint64_t connection)
      : endpoint_(endpoint), connection_(connection) {}

  void Write(Written written,
             const std::vector<std::span<const std::byte>>& sources,
             Endpoint::Done done) override;

 private:
  Endpoint& endpoint_;
  const uint64_t connection_;
};

}  // namespace baton::transport::ucx
