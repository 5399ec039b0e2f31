#include "tests/gpu/bench/model_filled_pages.h"

#include <cstdint>

#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/checkpoint/model_config.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/fill.h"
#include "tests/gpu/bench/model_llama_config.h"
#include "tests/gpu/bench/model_pages.h"

namespace baton::model {
namespace {

constexpr uint32_t kSeed = 20240528;

}  // namespace

absl::StatusOr<ModelPages> MakeFilledPages(const kernels::ExecContext& exec, int64_t tokens) {
  BATON_ASSIGN_OR_RETURN(const checkpoint::ModelConfig config, LlamaConfig(kLlamaLayers));
  BATON_ASSIGN_OR_RETURN(ModelPages pages,
                         ModelPages::Create({.page_tokens = 32,
                                             .kv_heads = config.num_kv_heads,
                                             .head_dim = config.head_dim,
                                             .dtype = kernels::DType::kBF16},
                                            config.num_kv_cache_layers(),
                                            tokens,
                                            *exec.memory));
  const auto elements = static_cast<int64_t>(pages.memory().size() / sizeof(uint16_t));
  BATON_RETURN_IF_ERROR(
      kernels::cuda::FillBf16(*exec.queue, pages.memory().data(), elements, 2.0f, kSeed));
  BATON_RETURN_IF_ERROR(exec.queue->Wait());
  return pages;
}

}  // namespace baton::model
