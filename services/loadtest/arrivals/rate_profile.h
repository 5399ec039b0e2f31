// How the rate of arrivals changes over a run.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::loadtest {

// A part of a run; the rate changes linearly over it. Requests per second.
struct Stage {
  absl::Duration length;  // infinite for a constant rate only
  double begin_rate = 0.0;
  double end_rate = 0.0;
};

// Stages one after another. Immutable.
class RateProfile {
 public:
  // "30s@2,60s@2..20,20s@0": stages of a length at a rate, or from one rate to another.
  // kInvalidArgument says which stage is wrong.
  static absl::StatusOr<RateProfile> Parse(std::string_view text);
  // `rate` > 0 without an end.
  static RateProfile Constant(double rate);

  // When `count` arrivals are to be expected, in seconds from the start: the inverse of the rate's
  // integral. Nothing when the stages end before. Not for a `count` < 0.
  std::optional<double> TimeOf(double count) const;
  const std::vector<Stage>& stages() const { return stages_; }
  // Sum of the stages' lengths.
  absl::Duration length() const;

 private:
  explicit RateProfile(std::vector<Stage> stages) : stages_(std::move(stages)) {}
  std::vector<Stage> stages_;
};

}  // namespace baton::loadtest
