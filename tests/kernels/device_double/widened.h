// Activations of the device double as its CPU ops take them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/half.h"

namespace baton::kernels {

// Activations of the double's dtype, [rows][width], as the fp32 that the CPU's ops work on.
template <DType kDType>
class Widened {
 public:
  Widened(const void* source, int64_t rows, int64_t width, int64_t stride)
      : rows_(rows), width_(width), stride_(stride) {
    values_.resize(static_cast<size_t>(rows * width));
    for (int64_t i = 0; source != nullptr && i < rows * width; ++i) {
      const int64_t element = i / width * stride + i % width;
      values_[static_cast<size_t>(i)] =
          kDType == DType::kF32 ? static_cast<const float*>(source)[element]
                                : BF16ToF32(static_cast<const uint16_t*>(source)[element]);
    }
  }

  float* data() { return values_.data(); }
  // Rounds rows [begin, end) to where they belong.
  void Store(void* target, int64_t begin, int64_t end) const {
    for (int64_t i = begin * width_; i < end * width_; ++i) {
      const int64_t element = i / width_ * stride_ + i % width_;
      const float value = values_[static_cast<size_t>(i)];
      if constexpr (kDType == DType::kF32) {
        static_cast<float*>(target)[element] = value;
      } else {
        static_cast<uint16_t*>(target)[element] = F32ToBF16(value);
      }
    }
  }
  void Store(void* target) const { Store(target, 0, rows_); }

 private:
  int64_t rows_;
  int64_t width_;
  int64_t stride_;
  std::vector<float> values_;
};

}  // namespace baton::kernels
