// A decoder-only transformer of the Llama family (Llama 3.x, Qwen2.5, Qwen3, Mistral) with or
// without SwiftKV.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/checkpoint/checkpoint.h"
#include "common/model/forward.h"
#include "common/model/simulation.h"
#include "kernels/ops/op_table.h"

namespace baton::model {

struct ModelOptions {
  // Rows of the largest step; fixes the activation memory.
  int32_t max_step_rows = 4096;
  // Logit rows of the largest step. Survivors may be all rows.
  int32_t max_logit_rows = 256;
  // dtype of the weights in memory: bf16, or f32 for --compute fp32 (weights as published,
  // widened).
  kernels::DType weight_dtype = kernels::DType::kBF16;
  // Set: no weight is read, and steps take this time in place of computing (SimulatedModel).
  std::optional<Simulation> simulation = {};
};

// Weights and activation memory of one worker. Owned by the executor thread: Forward is not
// thread-safe; the accessors are const and safe from any thread.
class Model {
 public:
  virtual ~Model() = default;

  // Loads, checks and packs every weight the architecture needs. Errors name the tensor or field:
  // kNotFound for a missing tensor, kInvalidArgument for a wrong shape, kUnimplemented for an
  // unknown architecture, kResourceExhausted when the back end lacks the memory. `ops` and what
  // `exec` points to must outlive the model; the workspace of `exec` on the host is grown here to
  // what the model's ops need.
  static absl::StatusOr<std::unique_ptr<Model>> Load(const checkpoint::Checkpoint& checkpoint,
                                                     const kernels::OpTable& ops,
                                                     const kernels::ExecContext& exec,
                                                     const ModelOptions& options);

  virtual const checkpoint::ModelConfig& config() const = 0;
  virtual KvShape kv_shape() const = 0;
  // FNV-style identity of configuration and weights; both sides of a hand-off must agree on it.
  virtual uint64_t fingerprint() const = 0;
  // False: Forward leaves its logits alone, and any token is as likely as another.
  virtual bool has_logits() const { return true; }

  // The rotation of keys: [head_dim / 2], on the host; empty for a model without one.
  virtual std::span<const float> rope_inverse_frequencies() const { return {}; }
  // What the projection adds to the keys of a stored layer before they are rotated: [kv_heads x
  // head_dim] in memory of the back end, or null.
  virtual const float* key_bias(int32_t /*kv_layer*/) const { return nullptr; }

  // Has normalised hidden states of rows (what StepKv::WriteHidden was given) written to `rows`,
  // [rows][hidden size] of the back end's activations, in its memory.
  using ReadHidden = absl::FunctionRef<absl::Status(void* rows)>;
  // SwiftKV: makes the keys and values of all upper layers for the rows that `read` gives and
  // writes them to batch.kv. Of the batch only positions, sequences and kv are looked at.
  // kUnimplemented for a model without upper layers, kInvalidArgument for more rows than a step
  // has.
  virtual absl::Status ExpandHidden(const ForwardBatch& /*batch*/, ReadHidden /*read*/) {
    return absl::UnimplementedError("only a SwiftKV model has upper layers");
  }

  // Runs one step. `logits`, on the host, receives [batch.logit_rows.size(), vocab] fp32; on a
  // device it may be empty, and they stay at device_logits(). On return the KV of every row is in
  // its pages, or will be there for the ops that are called next. Results of a row do not depend on
  // the other rows of the step.
  virtual absl::Status Forward(const ForwardBatch& batch, std::span<float> logits) = 0;
  // The logits of the last Forward in memory of the device, until the next one. Null on the host.
  virtual const float* device_logits() const { return nullptr; }
};

}  // namespace baton::model
