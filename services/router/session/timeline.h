// When a request passed each point of its way.
#pragma once

#include <optional>

#include "absl/time/time.h"

namespace baton::router {

// Unset: not reached. A retry overwrites what it passes again, `dispatched` excepted.
struct Timeline {
  absl::Time received;
  std::optional<absl::Time> queued;
  std::optional<absl::Time> dispatched;  // a pair was chosen
  std::optional<absl::Time> reserved;
  std::optional<absl::Time> first_token;
  std::optional<absl::Time> committed;
  std::optional<absl::Time> finished;
};

}  // namespace baton::router
