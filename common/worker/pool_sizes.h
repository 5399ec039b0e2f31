// How much memory the pools of a worker's KV formats get.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

#include "common/engine/engine.h"

namespace baton::worker {

// Bytes, as the command line tells them; without a value a pool has its default. 0 leaves a format
// out, but for dense, in which every prompt is computed.
struct PoolSizes {
  std::optional<int64_t> dense = {};
  std::optional<int64_t> fp8 = {};
  std::optional<int64_t> diffkv = {};
  std::optional<int64_t> shadowkv = {};
  std::optional<int64_t> shadowkv_host = {};  // of a device's values of vplace=host
  std::optional<int64_t> hidden = {};
};

// On the host, which backs pools with memory when it is used: defaults for a small machine.
void SetHostPools(const PoolSizes& told, engine::EngineOptions& options);

// On a device `left` bytes are for pools, and with role decode for staging_bytes. Pools that were
// told get what was told, hidden states a 32nd, the others of dense, fp8, diffkv and shadowkv equal
// parts of the rest. Hidden states lie between workers only: one that does both halves has next to
// nothing for them.
// Values of vplace=host have what was told of the host's memory, or are not served; where prompts
// are only computed they stay on the device. kResourceExhausted, naming the sizes, when that is not
// enough.
absl::Status SetDevicePools(const PoolSizes& told, int64_t left, engine::EngineOptions& options);

}  // namespace baton::worker
