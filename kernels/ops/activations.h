// Activations of the back ends on the host, whose activations are fp32 (OpTable::activations).
#pragma once

namespace baton::kernels {

// The elements behind an op's pointer to activations.
inline float* Floats(void* activations) { return static_cast<float*>(activations); }
inline const float* Floats(const void* activations) {
  return static_cast<const float*>(activations);
}

}  // namespace baton::kernels
