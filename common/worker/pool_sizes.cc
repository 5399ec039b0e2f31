#include "common/worker/pool_sizes.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/engine/engine.h"

namespace baton::worker {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kHostHidden = 128 * kMiB;
// Of a device's memory: half of what the hidden states of a prompt are to its dense pages, which
// have an eighth to a quarter, in Llama-3.1-8B.
constexpr int64_t kHiddenPart = 32;
// Enough to be served where none is made.
constexpr int64_t kUnusedHidden = kMiB;
// A pool of less holds too little to be worth its name.
constexpr int64_t kLeastDevicePool = 64 * kMiB;

// Of what a device has for pools without a size.
int64_t DeviceHidden(engine::Role role, int64_t rest) {
  if (role == engine::Role::kBoth) {
    return kUnusedHidden;
  }
  return rest / kHiddenPart < kMiB ? 0 : rest / kHiddenPart;
}

}  // namespace

void SetHostPools(const PoolSizes& told, engine::EngineOptions& options) {
  options.kv_pool_bytes = told.dense.value_or(1024 * kMiB);
  options.codec_pools = {.fp8_bytes = told.fp8.value_or(256 * kMiB),
                         .diffkv_bytes = told.diffkv.value_or(256 * kMiB),
                         .shadowkv_bytes = told.shadowkv.value_or(256 * kMiB),
                         .hidden_bytes = told.hidden.value_or(kHostHidden)};
}

absl::Status SetDevicePools(const PoolSizes& told, int64_t left, engine::EngineOptions& options) {
  // Where prompts land is memory of the device, too.
  int64_t asked =
      told.hidden.value_or(0) + (options.role == engine::Role::kDecode ? options.staging_bytes : 0);
  int64_t untold = 0;
  for (const std::optional<int64_t>& pool : {told.dense, told.fp8, told.diffkv, told.shadowkv}) {
    asked += pool.value_or(0);
    untold += pool.has_value() ? 0 : 1;
  }
  const int64_t rest = left - asked;
  const int64_t hidden = DeviceHidden(options.role, rest);
  const int64_t part = untold > 0 ? (rest - (told.hidden ? 0 : hidden)) / untold : 0;
  if (rest < 0 || (untold > 0 && part < kLeastDevicePool)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the device has ",
        std::max<int64_t>(left, 0) / kMiB,
        " MiB for KV pools beside the model; flags ask for ",
        asked / kMiB,
        " MiB and leave ",
        untold,
        " pools without a size; lower --kv_pool_mib, --fp8_pool_mib, --diffkv_pool_mib, "
        "--shadowkv_pool_mib or --hidden_pool_mib (0 turns a format off), or with role decode "
        "--staging_mib, or raise --device_memory_share"));
  }
  options.kv_pool_bytes = told.dense.value_or(part);
  options.codec_pools = {.fp8_bytes = told.fp8.value_or(part),
                         .diffkv_bytes = told.diffkv.value_or(part),
                         .shadowkv_bytes = told.shadowkv.value_or(part),
                         .shadowkv_host_bytes = options.role == engine::Role::kPrefill
                                                    ? std::nullopt
                                                    : std::optional(told.shadowkv_host.value_or(0)),
                         .hidden_bytes = told.hidden.value_or(hidden)};
  return absl::OkStatus();
}

}  // namespace baton::worker
