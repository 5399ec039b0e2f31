// Prefill and decode of Llama-3.1-8B and of its variant with 50 % SwiftKV, random weights, over
// dense bf16 pages: what a worker's model takes of a step, without engine and sampling.
//
//   gpu_model_bench [--quick] [--only=plain|swiftkv]
//   gpu_model_bench --engine [--quick] [--only=plain|swiftkv] [--chunk=TOKENS] [--tokens=TOKENS]
//   gpu_model_bench --capacity [--quick] [--format=NAME]
//   gpu_model_bench --shares [--quick]
//
// One JSON object a line: how long making the weights and loading them took (`load`), then checks,
// prefill and decode, whose rows model_check.h, model_prefill.h and model_decode.h describe. With
// --engine instead both models' prompts, those of --tokens alone if given, through an engine by KV
// format: model_first_token.h. With --capacity decode of as many sequences of the plain model as
// the device holds, over dense pages and in formats `diffkv` and `shadowkv`, the latter also with
// values in the host's memory (shadowkv_host), or in that of --format alone: model_format_check.h
// and model_capacity.h. With --shares what pages and policy are of its decode steps in format
// `diffkv`: model_shares.h. What fails has a row that says why; the rest goes on, and the status
// is 1.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/random_checkpoint.h"
#include "common/model/model.h"
#include "kernels/backend.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/model_capacity.h"
#include "tests/gpu/bench/model_check.h"
#include "tests/gpu/bench/model_cost.h"
#include "tests/gpu/bench/model_decode.h"
#include "tests/gpu/bench/model_filled_pages.h"
#include "tests/gpu/bench/model_first_token.h"
#include "tests/gpu/bench/model_format_check.h"
#include "tests/gpu/bench/model_llama_config.h"
#include "tests/gpu/bench/model_loaded.h"
#include "tests/gpu/bench/model_pages.h"
#include "tests/gpu/bench/model_prefill.h"
#include "tests/gpu/bench/model_row.h"
#include "tests/gpu/bench/model_shares.h"
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

struct Flags {
  bool quick = false;
  bool engine = false;
  bool capacity = false;
  bool shares = false;
  int32_t chunk_tokens = kPrefillStepRows;
  int32_t tokens = 0;            // of prompts in an engine; 0: all lengths
  std::string_view format = {};  // all, if empty
  std::string_view only = {};    // both models, if empty

  bool includes(const Variant& variant) const {
    return only.empty() || (only == "plain") == (variant.full_layers == kLlamaLayers);
  }
  absl::Status Check() const {
    return only.empty() || only == "plain" || only == "swiftkv"
               ? absl::OkStatus()
               : absl::InvalidArgumentError("--only: give plain or swiftkv");
  }
};

Flags ParseFlags(int argc, char** argv) {
  constexpr std::string_view kFormat = "--format=";
  constexpr std::string_view kChunk = "--chunk=";
  constexpr std::string_view kTokens = "--tokens=";
  constexpr std::string_view kOnly = "--only=";
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(kFormat)) flags.format = argument.substr(kFormat.size());
    if (argument.starts_with(kOnly)) flags.only = argument.substr(kOnly.size());
    if (argument.starts_with(kChunk)) {
      flags.chunk_tokens = std::clamp(std::atoi(argv[i] + kChunk.size()), 1, kPrefillStepRows);
    }
    if (argument.starts_with(kTokens)) flags.tokens = std::atoi(argv[i] + kTokens.size());
    flags.quick = flags.quick || std::strcmp(argv[i], "--quick") == 0;
    flags.engine = flags.engine || std::strcmp(argv[i], "--engine") == 0;
    flags.capacity = flags.capacity || std::strcmp(argv[i], "--capacity") == 0;
    flags.shares = flags.shares || std::strcmp(argv[i], "--shares") == 0;
  }
  return flags;
}

absl::StatusOr<std::unique_ptr<Model>> Load(const kernels::Backend& backend,
                                            const Variant& variant,
                                            int32_t step_rows,
                                            int32_t logit_rows) {
  BATON_ASSIGN_OR_RETURN(checkpoint::ModelConfig config, LlamaConfig(variant.full_layers));
  const std::unique_ptr<checkpoint::Checkpoint> weights =
      checkpoint::MakeRandomCheckpoint("random weights", std::move(config), kSeed);
  return Model::Load(*weights,
                     backend.ops(),
                     backend.exec(),
                     {.max_step_rows = step_rows,
                      .max_logit_rows = logit_rows,
                      .weight_dtype = kernels::DType::kBF16});
}

