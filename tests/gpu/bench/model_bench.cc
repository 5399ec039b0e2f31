// Prefill and decode of Llama-3.1-8B and of its variant with 50 % SwiftKV, random weights, over
// dense bf16 pages: what a worker's model takes of a step, without engine and sampling.
//
//   gpu_model_bench [--quick]
//
// One JSON object a line: how long making the weights and loading them took (`load`), then checks,
// prefill and decode, whose rows model_check.h, model_prefill.h and model_decode.h describe. What
// fails has a row that says why; the rest goes on, and the status is 1.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/checkpoint/model_config.h"
#include "common/model/model.h"
#include "kernels/backend.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/fill.h"
#include "tests/gpu/bench/model_check.h"
#include "tests/gpu/bench/model_cost.h"
#include "tests/gpu/bench/model_decode.h"
#include "tests/gpu/bench/model_llama_config.h"
#include "tests/gpu/bench/model_pages.h"
#include "tests/gpu/bench/model_prefill.h"
#include "tests/gpu/bench/model_random_checkpoint.h"
#include "tests/gpu/bench/model_row.h"
#include "tests/gpu/bench/model_subject.h"
#include "tests/gpu/bench/model_time.h"

namespace baton::model {
namespace {

constexpr uint32_t kSeed = 20240528;
constexpr int32_t kMostSequences = 64;

struct Variant {
  const char* name;
  int32_t full_layers;
};

// The plain model first: the other's speedup is over its times.
constexpr Variant kVariants[] = {{"Llama-3.1-8B", kLlamaLayers},
                                 {"Llama-3.1-8B SwiftKV 50 %", kLlamaLayers / 2}};

// Pages of the size that workers have (--page_tokens), with values as large as keys and values are.
absl::StatusOr<ModelPages> MakePages(const kernels::ExecContext& exec) {
  BATON_ASSIGN_OR_RETURN(const checkpoint::ModelConfig config, LlamaConfig(kLlamaLayers));
  BATON_ASSIGN_OR_RETURN(ModelPages pages,
                         ModelPages::Create({.page_tokens = 32,
                                             .kv_heads = config.num_kv_heads,
                                             .head_dim = config.head_dim,
                                             .dtype = kernels::DType::kBF16},
                                            config.num_kv_cache_layers(),
                                            kMostDecodeTokens,
                                            *exec.memory));
  const auto elements = static_cast<int64_t>(pages.memory().size() / sizeof(uint16_t));
  BATON_RETURN_IF_ERROR(
      kernels::cuda::FillBf16(*exec.queue, pages.memory().data(), elements, 2.0f, kSeed));
  BATON_RETURN_IF_ERROR(exec.queue->Wait());
  return pages;
}

absl::StatusOr<std::unique_ptr<Model>> Load(const kernels::Backend& backend,
                                            const Variant& variant) {
  BATON_ASSIGN_OR_RETURN(checkpoint::ModelConfig config, LlamaConfig(variant.full_layers));
  const ThreadedRandomCheckpoint weights(std::move(config), kSeed, *backend.exec().pool);
  return Model::Load(weights,
                     backend.ops(),
                     backend.exec(),
                     {.max_step_rows = kPrefillStepRows,
                      .max_logit_rows = kMostSequences,
                      .weight_dtype = kernels::DType::kBF16});
}

// True when everything was measured.
bool MeasureVariant(const kernels::Backend& backend,
                    const Variant& variant,
                    bool quick,
                    ModelPages& pages,
                    PrefillSeconds& plain) {
  ModelRow row("load", variant.name);
  const Stopwatch watch;
  const absl::StatusOr<std::unique_ptr<Model>> model = Load(backend, variant);
  if (!model.ok()) {
    return row.Print(model.status());
  }
  row.Add("seconds", watch.Seconds(), 1);
  row.Add("weight_bytes", ModelCost((*model)->config()).WeightBytes(), 0).Print();
  const ModelSubject subject = {.name = variant.name,
                                .model = **model,
                                .ops = backend.ops(),
                                .exec = backend.exec(),
                                .pages = pages};
  const bool checked = CheckModel(subject);
  const bool prefill = MeasurePrefill(subject, quick, plain);
  const bool decode = MeasureDecode(subject, quick);
  return checked && prefill && decode;
}

// True when everything was measured.
absl::StatusOr<bool> RunAll(bool quick) {
  const auto threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Backend> backend,
                         kernels::Backend::Open("cuda", threads));
  // Without cuDNN the longest prompts would take minutes.
  BATON_RETURN_IF_ERROR(backend->exec().queue->attention_plans().status());
  BATON_ASSIGN_OR_RETURN(ModelPages pages, MakePages(backend->exec()));
  PrefillSeconds plain;
  bool measured = true;
  for (const Variant& variant : kVariants) {
    measured = MeasureVariant(*backend, variant, quick, pages, plain) && measured;
  }
  return measured;
}

}  // namespace
}  // namespace baton::model

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  const absl::StatusOr<bool> measured = baton::model::RunAll(quick);
  if (!measured.ok()) {
    std::fprintf(stderr, "%s\n", measured.status().ToString().c_str());
    return 1;
  }
  return *measured ? 0 : 1;
}
