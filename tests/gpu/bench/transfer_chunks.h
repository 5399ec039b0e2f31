// Very many small chunks from one GPU to another, whose bytes are looked at as soon as a transfer
// is said to be complete (catalogue T13: completion seen before the data is there).
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "tests/gpu/bench/transfer_ends.h"

namespace baton::kernels::cuda {

struct ChunkLoad {
  int64_t chunks = 0;
  uint64_t seed = 1;  // of sizes and places
};

// Sends so many by each carrier, and prints a row for it when the receiver has found them all
// right.
absl::Status SendChunks(const TransferLine& line, const ChunkLoad& load);
// The other end of the line: every transfer's checksum, and its bytes as a queue of the device
// that waits for nothing reads them, have to be the sender's. kDataLoss says which were not.
absl::Status ReceiveChunks(const TransferLine& line, const ChunkLoad& load);

}  // namespace baton::kernels::cuda
