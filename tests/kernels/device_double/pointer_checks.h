// What the device double checks of the pointers that an op is given.
#pragma once

#include <initializer_list>

#include "absl/status/status.h"

namespace baton::kernels {

struct Pointer {
  const char* name;
  const void* address;
  bool optional = false;  // may be null
};

// kInternal, naming op and pointer, when one is not in GuardedMemory.
absl::Status CheckPointers(const char* op, std::initializer_list<Pointer> pointers);

}  // namespace baton::kernels
