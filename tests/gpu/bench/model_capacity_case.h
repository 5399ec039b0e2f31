// A format of keys and values whose largest batch is measured.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "tests/gpu/bench/model_row.h"

namespace baton::model {

// Sequences of one context in one format, and the decode steps that are timed. A case holds no
// memory of the device before Make, and gives it back when it is destroyed.
class CapacityCase {
 public:
  // Of one variant.
  static constexpr int32_t kWarmUps = 4;
  static constexpr int32_t kSteps = 32;
  // Formats have up to two, over one pool.
  static constexpr int32_t kPoolSteps = 2 * (kWarmUps + kSteps);

  CapacityCase() = default;
  virtual ~CapacityCase() = default;
  CapacityCase(const CapacityCase&) = delete;
  CapacityCase& operator=(const CapacityCase&) = delete;

  virtual std::string format() const = 0;
  // Memory of one sequence: its pages or sections, and what its steps need beside them.
  virtual int64_t kv_bytes() const = 0;
  // Memory of the host that one sequence takes beside it.
  virtual int64_t host_kv_bytes() const { return 0; }
  // Makes and fills the pool for so many sequences. Once, before all that follows.
  virtual absl::Status Make(int32_t sequences) = 0;

  virtual int32_t variants() const { return 1; }
  // Before the steps of a variant: what tells its row from the others'.
  virtual absl::Status Begin(int32_t /*variant*/, ModelRow& /*row*/) { return absl::OkStatus(); }
  // One token of every sequence, until the next ones are on the host.
  virtual absl::Status Step() = 0;
  // After them: what was found out, and whether they were what they should have been.
  virtual absl::Status End(ModelRow& /*row*/) { return absl::OkStatus(); }
  // Bytes of keys and values that a step of the variant reads at least.
  virtual double read_bytes() const = 0;
};

}  // namespace baton::model
