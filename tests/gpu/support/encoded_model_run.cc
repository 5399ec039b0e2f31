#include "tests/gpu/support/encoded_model_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "common/checkpoint/checkpoint.h"
#include "common/engine/model_codecs.h"
#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/packed_step_kv.h"
#include "common/model/forward.h"
#include "common/model/model.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/side_queues.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_session.h"
#include "kernels/ops/op_table.h"
#include "tests/unit/model/model_harness.h"

namespace baton::model {
namespace {

constexpr size_t kDeviceWorkspaceBytes = size_t{256} << 20;

// The largest difference as a share of the largest of `want`; 0 of nothing.
double ShareOf(std::span<const float> got, std::span<const float> want) {
  float largest = 0;
  float difference = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    difference = std::max(difference, std::abs(want[i] - got[i]));
  }
  return largest > 0 ? double{difference} / double{largest} : 0.0;
}

// Tokens that a head attends to, in the mean.
double AttendedOf(const kv::EncodedKv& sequence) {
  const kv::AttentionCounters counters = sequence.counters();
  return static_cast<double>(counters.attended_tokens) / static_cast<double>(counters.heads);
}

}  // namespace

EncodedModelRun::EncodedModelRun(const checkpoint::Checkpoint& checkpoint,
                                 const kernels::OpTable& ops,
                                 const kernels::ExecContext& exec,
                                 const std::string& policy)
    : ops_(ops), exec_(exec) {
  exec_.pool = &threads_;
  exec_.workspace = &workspace_;
  model_ = Model::Load(checkpoint,
                       ops,
                       exec_,
                       {.max_step_rows = kPrompt,
                        .max_logit_rows = kPrompt,
                        .weight_dtype = kernels::DType::kBF16})
               .value();
  MakePages(*exec_.memory);
  codecs_ =
      kv::CodecSet::Create(engine::MakeCodecContext(*model_, exec_, ops, pages_.layout.dtype, 4096),
                           {.fp8_bytes = 16 << 20,
                            .diffkv_bytes = 16 << 20,
                            .shadowkv_bytes = 32 << 20,
                            .shadowkv_host_bytes = 16 << 20})
          .value();
  const kv::KvFormatPolicy format = *(*kv::ParseKvPolicy(policy)).format();
  sequence_ = codecs_->Find(format.id())->Allocate(format.resident, kPrompt, kSteps);
}

void EncodedModelRun::MakePages(kernels::MemorySpace& memory) {
  const KvShape shape = model_->kv_shape();
  pages_.layout = {.page_tokens = 16,
                   .kv_heads = shape.kv_heads,
                   .head_dim = shape.head_dim,
                   .dtype = kernels::DType::kBF16};
  stride_ = pages_.layout.pages_for(kPrompt);
  table_.resize(static_cast<size_t>(shape.layers) * static_cast<size_t>(stride_));
  std::iota(table_.rbegin(), table_.rend(), 0);
  page_memory_ = memory.Allocate(table_.size() * pages_.layout.stride_bytes()).value();
  pages_.base = page_memory_.data();
}

std::vector<float> EncodedModelRun::Step(std::span<const int32_t> tokens,
                                         int32_t begin,
                                         bool prefill) {
  if (exec_.side != nullptr) {
    EXPECT_TRUE(exec_.side->Join().ok());
  }
  const auto count = static_cast<int32_t>(tokens.size());
  const bool completes = prefill && begin + count == kPrompt;
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), begin);
  // An observed row has to get to the last layer, and so has the row whose logits are wanted.
  std::vector<int32_t> survivors;
  for (int32_t row = 0; row < count; ++row) {
    const bool last = completes && row + 1 == count;
    if (!prefill || last || begin + row >= sequence_->first_observed()) survivors.push_back(row);
  }
  std::vector<int32_t> logit_rows;
  if (completes || !prefill) logit_rows.push_back(count - 1);
  const SequenceSlice slice = {0, count};
  kv::StepSequenceKv step;
  step.encoded = sequence_.get();
  step.prefill = prefill;
  step.completes_prompt = completes;
  if (prefill) {
    step.dense = {.data = table_.data(), .stride = stride_, .layers = model_->kv_shape().layers};
  }
  kv::PackedStepKv kv(ops_, exec_, pages_, {step});
  ForwardBatch batch;
  batch.token_ids = tokens;
  batch.positions = positions;
  batch.sequences = {&slice, 1};
  batch.survivors = survivors;
  batch.logit_rows = logit_rows;
  batch.kv = &kv;
  std::vector<float> logits(logit_rows.size() * static_cast<size_t>(model_->config().vocab_size));
  const absl::Status status = model_->Forward(batch, logits);
  EXPECT_TRUE(status.ok()) << status;
  if (completes) {
    EXPECT_TRUE(sequence_->Settle().ok());
  }
  return logits;
}

std::vector<std::vector<float>> EncodedModelRun::Run(int32_t chunk) {
  const std::vector<int32_t> tokens =
      RandomTokens(5, kPrompt + kSteps, model_->config().vocab_size);
  const std::span<const int32_t> all(tokens);
  std::vector<std::vector<float>> logits;
  for (int32_t begin = 0; begin < kPrompt; begin += chunk) {
    const auto count = static_cast<size_t>(std::min(chunk, kPrompt - begin));
    logits.push_back(Step(all.subspan(static_cast<size_t>(begin), count), begin, true));
  }
  sequence_->Trim();
  for (int32_t position = kPrompt; position < kPrompt + kSteps; ++position) {
    logits.push_back(Step(all.subspan(static_cast<size_t>(position), 1), position, false));
  }
  return logits;
}

void ExpectLogitsOfTheHost(const std::string& model,
                           const std::string& policy,
                           const LogitTolerances& tolerances) {
  if (kernels::CudaOps() == nullptr) {
    GTEST_SKIP() << "no CUDA device";
  }
  auto session = kernels::cuda::OpenSession({.workspace_bytes = kDeviceWorkspaceBytes,
                                             .side = {4, kDeviceWorkspaceBytes},
                                             .last_side = {2, kDeviceWorkspaceBytes}});
  ASSERT_TRUE(session.ok()) << session.status();
  const auto checkpoint =
      checkpoint::Checkpoint::Open(BATON_SOURCE_DIR "/tests/data/models/" + model, {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EncodedModelRun host(**checkpoint, kernels::CpuOps(), {}, policy);
  EncodedModelRun device(**checkpoint,
                         *kernels::CudaOps(),
                         {.device_workspace_bytes = kDeviceWorkspaceBytes,
                          .queue = &(*session)->queue(),
                          .memory = &(*session)->memory(),
                          .side = (*session)->side()},
                         policy);
  const auto want = host.Run(/*chunk=*/256);
  const auto got = device.Run(/*chunk=*/256);
  double sum = 0.0;
  for (size_t step = 0; step < want.size(); ++step) {
    const double share = ShareOf(got[step], want[step]);
    EXPECT_LE(share, tolerances.step) << "step " << step;
    sum += share;
  }
  const double mean = sum / EncodedModelRun::kSteps;
  testing::Test::RecordProperty("mean_difference", std::to_string(mean));
  EXPECT_LE(mean, tolerances.mean);
  const auto resident = static_cast<double>(host.sequence().ResidentBytes());
  EXPECT_NEAR(static_cast<double>(device.sequence().ResidentBytes()), resident, 0.1 * resident);
  const double attended = AttendedOf(host.sequence());
  EXPECT_NEAR(AttendedOf(device.sequence()), attended, 0.1 * attended);
}

}  // namespace baton::model
