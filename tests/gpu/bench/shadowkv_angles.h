// The angles that keys in format `shadowkv` are rotated by.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/bench/device_arena.h"

namespace baton::kernels::cuda {

// Tables of the positions 0, 1, 2, ... with the base of Llama-3.1, on the host.
class ShadowKvAngles {
 public:
  ShadowKvAngles(int64_t positions, int64_t head_dim) : positions_(positions) {
    constexpr double kBase = 500000.0;
    const auto half = static_cast<double>(head_dim) / 2.0;
    std::vector<double> frequencies;
    for (double i = 0.0; i < half; ++i) frequencies.push_back(std::pow(kBase, -i / half));
    for (int64_t position = 0; position < positions; ++position) {
      for (const double frequency : frequencies) {
        const double angle = static_cast<double>(position) * frequency;
        cosines_.push_back(static_cast<float>(std::cos(angle)));
        sines_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }

  // Names memory of this object.
  ShadowKvRope get() const {
    return {.cosines = cosines_.data(), .sines = sines_.data(), .positions = positions_};
  }
  // A copy in the arena, whose status tells whether there is one.
  ShadowKvRope UploadTo(DeviceArena& arena) const {
    return {
        .cosines = arena.Upload(cosines_), .sines = arena.Upload(sines_), .positions = positions_};
  }

 private:
  int64_t positions_;
  std::vector<float> cosines_;  // [positions][head_dim / 2]
  std::vector<float> sines_;
};

}  // namespace baton::kernels::cuda
