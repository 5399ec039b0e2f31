// KV format `diffkv` with its page pool.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/block_cache.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/diffkv/diffkv_codec.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/pool/page_pool.h"

namespace baton::kv {

// Pages of all tiers are of one size, so one pool serves every policy.
class DiffKvFormat final : public EncodedFormat {
 public:
  // Whether there is a layout for heads of this size.
  static bool Serves(int32_t head_dim) { return kernels::DiffKvPageBytes(head_dim) > 0; }
  // kInvalidArgument for a head_dim without a page layout, or a pool without a page.
  static absl::StatusOr<std::unique_ptr<DiffKvFormat>> Create(const CodecContext& context,
                                                              int64_t pool_bytes);

  KvFormatId id() const override { return KvFormatId::kDiffKv; }
  uint16_t version() const override { return kernels::DiffKvPageLayout::kVersion; }
  absl::Status Check(const KvResidentPolicy& policy,
                     int64_t prompt_tokens,
                     int64_t max_tokens,
                     int32_t sequences) const override;
  bool PrefersDense(const KvResidentPolicy& /*policy*/, int64_t /*prompt_tokens*/) const override {
    return false;
  }
  int32_t observation_window(const KvResidentPolicy& policy) const override;
  uint64_t calibration_digest() const override;
  WindowShape window(const KvResidentPolicy& policy, int64_t prompt_tokens) const override;
  std::unique_ptr<EncodedKv> Allocate(const KvResidentPolicy& policy,
                                      int64_t prompt_tokens,
                                      int64_t max_tokens) override;
  bool Extend(EncodedKv& sequence, int64_t prompt_tokens, int64_t max_tokens) override;
  PoolBytes pool() const override;

 private:
  using Tiers = std::pair<KvTier, KvTier>;

  DiffKvFormat(const CodecContext& context, std::unique_ptr<PagePool> pool)
      : context_(context), pool_(std::move(pool)), blocks_(*context.exec.memory) {}
  bool on_host() const { return context_.exec.memory->is_host(); }
  kernels::DiffKvGeometry geometry(const DiffKvPolicy& policy) const;
  DiffKvCodec& codec(const DiffKvPolicy& policy);

  const CodecContext& context_;
  const std::unique_ptr<PagePool> pool_;
  BlockCache blocks_;
  std::map<Tiers, std::unique_ptr<DiffKvCodec>> codecs_;
};

}  // namespace baton::kv
