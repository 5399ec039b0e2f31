// Weights for performance work, where only the shapes matter.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace baton::checkpoint {

// Fills `out` with the elements from `first` on of the tensor `name` ([shape] row-major) of the
// model `seed`. A pure function of (seed, name, shape): element i comes from a counter-based
// generator keyed by seed and name, so every worker gets the same bits whatever it loads first, in
// whatever parts. Norm weights are 1; matrices of layers are normal with deviation
// 1/sqrt(in_features), which keeps activations of order one; everything else (embedding, head,
// biases) has deviation 0.02.
void FillRandomTensor(uint64_t seed,
                      std::string_view name,
                      std::span<const int64_t> shape,
                      int64_t first,
                      std::span<float> out);

}  // namespace baton::checkpoint
