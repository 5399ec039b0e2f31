// One sequence whose layers share coefficients, made of a wider layer's heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels {

// Layer i holds kv_heads / layers neighbouring heads of `wide`, whose keys are factored over all
// its heads: what the joint code has to find too. The prompt is encoded on construction. `wide` is
// borrowed.
class ShadowKvJointProblem {
 public:
  ShadowKvJointProblem(const OpTable& ops, const ShadowKvProblem& wide, int64_t layers);

  // Appends the newest token of `wide` to every layer.
  void Append();
  // The step of one layer for the newest token of `wide`.
  ShadowKvStep Step(int64_t layer);

  int64_t layers() const { return layers_; }
  const ShadowKvPromptLayout& layout() const { return layout_; }
  const std::byte* prompt(int64_t layer) const { return At(prompts_, layer); }
  const Buffer& coefficients() const { return coefficients_; }
  // The joint coefficients of the tail's blocks.
  const Buffer& tail_coefficients() const { return tail_coefficients_; }
  ShadowKvSequence Sequence(int64_t layer) const;
  // What was encoded, once more into other memory.
  ShadowKvEncodeJointParams EncodeParams(std::span<const ShadowKvJointLayer> layers,
                                         std::byte* coefficients) const;
  std::vector<ShadowKvJointLayer> Layers() const;
  ShadowKvAppendJointParams AppendParams(std::span<const ShadowKvSequence> layers) const;
  const ExecContext& context() const { return *context_; }

 private:
  static std::byte* At(const std::vector<Buffer>& buffers, int64_t layer) {
    return const_cast<std::byte*>(buffers[static_cast<size_t>(layer)].data());
  }
  int64_t width() const { return layout_.config.width(); }
  const float* bias(int64_t layer) const;
  void WriteDense(int64_t layer);
  void Encode();

  const OpTable& ops_;
  const ShadowKvProblem& wide_;
  const int64_t layers_;
  const ShadowKvPromptLayout layout_;
  const TestContext context_;
  DensePageLayout pages_layout_;
  std::vector<std::vector<int32_t>> page_tables_;  // of one pool
  Buffer pages_;
  std::vector<const float*> biases_;
  std::vector<Buffer> prompts_;
  std::vector<Buffer> tails_;
  std::vector<Buffer> caches_;
  Buffer coefficients_;
  Buffer tail_coefficients_;
};

}  // namespace baton::kernels
