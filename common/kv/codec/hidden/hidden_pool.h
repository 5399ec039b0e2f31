// Memory for hidden states on their way from prefill to decode.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"

#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/pool/run_pool.h"

namespace baton::kv {

// Engine thread, except the const members, which any thread may call.
class HiddenPool {
 public:
  // `context` is of a SwiftKV model. kInvalidArgument for a pool without memory.
  static absl::StatusOr<std::unique_ptr<HiddenPool>> Create(const CodecContext& context,
                                                            int64_t pool_bytes);

  // What a prompt takes under a policy with a hidden wire form.
  HiddenShape Shape(const KvFormatPolicy& policy, int64_t prompt_tokens) const;
  // Null when too little is free now.
  std::unique_ptr<HiddenState> Allocate(const HiddenShape& shape);
  // Whether it can ever fit.
  bool Fits(const HiddenShape& shape) const;
  PoolBytes pool() const;
  // Stored layers whose KV is shipped as it is: the full ones.
  int32_t full_layers() const { return context_.full_layers; }

 private:
  HiddenPool(const CodecContext& context, std::unique_ptr<RunPool> pool)
      : context_(context), pool_(std::move(pool)) {}

  const CodecContext& context_;
  const std::unique_ptr<RunPool> pool_;
};

}  // namespace baton::kv
