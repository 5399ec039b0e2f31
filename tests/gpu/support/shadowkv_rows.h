// Sequences in format `shadowkv` that take a decode step in one call, on the host by the reference
// and on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/support/device_shadowkv.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels::cuda {

// What selection and attention gave, by sequence, or by the row that ops were told of it.
struct ShadowKvResults {
  std::vector<int32_t> ids;                // [sequences, kv_heads, stride]
  std::vector<float> cluster_logits;       // [sequences, heads, cluster_stride]
  std::vector<float> out;                  // [rows, heads, head_dim]
  std::vector<float> lse;                  // [rows, heads] or empty
  std::vector<ShadowKvCounters> counters;  // [sequences]
};

// Everything but the ids within the rounding of bf16.
void ExpectSameResults(const ShadowKvResults& got, const ShadowKvResults& want);

// Attention over other keys, which that of the call is merged with, by row; none if empty.
struct ShadowKvOthers {
  std::vector<float> out;
  std::vector<float> lse;
};

// Sequence s has row sequences - 1 - s: ops must go by what they are told.
class ShadowKvRows {
 public:
  // Borrows what the sequences name; `bias` is of all of them, or null.
  ShadowKvRows(std::vector<ShadowKvSequence> host,
               int64_t heads,
               const ShadowKvRope& rope,
               const float* bias);

  // Takes what has been appended to the sequences, and their positions; caches stay.
  void Update(std::vector<ShadowKvSequence> host);
  // Queries of all rows, rounded to bf16.
  void SetQueries(std::span<const float> q);

  // Both ops, by the reference.
  ShadowKvResults OnHost(const ShadowKvOthers& others = {}) const;
  // Both ops for the first `used` sequences (0: all), with or without their caches.
  ShadowKvResults OnDevice(const OpTable& ops,
                           const ExecContext& context,
                           const ShadowKvOthers& others = {},
                           size_t used = 0,
                           bool cached = true) const;

  // Tables of the caches are the same; keys may round the other way.
  void CheckCaches() const;

  int64_t heads() const { return heads_; }
  int32_t row(size_t sequence) const { return static_cast<int32_t>(host_.size() - 1 - sequence); }
  size_t row_elements() const { return static_cast<size_t>(heads_ * config().head_dim); }

 private:
  const ShadowKvConfig& config() const { return host_.front().layout->config; }
  ShadowKvResults Begin(const ShadowKvOthers& others) const;
  ShadowKvSelectParams Select(std::span<const ShadowKvSequence> sequences) const;
  ShadowKvAttentionParams Attend(std::span<const ShadowKvSequence> sequences) const;
  float scale() const;

  std::vector<ShadowKvSequence> host_;
  std::vector<std::unique_ptr<DeviceShadowKv>> device_;
  int64_t heads_;
  int64_t id_stride_ = 0;
  int64_t cluster_stride_ = 0;
  ShadowKvRope rope_;
  DeviceShadowKvRope device_rope_;
  const float* bias_;
  DeviceArray<float> device_bias_;
  TestContext reference_;
  std::vector<float> q_;
};

// Problems whose sequences are rows of one call; coded and appended to by the reference. Their
// shapes agree in heads, KV heads and head_dim.
class ShadowKvProblems {
 public:
  explicit ShadowKvProblems(const std::vector<ShadowKvShape>& shapes);

  // The next generated token of each.
  void Append();
  std::vector<ShadowKvSequence> Sequences() const;
  // Of the newest tokens.
  std::vector<float> Queries() const;
  // Rows of the sequences as they are.
  ShadowKvRows MakeRows() const;

 private:
  std::vector<std::unique_ptr<ShadowKvContext>> contexts_;
  std::vector<std::unique_ptr<ShadowKvProblem>> problems_;
};

}  // namespace baton::kernels::cuda
