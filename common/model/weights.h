// The weights of a model in memory of the back end, packed for its ops.
#pragma once

#include <vector>

#include "kernels/core/memory.h"
#include "kernels/ops/params.h"

namespace baton::model {

// One matmul: perhaps several published linears whose rows stand one after another.
struct Linear {
  kernels::Memory packed;
  kernels::PackedMatrix matrix;  // borrows `packed`
  kernels::Memory bias;          // f32 [out_features], or empty

  const float* bias_data() const { return bias.size() == 0 ? nullptr : bias.as<float>(); }
};

struct LayerWeights {
  kernels::Memory input_norm;           // f32 [hidden]
  kernels::Memory post_attention_norm;  // f32 [hidden]
  kernels::Memory q_norm;               // f32 [head_dim] with qk_norm, else empty
  kernels::Memory k_norm;               // f32 [head_dim]; empty above the full layers
  // Rows Q, K, V in a full layer; above them only Q (q_proj_swiftkv).
  Linear projection;
  Linear output;
  Linear gate_up;  // rows gate, up
  Linear down;
};

// What fans the residual stream out to the keys and values of all upper layers (SwiftKV).
struct FanOutWeights {
  kernels::Memory norm;                  // f32 [hidden], norm_swiftkv
  Linear kv;                             // rows K_0 .. K_{G-1}, V_0 .. V_{G-1}
  std::vector<kernels::Memory> k_norms;  // f32 [head_dim] per group with qk_norm, else empty
};

struct ModelWeights {
  kernels::Memory inverse_frequencies;  // f32 [head_dim / 2] of RoPE
  kernels::Memory embedding;            // [vocab, hidden] of embedding_dtype
  kernels::DType embedding_dtype = kernels::DType::kBF16;
  std::vector<LayerWeights> layers;
  FanOutWeights fan_out;  // empty for a plain model
  kernels::Memory final_norm;
  Linear lm_head;
};

}  // namespace baton::model
