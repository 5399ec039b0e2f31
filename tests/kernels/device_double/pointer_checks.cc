#include "tests/kernels/device_double/pointer_checks.h"

#include <initializer_list>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "tests/kernels/device_double/guarded_memory.h"

namespace baton::kernels {

absl::Status CheckPointers(const char* op, std::initializer_list<Pointer> pointers) {
  for (const Pointer& pointer : pointers) {
    if (pointer.optional && pointer.address == nullptr) {
      continue;
    }
    if (!GuardedMemory::Get().Contains(pointer.address)) {
      return absl::InternalError(
          absl::StrCat("device double: ", op, ": ", pointer.name, " is not the device's memory"));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels
