#include "tests/gpu/bench/model_prefill.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "tests/gpu/bench/model_cost.h"
#include "tests/gpu/bench/model_row.h"
#include "tests/gpu/bench/model_sequences.h"
#include "tests/gpu/bench/model_subject.h"
#include "tests/gpu/bench/model_time.h"

namespace baton::model {
namespace {

struct PrefillShape {
  int32_t sequences = 1;
  int32_t tokens = 0;
  int32_t repeats = 0;
};

std::vector<PrefillShape> Shapes(bool quick) {
  std::vector<PrefillShape> shapes = {{.sequences = 1, .tokens = 2048, .repeats = 10},
                                      {.sequences = 1, .tokens = 8192, .repeats = 10}};
  if (!quick) {
    shapes.insert(shapes.end(),
                  {{.sequences = 16, .tokens = 512, .repeats = 10},
                   {.sequences = 1, .tokens = 32768, .repeats = 3},
                   {.sequences = 1, .tokens = 131072, .repeats = 2}});
  }
  return shapes;
}

absl::StatusOr<double> Time(const ModelSubject& subject, const PrefillShape& shape) {
  BATON_ASSIGN_OR_RETURN(ModelSequences prompts,
                         ModelSequences::Create(subject, shape.sequences, shape.tokens));
  return MedianSeconds(
      1, shape.repeats, [&] { return prompts.Prefill(kPrefillStepRows).status(); });
}

bool Measure(const ModelSubject& subject, const PrefillShape& shape, PrefillSeconds& plain) {
  ModelRow row("prefill", subject.name);
  row.Add("sequences", int64_t{shape.sequences}).Add("tokens", int64_t{shape.tokens});
  const absl::StatusOr<double> seconds = Time(subject, shape);
  if (!seconds.ok()) {
    return row.Print(seconds.status());
  }
  const double tokens = 1.0 * shape.sequences * shape.tokens;
  const double rate =
      ModelCost(subject.model.config()).PrefillOperations(shape.sequences, shape.tokens) / *seconds;
  row.Add("ms", *seconds * 1e3, 3);
  row.Add("tokens_per_s", tokens / *seconds, 0);
  row.Add("tflop_per_s", rate * 1e-12, 1).Add("share_of_756", rate / 756e12, 3);
  const std::pair<int32_t, int32_t> key(shape.sequences, shape.tokens);
  if (!subject.model.config().swiftkv()) {
    plain[key] = *seconds;
  } else if (const auto it = plain.find(key); it != plain.end()) {
    row.Add("speedup", it->second / *seconds, 3);
  }
  row.Print();
  return true;
}

}  // namespace

bool MeasurePrefill(const ModelSubject& subject, bool quick, PrefillSeconds& plain) {
  bool measured = true;
  for (const PrefillShape& shape : Shapes(quick)) {
    measured = Measure(subject, shape, plain) && measured;
  }
  return measured;
}

}  // namespace baton::model
