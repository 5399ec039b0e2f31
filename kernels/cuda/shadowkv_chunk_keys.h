// Reconstruction of selected keys for calls whose bounds have a chunk_key_rank.
#pragma once

#include "absl/status/status.h"

#include "kernels/cuda/runtime/device_queue.h"

namespace baton::kernels::cuda::shadowkv {

struct AttendCall;

// Gives the queue the keys of the misses that the call's plans name, to the slots that they name.
// Errors: kUnimplemented for a rank that ShadowKvChunkKeyRank does not give, and those of the
// launch.
absl::Status ReconstructChunks(const DeviceQueue& queue, const AttendCall& call);

}  // namespace baton::kernels::cuda::shadowkv
