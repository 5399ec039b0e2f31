// Splits an op's work over the context's pool.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "kernels/core/exec_context.h"

namespace baton::kernels::cpu {

// Work below this many elements is done by the calling thread: waking another costs more.
inline constexpr int64_t kSerialElements = 32 * 1024;

// fn(index, thread) for index in [0, n), by the caller alone when `serial`. The pool is given a
// reference, so that std::function allocates nothing.
template <typename Function>
void ParallelFor(const ExecContext& context, int64_t n, bool serial, const Function& fn) {
  if (serial || context.pool->threads() == 1) {
    for (int64_t index = 0; index < n; ++index) {
      fn(index, 0);
    }
    return;
  }
  context.pool->ParallelFor(n, std::cref(fn));
}

// fn(row) for every row; a row costs about `row_elements`. Neighbouring rows go to one thread.
template <typename Function>
void ForRows(const ExecContext& context, int64_t rows, int64_t row_elements, const Function& fn) {
  const int64_t rows_per_index =
      std::max<int64_t>(1, kSerialElements / 2 / std::max<int64_t>(row_elements, 1));
  const int64_t indices = (rows + rows_per_index - 1) / rows_per_index;
  ParallelFor(context, indices, rows * row_elements < kSerialElements, [&](int64_t index, int) {
    const int64_t end = std::min(rows, (index + 1) * rows_per_index);
    for (int64_t row = index * rows_per_index; row < end; ++row) {
      fn(row);
    }
  });
}

}  // namespace baton::kernels::cpu
