// Graphs of the device double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/op_graphs.h"

namespace baton::kernels {

// Does gathered ops when they have to be done at the latest, and counts those that a graph could
// not have been launched for.
class ReplayedGraphs final : public OpGraphs {
 public:
  int64_t launches() const { return launches_; }
  // Launches of ops that had not been launched together before.
  int64_t distinct() const { return static_cast<int64_t>(seen_.size()); }

 private:
  absl::Status Launch(const GatheredOps& ops) override {
    ++launches_;
    seen_.insert(ops.bytes());
    return ops.Replay();
  }

  std::set<std::vector<std::byte>> seen_;
  int64_t launches_ = 0;
};

}  // namespace baton::kernels