// Loads and prints how long that took, or why there is no model; null then.
std::unique_ptr<Model> LoadOrPrint(const kernels::Backend& backend,
                                   const Variant& variant,
                                   int32_t step_rows,
                                   int32_t logit_rows) {
  ModelRow row("load", variant.name);
  const Stopwatch watch;
  absl::StatusOr<std::unique_ptr<Model>> model = Load(backend, variant, step_rows, logit_rows);
  if (model.ok()) {
    row.Add("seconds", watch.Seconds(), 1);
    row.Add("weight_bytes", ModelCost((*model)->config()).WeightBytes(), 0);
  }
  return row.Print(model.status()) ? *std::move(model) : nullptr;
}

// True when everything was measured.
bool MeasureVariant(const kernels::Backend& backend,
                    const Variant& variant,
                    bool quick,
                    ModelPages& pages,
                    PrefillSeconds& plain) {
  const std::unique_ptr<Model> model =
      LoadOrPrint(backend, variant, kPrefillStepRows, kMostSequences);
  if (model == nullptr) {
    return false;
  }
  const ModelSubject subject = {
      {.name = variant.name, .model = *model, .ops = backend.ops(), .exec = backend.exec()}, pages};
  const bool checked = CheckModel(subject);
  const bool prefill = MeasurePrefill(subject, quick, plain);
  const bool decode = MeasureDecode(subject, quick);
  return checked && prefill && decode;
}

absl::StatusOr<bool> MeasureModels(const kernels::Backend& backend, const Flags& flags) {
  // Without cuDNN the longest prompts would take minutes.
  BATON_RETURN_IF_ERROR(backend.exec().queue->attention_plans().status());
  BATON_ASSIGN_OR_RETURN(ModelPages pages, MakeFilledPages(backend.exec(), kMostDecodeTokens));
  PrefillSeconds plain;
  bool measured = true;
  for (const Variant& variant : kVariants) {
    if (!flags.includes(variant)) continue;
    measured = MeasureVariant(backend, variant, flags.quick, pages, plain) && measured;
  }
  return measured;
}

absl::StatusOr<bool> MeasureEngines(const kernels::Backend& backend, const Flags& flags) {
  BATON_RETURN_IF_ERROR(backend.exec().queue->attention_plans().status());
  FirstTokenSeconds plain;
  bool measured = true;
  for (const Variant& variant : kVariants) {
    if (!flags.includes(variant)) continue;
    std::unique_ptr<Model> model =
        LoadOrPrint(backend, variant, kPrefillStepRows, kMostFirstTokenPrompts);
    measured =
        model != nullptr &&
        MeasureFirstTokens(
            backend,
            variant.name,
            std::move(model),
            {.chunk_tokens = flags.chunk_tokens, .quick = flags.quick, .tokens = flags.tokens},
            plain) &&
        measured;
  }
  return measured;
}

bool MeasurePlainCapacity(const kernels::Backend& backend, bool quick, std::string_view format) {
  const Variant& variant = kVariants[0];
  const std::unique_ptr<Model> model =
      LoadOrPrint(backend, variant, kMostCapacitySequences, kMostCapacitySequences);
  if (model == nullptr) {
    return false;
  }
  const LoadedModel loaded = {
      .name = variant.name, .model = *model, .ops = backend.ops(), .exec = backend.exec()};
  const bool checked = CheckFormats(loaded);
  const bool measured = MeasureCapacity(loaded, quick, format);
  return checked && measured;
}

bool MeasurePlainShares(const kernels::Backend& backend, bool quick) {
  const Variant& variant = kVariants[0];
  const std::unique_ptr<Model> model =
      LoadOrPrint(backend, variant, kMostShareSequences, kMostShareSequences);
  return model != nullptr &&
         MeasureShares(
             {.name = variant.name, .model = *model, .ops = backend.ops(), .exec = backend.exec()},
             quick);
}

// True when everything was measured.
absl::StatusOr<bool> RunAll(const Flags& flags) {
  BATON_RETURN_IF_ERROR(flags.Check());
  const auto threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Backend> backend,
                         kernels::Backend::Open("cuda", threads));
  if (flags.engine) {
    return MeasureEngines(*backend, flags);
  }
  if (flags.shares) {
    return MeasurePlainShares(*backend, flags.quick);
  }
  return flags.capacity ? MeasurePlainCapacity(*backend, flags.quick, flags.format)
                        : MeasureModels(*backend, flags);
}

}  // namespace
}  // namespace baton::model

int main(int argc, char** argv) {
  const absl::StatusOr<bool> measured = baton::model::RunAll(baton::model::ParseFlags(argc, argv));
  if (!measured.ok()) {
    std::fprintf(stderr, "%s\n", measured.status().ToString().c_str());
    return 1;
  }
  return *measured ? 0 : 1;
}
