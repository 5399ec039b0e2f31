#include "tests/gpu/bench/model_check.h"

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "tests/gpu/bench/model_row.h"
#include "tests/gpu/bench/model_sequences.h"
#include "tests/gpu/bench/model_subject.h"
#include "tests/gpu/bench/relative_difference.h"

namespace baton::model {
namespace {

// Runs round to bf16 at the same places but sum in other orders. The CPU's ops with 32 such layers,
// 512 wide, tell what that may come to: bf16 activations are 0.016 from fp32 ones, while one other
// key among 300 moves logits by 0.07 and one other page of a prompt of 1025 tokens by 0.2.
constexpr double kTolerance = 0.05;

struct CheckShape {
  int32_t sequences = 1;
  int32_t tokens = 0;
  int32_t step_rows = 0;  // of chunks; 0: the last token is a step of its own
};

constexpr CheckShape kShapes[] = {{.sequences = 1, .tokens = 65},
                                  {.sequences = 3, .tokens = 65},
                                  {.sequences = 1, .tokens = 2048},
                                  {.sequences = 1, .tokens = 300, .step_rows = 111},
                                  {.sequences = 3, .tokens = 300, .step_rows = 333},
                                  {.sequences = 1, .tokens = 8192, .step_rows = 2048}};

absl::StatusOr<std::vector<float>> Whole(const ModelSubject& subject, const CheckShape& shape) {
  BATON_ASSIGN_OR_RETURN(ModelSequences sequences,
                         ModelSequences::Create(subject, shape.sequences, shape.tokens));
  BATON_ASSIGN_OR_RETURN(const std::span<const float> logits,
                         sequences.Prefill(shape.sequences * shape.tokens));
  return std::vector<float>(logits.begin(), logits.end());
}

absl::StatusOr<std::vector<float>> InSteps(const ModelSubject& subject, const CheckShape& shape) {
  BATON_ASSIGN_OR_RETURN(ModelSequences sequences,
                         ModelSequences::Create(subject, shape.sequences, shape.tokens));
  std::span<const float> logits;
  if (shape.step_rows > 0) {
    BATON_ASSIGN_OR_RETURN(logits, sequences.Prefill(shape.step_rows));
  } else {
    BATON_RETURN_IF_ERROR(sequences.Step(0, shape.tokens - 1, {}));
    BATON_ASSIGN_OR_RETURN(logits, sequences.Decode());
  }
  return std::vector<float>(logits.begin(), logits.end());
}

absl::StatusOr<double> Error(const ModelSubject& subject, const CheckShape& shape) {
  BATON_ASSIGN_OR_RETURN(const std::vector<float> want, Whole(subject, shape));
  BATON_ASSIGN_OR_RETURN(const std::vector<float> got, InSteps(subject, shape));
  return kernels::cuda::RelativeDifference(got, want);
}

bool Check(const ModelSubject& subject, const CheckShape& shape) {
  ModelRow row("check", subject.name);
  row.Add("steps", shape.step_rows == 0 ? "decode" : "chunks");
  row.Add("sequences", int64_t{shape.sequences}).Add("tokens", int64_t{shape.tokens});
  const absl::StatusOr<double> error = Error(subject, shape);
  if (!error.ok()) {
    return row.Print(error.status());
  }
  row.Add("error", *error, 5);
  return row.Print(*error <= kTolerance  // not NaN
                       ? absl::OkStatus()
                       : absl::InternalError(absl::StrCat("more than ", kTolerance)));
}

}  // namespace

bool CheckModel(const ModelSubject& subject) {
  bool passed = true;
  for (const CheckShape& shape : kShapes) {
    passed = Check(subject, shape) && passed;
  }
  return passed;
}

}  // namespace baton::model
