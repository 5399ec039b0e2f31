// What one rendering may cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace baton::text::jinja {

// Work is counted in units of about one byte touched or produced; evaluating one node costs
// kNodeCost. A template cannot allocate without paying for it, so the limit bounds memory as well
// as time (well under a second).
inline constexpr size_t kMaxWork = size_t{128} << 20;
inline constexpr size_t kNodeCost = 16;
inline constexpr size_t kItemCost = 32;  // one member of a list or dict
inline constexpr size_t kMaxOutputBytes = size_t{16} << 20;
inline constexpr int kMaxEvaluationDepth =
    600;  // nodes of the tree under evaluation at once, macro calls included
inline constexpr int kMaxMacroDepth = 32;

// Counts work against kMaxWork. Not thread-safe: one per rendering.
class Budget {
 public:
  // InvalidArgument once the total exceeds the limit.
  absl::Status Charge(size_t work) {
    if (work > left_) {
      left_ = 0;
      return absl::InvalidArgumentError(
          "the chat template does more work than is allowed for one request");
    }
    left_ -= work;
    return absl::OkStatus();
  }

 private:
  size_t left_ = kMaxWork;
};

}  // namespace baton::text::jinja
