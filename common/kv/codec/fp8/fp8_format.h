// KV format `fp8` with its page pool (SwiftKV, appendix B.1: per-token FP8 KV).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/block_cache.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/fp8/fp8_codec.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/pool/page_pool.h"

namespace baton::kv {

// Prefill computes with unquantized working pages; the prompt is coded when it is complete.
class Fp8Format final : public EncodedFormat {
 public:
  // Tokens of a page.
  static constexpr int32_t kPageTokens = 32;

  // kInvalidArgument for a pool without a page.
  static absl::StatusOr<std::unique_ptr<Fp8Format>> Create(const CodecContext& context,
                                                           int64_t pool_bytes);

  KvFormatId id() const override { return KvFormatId::kFp8; }
  uint16_t version() const override { return kernels::DensePageLayout::kVersion; }
  absl::Status Check(const KvResidentPolicy& policy,
                     int64_t prompt_tokens,
                     int64_t max_tokens,
                     int32_t sequences) const override;
  bool PrefersDense(const KvResidentPolicy& /*policy*/, int64_t /*prompt_tokens*/) const override {
    return false;
  }
  int32_t observation_window(const KvResidentPolicy& /*policy*/) const override { return 1; }
  WindowShape window(const KvResidentPolicy& policy, int64_t prompt_tokens) const override;
  std::unique_ptr<EncodedKv> Allocate(const KvResidentPolicy& policy,
                                      int64_t prompt_tokens,
                                      int64_t max_tokens) override;
  bool Extend(EncodedKv& sequence, int64_t prompt_tokens, int64_t max_tokens) override;
  PoolBytes pool() const override;

 private:
  Fp8Format(const CodecContext& context,
            std::unique_ptr<PagePool> pool,
            const kernels::DensePageLayout& layout)
      : pool_(std::move(pool)),
        blocks_(*context.exec.memory),
        codec_(context, *pool_, blocks_, layout) {}
  bool on_host() const { return codec_.context().exec.memory->is_host(); }
  int64_t Pages(int64_t tokens) const;

  const std::unique_ptr<PagePool> pool_;
  BlockCache blocks_;  // of page tables
  Fp8Codec codec_;
};

}  // namespace baton::kv
