// KV format `shadowkv` with its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/block_cache.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/policy_params.h"
#include "common/kv/codec/shadowkv/shadowkv_codec.h"
#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/kv_format/shadowkv.h"

namespace baton::kv {

class ShadowKvFormat final : public EncodedFormat {
 public:
  // Clusters of a head's values beside 2-bit keys (ShadowKvConfig::value_clusters). From 16 to 256
  // the hard cases of the shipped models came out alike (docs/quality.md); a cluster costs one
  // attended token per step and one mean value per prompt.
  static constexpr int32_t kValueClusters = 32;

  // Whether there is a layout for heads of this size.
  static bool Serves(int32_t head_dim) { return head_dim % 8 == 0; }
  // `host_value_bytes`: of a pool in the host's memory for values of vplace=host; 0: they are not
  // served; no value: they lie in the format's pool, as on the host and where a device computes
  // prompts for others. kInvalidArgument for a head_dim that is no multiple of 8, or a pool without
  // memory.
  static absl::StatusOr<std::unique_ptr<ShadowKvFormat>> Create(
      const CodecContext& context, int64_t pool_bytes, std::optional<int64_t> host_value_bytes);

  KvFormatId id() const override { return KvFormatId::kShadowKv; }
  uint16_t version() const override { return kernels::ShadowKvConfig::kVersion; }
  // kInvalidArgument for a joint factorization of a model without upper layers, and on a device for
  // a prompt that its scratch memory is too small for; kFailedPrecondition for values in the host's
  // memory where they have no pool.
  absl::Status Check(const KvResidentPolicy& policy,
                     int64_t prompt_tokens,
                     int64_t max_tokens,
                     int32_t sequences) const override;
  bool PrefersDense(const KvResidentPolicy& policy, int64_t prompt_tokens) const override;
  int32_t observation_window(const KvResidentPolicy& /*policy*/) const override { return 1; }
  WindowShape window(const KvResidentPolicy& policy, int64_t prompt_tokens) const override;
  std::unique_ptr<EncodedKv> Allocate(const KvResidentPolicy& policy,
                                      int64_t prompt_tokens,
                                      int64_t max_tokens) override;
  bool Extend(EncodedKv& sequence, int64_t prompt_tokens, int64_t max_tokens) override;
  PoolBytes pool() const override;
  PoolBytes host_pool() const override;

 private:
  ShadowKvFormat(const CodecContext& context,
                 std::unique_ptr<RunPool> pool,
                 std::unique_ptr<RunPool> value_pool,
                 bool serves_host_values)
      : context_(context),
        pool_(std::move(pool)),
        value_pool_(std::move(value_pool)),
        serves_host_values_(serves_host_values),
        blocks_(*context.exec.memory) {}
  bool on_host() const { return context_.exec.memory->is_host(); }
  // A budget that is a share becomes tokens.
  kernels::ShadowKvConfig Config(const KvResidentPolicy& policy, int64_t prompt_tokens) const;
  ShadowKvMap Map(const KvResidentPolicy& policy, int64_t prompt_tokens) const;
  absl::Status CheckOnDevice(const ShadowKvMap& map, int64_t tokens) const;
  absl::Status CheckPools(const ShadowKvMap& map, int64_t max_tokens, int32_t sequences) const;

  const CodecContext& context_;
  const std::unique_ptr<RunPool> pool_;
  const std::unique_ptr<RunPool> value_pool_;  // null: values apart lie in pool_
  const bool serves_host_values_;
  BlockCache blocks_;
  std::unique_ptr<ShadowKvCodec> codec_;
};

}  // namespace baton::kv
