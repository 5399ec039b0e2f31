// A model whose sequence is in an encoded KV format, on the host and on the device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/model/model.h"
#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/thread_pool.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"

namespace baton::model {

// One sequence: a prompt in chunks, then tokens that do not depend on the logits.
class EncodedModelRun {
 public:
  static constexpr int32_t kPrompt = 601;
  static constexpr int32_t kSteps = 70;

  // `exec` says what a device has: its queue, memory and scratch memory, all borrowed; nothing on
  // the host. Threads and the host's scratch memory are the run's own.
  EncodedModelRun(const checkpoint::Checkpoint& checkpoint,
                  const kernels::OpTable& ops,
                  const kernels::ExecContext& exec,
                  const std::string& policy);

  // Logits of the prompt's last token, in an element of their own for each chunk (empty but for the
  // last), then of every step.
  std::vector<std::vector<float>> Run(int32_t chunk);

  const kv::EncodedKv& sequence() const { return *sequence_; }

 private:
  // The tokens from position `begin` on; logits of the last one if it ends the prompt or is
  // generated.
  std::vector<float> Step(std::span<const int32_t> tokens, int32_t begin, bool prefill);
  void MakePages(kernels::MemorySpace& memory);

  const kernels::OpTable& ops_;
  kernels::ThreadPool threads_{2};
  kernels::Buffer workspace_;
  kernels::ExecContext exec_;
  std::unique_ptr<Model> model_;
  kernels::DensePages pages_;
  int32_t stride_ = 0;
  std::vector<int32_t> table_;
  kernels::Memory page_memory_;
  std::unique_ptr<kv::CodecSet> codecs_;
  std::unique_ptr<kv::EncodedKv> sequence_;
};

// How far logits may differ, as shares of the largest: in the mean over steps, and in a step.
struct LogitTolerances {
  double mean = 0.0;
  double step = 0.0;
};

// Runs a model of the tree on both and compares all logits; then what both sequences take and
// attend to. Skips the test where there is no device.
void ExpectLogitsOfTheHost(const std::string& model,
                           const std::string& policy,
                           const LogitTolerances& tolerances);

}  // namespace baton::model
