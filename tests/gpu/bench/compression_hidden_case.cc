#include "tests/gpu/bench/compression_hidden_case.h"

#include <algorithm>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/compression_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/fill.h"
#include "tests/gpu/bench/host_context.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kSeed = 20240531;

}  // namespace

CompressionHiddenCase::CompressionHiddenCase(int32_t tokens)
    : CompressionCase("hidden_encode", tokens) {}

absl::Status CompressionHiddenCase::Prepare(const ExecContext& context) {
  states_ = arena_.Allocate<uint16_t>(kLayers * elements());
  coded_ = arena_.Allocate<std::byte>(kLayers * coded_bytes());
  BATON_RETURN_IF_ERROR(arena_.status());
  BATON_RETURN_IF_ERROR(FillBf16(*context.queue, states_, kLayers * elements(), 2.0f, kSeed));
  return context.queue->Wait();
}

absl::Status CompressionHiddenCase::Run(const ExecContext& context, int32_t layer) {
  return CudaOps()->hidden_encode(context,
                                  {.x = states_ + layer * elements(),
                                   .x_stride = kLayout.width,
                                   .rows = tokens(),
                                   .layout = kLayout,
                                   .coded = coded_ + layer * coded_bytes()});
}

absl::StatusOr<double> CompressionHiddenCase::Error(const ExecContext& context) {
  BATON_RETURN_IF_ERROR(Run(context, 0));
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  BATON_ASSIGN_OR_RETURN(const std::vector<std::byte> got, Downloaded(coded_, coded_bytes()));
  BATON_ASSIGN_OR_RETURN(const std::vector<uint16_t> bits, Downloaded(states_, elements()));
  std::vector<float> states(bits.size());
  std::transform(bits.begin(), bits.end(), states.begin(), BF16ToF32);
  std::vector<std::byte> want(got.size());
  HostContext host;
  BATON_RETURN_IF_ERROR(CpuOps().hidden_encode(host.get(),
                                               {.x = states.data(),
                                                .x_stride = kLayout.width,
                                                .rows = tokens(),
                                                .layout = kLayout,
                                                .coded = want.data()}));
  int64_t different = 0;
  for (size_t i = 0; i < want.size(); ++i) different += got[i] == want[i] ? 0 : 1;
  return static_cast<double>(different) / static_cast<double>(want.size());
}

double CompressionHiddenCase::bytes() const {
  return sizeof(uint16_t) * static_cast<double>(elements()) + static_cast<double>(coded_bytes());
}

}  // namespace baton::kernels::cuda
