// Sweeps KV policies over cases and chooses (diffkv.md 6 and its analogue for shadowkv).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/eval/eval_case.h"
#include "common/eval/result_writer.h"
#include "common/kv/calibration/calibration_file.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_policy.h"
#include "common/text/load_tokenizer.h"
#include "services/lab/calibrate/choose.h"
#include "services/lab/table/table_cases.h"

namespace baton::lab {

struct CalibratorOptions {
  std::vector<eval::EvalCase> cases;
  LossLimits limits;
  Caps caps;               // unset: what the limits give
  int64_t pool_bytes = 0;  // of each format
};

// Every stage runs all cases under its policies, those with a row already left out, and goes on
// from what its rows say is best: an interrupted run that is given the same rows continues. Borrows
// all but the options; the model must have no calibration of its own,
// and is there at least once. Progress goes to stderr. Not
// thread-safe.
class Calibrator {
 public:
  Calibrator(CalibratorOptions options,
             const text::ModelTokenizer& tokenizer,
             const TableModels& models,
             eval::ResultWriter& writer);

  // Tier pair and alpha_high, then alpha_low, then the window.
  absl::Status CalibrateDiffKv();
  // Selector and chunk at full rank, then the budget, both by attended tokens; then rank and factor
  // type, then the width of values, by bytes.
  absl::Status CalibrateShadowKv();
  // Tier pair and alpha_high of diffkv behind fp8 hidden states, by bytes sent: the layers that are
  // sent as pages are fewer, so what they may lose differs. Comes after CalibrateDiffKv, which also
  // chooses for this wire form; the model must be a SwiftKV model.
  absl::Status CalibrateHidden8DiffKv();

  // What was chosen: defaults for every wire form, and tiers from all that was measured without
  // hidden states. A tier that nothing measured is good enough for is the next better one, in the
  // end dense.
  kv::KvCalibration calibration() const;
  // Everything measured, dense first.
  std::vector<kv::CalibrationPoint> curve() const;

 private:
  struct Measured {
    kv::KvFormatPolicy policy;
    Candidate candidate;
  };

  // Runs `policies` and takes the best of them and `current`, which may be null.
  template <typename Params>
  absl::StatusOr<Params> Stage(std::string_view name,
                               const std::vector<Params>& policies,
                               const Goal& goal,
                               const Params* current,
                               kv::HiddenWire hidden = kv::HiddenWire::kNone);
  // The measured policy, which is run before if it has not been.
  absl::Status Run(const std::vector<kv::KvFormatPolicy>& policies);
  const Candidate* Find(const kv::KvFormatPolicy& policy) const;
  kv::KvFormatPolicy CheapestWithin(const LossLimits& limits,
                                    const kv::KvFormatPolicy& otherwise) const;

  const CalibratorOptions options_;
  const text::ModelTokenizer& tokenizer_;
  const TableModels& models_;
  eval::ResultWriter& writer_;
  const int64_t key_width_;
  std::vector<Measured> measured_;
  kv::KvPolicyDefaults chosen_;
};

}  // namespace baton::lab
