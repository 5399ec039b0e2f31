// An op that may be launched with others later on.
#pragma once

#include <type_traits>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/core/op_graphs.h"

// Whether the compiler can clear what lies between members. Without, calls with the same parameters
// may not be recognized as the same.
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
#define BATON_CLEARS_PADDING 1
#endif
#endif
#ifndef BATON_CLEARS_PADDING
#define BATON_CLEARS_PADDING 0
#endif

namespace baton::kernels {

// kOp, or, while the context's ops are gathered, a note of the call (kernels/core/op_graphs.h). For
// an entry of an OpTable:  .embed = GatheredOp<Embed>
template <auto kOp, typename Params>
absl::Status GatheredOp(const ExecContext& context, const Params& params) {
  static_assert(std::is_trivially_copyable_v<Params>);
  if (context.graphs == nullptr || !context.graphs->gathering()) {
    return kOp(context, params);
  }
  Params copy = params;
#if BATON_CLEARS_PADDING
  __builtin_clear_padding(&copy);
#endif
  context.graphs->ops().Add(
      context,
      [](const ExecContext& later, const void* kept) {
        return kOp(later, *static_cast<const Params*>(kept));
      },
      &copy,
      sizeof(copy));
  return absl::OkStatus();
}

}  // namespace baton::kernels
