// How the bytes of posts get into slots that the receiver has granted.
#pragma once

#include <span>
#include <vector>

#include "common/transport/ucx/endpoint.h"
#include "common/transport/ucx/message.h"

namespace baton::transport::ucx {

// Not thread-safe: used by the progress thread, and destroyed when the endpoint is closed.
class SlotWriter {
 public:
  virtual ~SlotWriter() = default;

  // Brings `sources`, the bytes of the pieces of `written` in their order, into its slot and sends
  // `written`, calls one after the other. The sources are borrowed until `done`, which comes once,
  // within the call or within UcxWorker::Progress, with OK when `written` has been sent.
  virtual void Write(Written written,
                     const std::vector<std::span<const std::byte>>& sources,
                     Endpoint::Done done) = 0;
};

}  // namespace baton::transport::ucx
