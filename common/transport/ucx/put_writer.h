// Bytes by one-sided puts into the receiver's memory, for RDMA.
#pragma once

#include <ucp/api/ucp.h>

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "common/transport/ucx/endpoint.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/slot_writer.h"

namespace baton::transport::ucx {

// Puts the bytes from where they lie, and sends Written when a flush has confirmed that they have
// arrived. Borrows `endpoint`.
class PutWriter final : public SlotWriter {
 public:
  // An error when UCX can't use the key of `slots`.
  static absl::StatusOr<std::unique_ptr<PutWriter>> Make(Endpoint& endpoint, const Welcome& slots);
  ~PutWriter() override;
  PutWriter(const PutWriter&) = delete;
  PutWriter& operator=(const PutWriter&) = delete;

  void Write(Written written,
             const std::vector<std::span<const std::byte>>& sources,
             Endpoint::Done done) override;

 private:
  struct Put {
    Written written;
    Endpoint::Done done;
    size_t open_operations = 0;
    absl::Status status{};
  };

  PutWriter(Endpoint& endpoint, const Welcome& slots) : endpoint_(endpoint), slots_(slots) {}
  void End(Put& put, const absl::Status& status);

  Endpoint& endpoint_;
  const Welcome slots_;
  ucp_rkey_h rkey_ = nullptr;
  std::deque<std::shared_ptr<Put>> puts_;  // whose Written is not sent
};

}  // namespace baton::transport::ucx
