#include "tests/gpu/bench/model_decode.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/model_cost.h"
#include "tests/gpu/bench/model_row.h"
#include "tests/gpu/bench/model_sequences.h"
#include "tests/gpu/bench/model_subject.h"
#include "tests/gpu/bench/model_time.h"

namespace baton::model {
namespace {

constexpr int32_t kWarmUps = 3;
constexpr int32_t kSteps = 20;
// Steps that the device is given one behind another, and how often.
constexpr int32_t kQueuedSteps = 8;
constexpr int32_t kRepeats = 3;

struct DecodeShape {
  int32_t sequences = 1;
  int32_t tokens = 0;
};

struct DecodeTimes {
  double seconds = 0.0;
  double device_seconds = 0.0;
};

std::vector<DecodeShape> Shapes(bool quick) {
  std::vector<DecodeShape> shapes = {{.sequences = 1, .tokens = 2048},
                                     {.sequences = 64, .tokens = 8192}};
  if (!quick) {
    shapes.insert(shapes.end(),
                  {{.sequences = 1, .tokens = 8192},
                   {.sequences = 16, .tokens = 8192},
                   {.sequences = 16, .tokens = 32768},
                   {.sequences = 4, .tokens = 131072}});
  }
  return shapes;
}

absl::Status RunQueued(const ModelSubject& subject, const ModelSequences& sequences) {
  for (int32_t step = 0; step < kQueuedSteps; ++step) {
    BATON_RETURN_IF_ERROR(sequences.QueueDecode());
  }
  return subject.exec.queue->Wait();
}

absl::StatusOr<DecodeTimes> Time(const ModelSubject& subject, const DecodeShape& shape) {
  DecodeTimes times;
  BATON_ASSIGN_OR_RETURN(ModelSequences sequences,
                         ModelSequences::Create(subject, shape.sequences, shape.tokens));
  BATON_ASSIGN_OR_RETURN(times.seconds,
                         MedianSeconds(kWarmUps, kSteps, [&] { return sequences.NextTokens(); }));
  BATON_ASSIGN_OR_RETURN(times.device_seconds,
                         MedianSeconds(1, kRepeats, [&] { return RunQueued(subject, sequences); }));
  times.device_seconds /= kQueuedSteps;
  return times;
}

bool Measure(const ModelSubject& subject, const DecodeShape& shape) {
  ModelRow row("decode", subject.name);
  row.Add("sequences", int64_t{shape.sequences}).Add("tokens", int64_t{shape.tokens});
  const absl::StatusOr<DecodeTimes> times = Time(subject, shape);
  if (!times.ok()) {
    return row.Print(times.status());
  }
  const ModelCost cost(subject.model.config());
  const double bytes = cost.WeightBytes() + cost.KvBytes(shape.sequences, shape.tokens);
  const double rate = bytes / times->seconds;
  row.Add("ms", times->seconds * 1e3, 3).Add("device_ms", times->device_seconds * 1e3, 3);
  row.Add("tokens_per_s", shape.sequences / times->seconds, 1).Add("bytes", bytes, 0);
  row.Add("gb_per_s", rate * 1e-9, 1).Add("share_of_4250", rate / 4.25e12, 3);
  row.Print();
  return true;
}

}  // namespace

bool MeasureDecode(const ModelSubject& subject, bool quick) {
  bool measured = true;
  for (const DecodeShape& shape : Shapes(quick)) {
    measured = Measure(subject, shape) && measured;
  }
  return measured;
}

}  // namespace baton::model
