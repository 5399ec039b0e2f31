// What the host tells the ops of one step.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/buffer.h"
#include "kernels/core/memory.h"

namespace baton::kernels {

// Brings arrays that change with every step to where ops read them: positions, rows, page tables.
// On the host that is where they are. On a device they are gathered and copied all at once, before
// the first op, because one copy per array and layer takes longer than the ops of a small step.
// Belongs to the executor thread; memory grows to what the largest step needs.
class StepArrays {
 public:
  // `memory` is borrowed.
  explicit StepArrays(MemorySpace& memory) : memory_(memory) {}
  StepArrays(const StepArrays&) = delete;
  StepArrays& operator=(const StepArrays&) = delete;

  // Begins a step: addresses given before are dead.
  void Clear();

  // Where ops find `values` once Upload has returned, so that arrays of structures can point to
  // arrays added before. The values themselves stay where and as they are until the step is done.
  template <typename T>
  const T* Add(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (values.empty() || memory_.is_host()) {
      return values.data();
    }
    return reinterpret_cast<const T*>(
        AddBytes(static_cast<const void*>(values.data()), values.size_bytes()));
  }
  template <typename T>
  const T* Add(const std::vector<T>& values) {
    return Add(std::span<const T>(values));
  }

  // Copies what was added since the last Upload or Clear. kResourceExhausted when memory for it was
  // missing.
  absl::Status Upload();

 private:
  // Memory of the device, and what goes there.
  struct Chunk {
    Buffer staged;
    Memory memory;
    size_t used = 0;
    size_t uploaded = 0;
  };

  std::byte* AddBytes(const void* values, size_t bytes);
  // A chunk with room for so many bytes; null, with status_ set, if there is no memory.
  Chunk* ChunkFor(size_t bytes);

  MemorySpace& memory_;
  std::vector<Chunk> chunks_;
  absl::Status status_;
};

}  // namespace baton::kernels
