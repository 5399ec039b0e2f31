#include "common/kv/codec/kv_calibration.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>

namespace baton::kv {

std::string_view KvFloorName(KvFloor floor) {
  switch (floor) {
    case KvFloor::kNone:
      return "none";
    case KvFloor::kLow:
      return "low";
    case KvFloor::kHigh:
      return "high";
  }
  return "unknown";
}

int32_t ScaledBudget(int32_t tokens, float weight) {
  const double scaled = std::round(static_cast<double>(tokens) * static_cast<double>(weight));
  return static_cast<int32_t>(std::clamp(scaled, 1.0, double{1 << 30}));
}

uint64_t FloorDigest(std::span<const KvFloor> floors) {
  if (std::ranges::all_of(floors, [](KvFloor floor) { return floor == KvFloor::kNone; })) {
    return 0;
  }
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const KvFloor floor : floors) {
    hash = (hash ^ static_cast<uint64_t>(floor)) * 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace baton::kv
