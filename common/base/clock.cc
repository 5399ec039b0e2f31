#include "common/base/clock.h"

#include "absl/time/clock.h"

namespace baton {
namespace {

class RealClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
  void WaitUntil(absl::Mutex& mutex, absl::CondVar& condition, absl::Time deadline) const override {
    condition.WaitWithDeadline(&mutex, deadline);
  }
};

}  // namespace

const Clock& Clock::Real() {
  static const RealClock clock;
  return clock;
}

}  // namespace baton
