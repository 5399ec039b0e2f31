// Transfers of every size by every carrier, while the receiver is idle and while it decodes.
#pragma once

#include "absl/status/status.h"

#include "tests/gpu/bench/transfer_ends.h"

namespace baton::kernels::cuda {

// Prints a row for each carrier, size and state of the receiver (transfer_bench.cc).
absl::Status SendAtRates(const TransferLine& line);
// The other end of the line; returns when the sender has ended.
absl::Status ReceiveAtRates(const TransferLine& line);

}  // namespace baton::kernels::cuda
