// Keys and values of one stored layer in slots of one token each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"

namespace baton::lab {

// fp32, [kv_heads][capacity] slots. A slot is a dense page of one token and one head, so that the
// dense attention op reads any list of slots, in its order, as if these were the whole sequence.
// Different heads may be used by different threads.
class TokenStore {
 public:
  TokenStore(const kv::KvDimensions& dimensions, int64_t capacity);

  void Put(int32_t kv_head, int32_t slot, const float* key, const float* value);
  float* key(int32_t kv_head, int32_t slot);  // [head_dim]
  float* value(int32_t kv_head, int32_t slot) { return key(kv_head, slot) + layout_.head_dim; }

  // Floats from a slot to the next.
  int64_t slot_floats() const {
    return static_cast<int64_t>(layout_.stride_bytes() / sizeof(float));
  }

  // Attention of one query row over `slots` of each KV head, which become page ids. `out` and `q`
  // of `queries` are those of the row.
  absl::Status Attend(const kernels::OpTable& ops,
                      const kernels::ExecContext& exec,
                      std::span<std::vector<int32_t>> slots,
                      const kv::KvQueries& queries);

 private:
  kernels::DensePageLayout layout_;
  int32_t kv_heads_;
  int32_t capacity_;
  kernels::Buffer memory_;
};

// Reads tokens [0, tokens) of one KV head from working pages: keys, and values unless empty,
// [tokens][head_dim].
void ReadTokens(const kv::WorkingKv& working,
                int32_t kv_layer,
                int32_t kv_head,
                int64_t tokens,
                std::span<float> keys,
                std::span<float> values);

}  // namespace baton::lab
