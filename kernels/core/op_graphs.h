// Ops that are launched together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"

namespace baton::kernels {

// Calls of ops that are kept for later, with copies of their parameters. Two that hold the same
// bytes do the same: parameters are values and addresses of a device's memory.
class GatheredOps {
 public:
  using Call = absl::Status (*)(const ExecContext&, const void* params);

  // `params` must be fit to be copied as bytes, padding cleared.
  void Add(const ExecContext& context, Call call, const void* params, size_t bytes);
  // Calls them, in their order, up to the first that fails.
  absl::Status Replay() const;
  void Clear();

  bool empty() const { return calls_.empty(); }
  // What tells them from others: which ops, and their parameters.
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  struct Kept {
    ExecContext context;
    Call call = nullptr;
    size_t params = 0;  // offset in bytes_
  };

  std::vector<Kept> calls_;
  std::vector<std::byte> bytes_;
};

// Gathers the ops of a device's main queue, which takes much longer to be told a step's ops one by
// one than to be told that they are those of the step before. Belongs to the executor thread.
class OpGraphs {
 public:
  virtual ~OpGraphs() = default;

  // From now on ops that are called with the context are gathered. Their statuses come from Flush.
  void Begin() { gathering_ = true; }
  // Launches what was gathered. Copies and side queues call it first, so that everything stays in
  // its order.
  absl::Status Flush();
  // Launches what was gathered, and ops at once from now on.
  absl::Status End();

  bool gathering() const { return gathering_; }
  GatheredOps& ops() { return ops_; }

 private:
  virtual absl::Status Launch(const GatheredOps& ops) = 0;

  GatheredOps ops_;
  bool gathering_ = false;
};

}  // namespace baton::kernels
