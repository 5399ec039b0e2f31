#include "tests/gpu/bench/model_format_check.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/step_kv.h"
#include "common/model/forward.h"
#include "tests/gpu/bench/model_decode_steps.h"
#include "tests/gpu/bench/model_diffkv_kv.h"
#include "tests/gpu/bench/model_filled_pages.h"
#include "tests/gpu/bench/model_loaded.h"
#include "tests/gpu/bench/model_pages.h"
#include "tests/gpu/bench/model_row.h"
#include "tests/gpu/bench/model_sequences.h"
#include "tests/gpu/bench/model_shadowkv_kv.h"
#include "tests/gpu/bench/model_subject.h"
#include "tests/gpu/bench/relative_difference.h"
#include "tests/gpu/bench/shadowkv_load.h"

namespace baton::model {
namespace {

constexpr int32_t kSequences = 3;
constexpr int32_t kTokens = 65;

// As between other runs of a model (model_check.cc), of which one other key among 300 moves logits
// by 0.07. Codes of 8 bits are coarser than bf16: the CPU's ops with 32 layers, 512 wide, differ by
// 0.025.
constexpr double kExactTolerance = 0.05;
constexpr double kCodedTolerance = 0.1;

struct Reference {
  std::vector<int32_t> token_ids;  // [sequences][tokens]
  std::vector<float> logits;       // [sequences][vocab]
};

absl::StatusOr<Reference> OverDensePages(const LoadedModel& loaded) {
  BATON_ASSIGN_OR_RETURN(ModelPages pages,
                         MakeFilledPages(loaded.exec, int64_t{kSequences} * 2 * kTokens));
  const ModelSubject subject = {loaded, pages};
  BATON_ASSIGN_OR_RETURN(ModelSequences sequences,
                         ModelSequences::Create(subject, kSequences, kTokens));
  BATON_ASSIGN_OR_RETURN(const std::span<const float> logits,
                         sequences.Prefill(kSequences * kTokens));
  const std::span<const int32_t> ids = sequences.token_ids();
  return Reference{.token_ids = {ids.begin(), ids.end()}, .logits = {logits.begin(), logits.end()}};
}

// The difference that the same tokens make one by one.
absl::StatusOr<double> Error(const LoadedModel& loaded, const Reference& want, kv::StepKv& kv) {
  BATON_ASSIGN_OR_RETURN(
      ModelDecodeSteps steps,
      ModelDecodeSteps::Create(loaded, std::vector<int32_t>(size_t{kSequences})));
  std::vector<float> logits(want.logits.size());
  std::vector<int32_t> ids(size_t{kSequences});
  for (size_t token = 0; token < size_t{kTokens}; ++token) {
    for (size_t sequence = 0; sequence < ids.size(); ++sequence) {
      ids[sequence] = want.token_ids[sequence * size_t{kTokens} + token];
    }
    const bool last = token + 1 == size_t{kTokens};
    BATON_RETURN_IF_ERROR(steps.Run(ids, kv, last ? std::span<float>(logits) : std::span<float>()));
  }
  return kernels::cuda::RelativeDifference(logits, want.logits);
}

absl::StatusOr<double> DiffKvError(const LoadedModel& loaded, const Reference& want) {
  const KvShape shape = loaded.model.kv_shape();
  BATON_ASSIGN_OR_RETURN(
      const std::unique_ptr<ModelDiffKvKv> kv,
      ModelDiffKvKv::Create(loaded,
                            {.geometry = {.kv_heads = shape.kv_heads,
                                          .head_dim = shape.head_dim,
                                          .tiers = {{.key_bits = 8, .value_bits = 8},
                                                    {.key_bits = 4, .value_bits = 2}}},
                             .layers = shape.layers,
                             .rows = kSequences,
                             .growth = kTokens}));
  BATON_ASSIGN_OR_RETURN(const double error, Error(loaded, want, *kv));
  BATON_RETURN_IF_ERROR(kv->CheckAppended());
  return error;
}

absl::StatusOr<double> ShadowKvError(const LoadedModel& loaded, const Reference& want) {
  const KvShape shape = loaded.model.kv_shape();
  BATON_ASSIGN_OR_RETURN(
      const std::unique_ptr<ModelShadowKvKv> kv,
      ModelShadowKvKv::Create(
          loaded,
          {.layout = {kernels::cuda::ShadowKvConfigOf(shape.kv_heads, shape.head_dim), 0},
           .layers = shape.layers,
           .rows = kSequences,
           .max_generated = kTokens}));
  return Error(loaded, want, *kv);
}

bool Print(const LoadedModel& loaded,
           const std::string& format,
           double tolerance,
           const absl::StatusOr<double>& error) {
  ModelRow row("check", loaded.name);
  row.Add("format", format).Add("sequences", int64_t{kSequences}).Add("tokens", int64_t{kTokens});
  if (!error.ok()) {
    return row.Print(error.status());
  }
  row.Add("error", *error, 5);
  return row.Print(*error <= tolerance  // not NaN
                       ? absl::OkStatus()
                       : absl::InternalError(absl::StrCat("more than ", tolerance)));
}

}  // namespace

bool CheckFormats(const LoadedModel& loaded) {
  const absl::StatusOr<Reference> want = OverDensePages(loaded);
  if (!want.ok()) {
    return ModelRow("check", loaded.name).Print(want.status());
  }
  const bool diffkv = Print(loaded, "diffkv", kCodedTolerance, DiffKvError(loaded, *want));
  const bool shadowkv = Print(loaded, "shadowkv", kExactTolerance, ShadowKvError(loaded, *want));
  return diffkv && shadowkv;
}

}  // namespace baton::model
